"""Writes the golden files: `python -m tests.golden.make_golden NAME...`, for files that do not exist yet.

A golden file is never made again: stored data of its version is out there. See README.md.
"""

from __future__ import annotations

import json
import sys
import uuid
from pathlib import Path

from headrace.storage.records.codec import Record, encode_batch
from headrace.storage.records.compression import Codec
from headrace.storage.records.header import LOG_APPEND_TIME_BIT
from headrace.storage.segment.reader import verify_segment
from tests.storage.batches import plain_batch
from tests.storage.segments import Placed, lay_out

HERE = Path(__file__).parent
SEGMENT_INDEX_INTERVAL_BYTES = 80
FIRST_TOPIC = uuid.UUID("0b9c4a52-7d1e-4c55-9a54-6f1f5f0c7a10")
LAST_TOPIC = uuid.UUID("f3a1d0de-1c2b-4e8f-8a6b-2b7d9c3e4f50")

SEGMENT_BATCHES = [
    Placed(FIRST_TOPIC, 0, plain_batch(2, b"first")),
    Placed(FIRST_TOPIC, 3, plain_batch(1, b"idempotent", producer_id=4_000, producer_epoch=2, base_sequence=17)),
    Placed(FIRST_TOPIC, 3, plain_batch(4, b"x" * 40, producer_id=4_000, producer_epoch=2, base_sequence=18)),
    Placed(FIRST_TOPIC, 3, plain_batch(3, b"later", base_timestamp=1_700_000_100_000)),
    Placed(FIRST_TOPIC, 3, plain_batch(1, b"earlier", base_timestamp=1_600_000_000_000)),
    Placed(LAST_TOPIC, 0, plain_batch(1, b"appended", attributes=LOG_APPEND_TIME_BIT, max_timestamp=1_700_000_200_000)),
]

BATCH_RECORDS = [
    Record(40, 1_700_000_000_000, b"key", b"value " * 20, [("name", b"x"), ("none", None)]),
    Record(41, 1_700_000_000_007, None, b"value " * 20, []),
    Record(44, 1_699_999_999_999, b"key", None, []),
]


def segment_v1() -> bytes:
    """Two topics, three partitions, an index, idempotent and stamped batches."""
    return lay_out(SEGMENT_BATCHES, index_interval_bytes=SEGMENT_INDEX_INTERVAL_BYTES)[0]


def segment_v1_json() -> bytes:
    """Return what a reader must find in it."""
    footer = verify_segment((HERE / "segment_v1.bin").read_bytes())
    partitions = [{**entry._asdict(), "topic_id": str(entry.topic_id)} for entry in footer.partitions]
    found = {
        "object_size": footer.object_size,
        "index_interval_bytes": footer.index_interval_bytes,
        "partitions": partitions,
    }
    return json.dumps(found, indent=2).encode() + b"\n"


def batches_by_codec() -> bytes:
    """One line per codec: its name and a batch of BATCH_RECORDS, in hex."""
    lines = [f"{codec.name}\t{encode_batch(BATCH_RECORDS, codec=codec, base_offset=40).hex()}\n" for codec in Codec]
    return "".join(lines).encode()


FILES = {
    "segment_v1.bin": segment_v1,
    "segment_v1.json": segment_v1_json,
    "batches_by_codec.tsv": batches_by_codec,
}

if __name__ == "__main__":
    for name in sys.argv[1:]:
        with (HERE / name).open("xb") as file:
            file.write(FILES[name]())
