"""Version 1 of the segment file, and batches of every codec, are read and written as they ever were."""

from __future__ import annotations

import json
from pathlib import Path
from uuid import UUID

import pytest

from headrace.storage.records.codec import decode_records
from headrace.storage.records.compression import Codec
from headrace.storage.records.header import read_header
from headrace.storage.segment.reader import read_footer, verify_segment, walk_batches
from headrace.storage.segment.writer import SegmentWriter
from tests.golden.make_golden import BATCH_RECORDS, segment_v1

HERE = Path(__file__).parent
GOLDEN = (HERE / "segment_v1.bin").read_bytes()
EXPECTED = json.loads((HERE / "segment_v1.json").read_text(encoding="utf-8"))


def _lines(name: str) -> list[tuple[str, bytes]]:
    pairs = (line.split("\t") for line in (HERE / name).read_text(encoding="ascii").splitlines())
    return [(label, bytes.fromhex(batch)) for label, batch in pairs]


def test_the_reader_finds_what_was_written() -> None:
    footer = verify_segment(GOLDEN)
    assert footer == read_footer(GOLDEN, len(GOLDEN))
    assert footer.object_size == EXPECTED["object_size"] == len(GOLDEN)
    assert footer.index_interval_bytes == EXPECTED["index_interval_bytes"]
    found = [json.loads(json.dumps({**e._asdict(), "topic_id": str(e.topic_id)})) for e in footer.partitions]
    assert found == EXPECTED["partitions"]
    assert sum(len(entry.index_entries) for entry in footer.partitions) > 1


def test_the_writer_lays_the_same_batches_out_in_the_same_bytes() -> None:
    writer = SegmentWriter(index_interval_bytes=EXPECTED["index_interval_bytes"])
    view = memoryview(GOLDEN)
    for entry in EXPECTED["partitions"]:
        run = view[entry["position"] : entry["position"] + entry["length"]]
        for position, header in walk_batches(run):
            placed = writer.add(
                UUID(entry["topic_id"]),
                entry["partition_index"],
                entry["partition_key"],
                run[position : position + header.size],
                header,
            )
            assert placed == entry["position"] + position
    assert writer.finish() == GOLDEN


def test_the_golden_file_is_what_its_script_makes() -> None:
    assert segment_v1() == GOLDEN


@pytest.mark.parametrize(("name", "batch"), _lines("batches_by_codec.tsv"), ids=lambda value: str(value)[:8])
def test_every_codec_s_batch_opens(name: str, batch: bytes) -> None:
    assert read_header(batch).codec == Codec[name]
    assert decode_records(memoryview(batch)) == BATCH_RECORDS


def test_no_codec_is_missing() -> None:
    assert [name for name, _ in _lines("batches_by_codec.tsv")] == [codec.name for codec in Codec]


@pytest.mark.parametrize(("label", "batch"), _lines("client_batches.tsv"), ids=lambda value: str(value)[:20])
def test_batches_of_real_clients_open(label: str, batch: bytes) -> None:
    records = decode_records(memoryview(batch))
    header = read_header(batch)
    assert [record.offset for record in records] == list(range(header.record_count)), label
    assert max(record.timestamp for record in records) == header.max_timestamp
