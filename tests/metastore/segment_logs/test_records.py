"""Lifecycle records compared with Kafka's own classes.

The golden files were written by Kafka 4.1.1 (lifecycle_v0.tsv, metadata_partitions.tsv) and by `encode`
(lifecycle_v1.tsv). After `make tools`, the tests marked `kafka` ask Kafka's classes again:
    java -cp "$HOME/.cache/headrace-test-tools/kafka-4.3.1/lib/*" \\
        tests/metastore/segment_logs/LifecycleRecords.java write
"""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.metastore.api.segment_states import RemotePartitionKey, RemoteSegmentKey, base64url, parse_key
from headrace.metastore.api.segments import METADATA_PARTITIONS
from headrace.metastore.segment_logs.records import (
    LifecycleRecord,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadataRecord,
    RemoteLogSegmentMetadataUpdateRecord,
    RemotePartitionDeleteMetadataRecord,
    SegmentLeaderEpoch,
    TopicIdPartition,
    decode,
    encode,
    key_of,
    metadata_partition,
)
from headrace.storage.errors import CorruptError, InvalidError
from tests.java_program import run_java
from tests.tools import KAFKA_JARS

pytestmark = pytest.mark.requirement("R9")
HERE = Path(__file__).parent
GOLDEN = HERE.parents[1] / "golden"
kafka = pytest.mark.needs("kafka")
EPOCH = 5
END_OFFSET = 1999


def golden(name: str) -> list[list[str]]:
    return [line.split("\t") for line in (GOLDEN / name).read_text().splitlines()]


def ask_kafka(mode: str, lines: Sequence[str] = ()) -> list[str]:
    stdin = "".join(f"{line}\n" for line in lines)
    done = run_java(HERE / "LifecycleRecords.java", f"{KAFKA_JARS}/*", mode, stdin=stdin)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def with_key(record: LifecycleRecord) -> LifecycleRecord:
    if isinstance(record, RemoteLogSegmentMetadataRecord):
        return dataclasses.replace(record, broker_leader_epoch=EPOCH, txn_index_empty=False)
    return dataclasses.replace(record, broker_leader_epoch=EPOCH, end_offset=END_OFFSET)


@pytest.mark.slow
@kafka
def test_kafka_writes_the_golden_records_of_version_0() -> None:
    assert [line.split("\t") for line in ask_kafka("write")] == golden("lifecycle_v0.tsv")


@pytest.mark.parametrize(("name", "value", "text"), golden("lifecycle_v0.tsv"), ids=lambda text: text[:20])
def test_version_0_is_read(name: str, value: str, text: str) -> None:
    record, version = decode(bytes.fromhex(value))
    assert version == 0
    assert f"eventTimestampMs={record.event_timestamp_ms}" in text
    assert f"brokerId={record.broker_id}" in text
    owner = (
        record.topic_id_partition
        if isinstance(record, RemotePartitionDeleteMetadataRecord)
        else record.remote_log_segment_id.topic_id_partition
    )
    assert f"={base64url(owner.id)}:{owner.name}-{owner.partition}" in text
    if isinstance(record, RemoteLogSegmentMetadataRecord):
        epochs = ", ".join(f"{each.leader_epoch}={each.offset}" for each in record.segment_leader_epochs)
        assert f"segmentLeaderEpochs={{{epochs}}}" in text
        assert f"startOffset={record.start_offset}, endOffset={record.end_offset}" in text
        assert f"txnIdxEmpty={str(record.txn_index_empty).lower()}" in text
    if not isinstance(record, RemotePartitionDeleteMetadataRecord):
        with pytest.raises(InvalidError, match="has no key"):
            key_of(record)


@pytest.mark.parametrize(("old", "new"), list(zip(golden("lifecycle_v0.tsv"), golden("lifecycle_v1.tsv"), strict=True)))
def test_version_1_is_version_0_and_the_tags(old: list[str], new: list[str]) -> None:
    record = with_key(decode(bytes.fromhex(old[1])).record)
    assert encode(record).hex() == new[1]
    assert decode(bytes.fromhex(new[1])) == (record, 1)
    tags = "01000400000005" if record.api_key == 0 else "0200040000000501080000" + "0000000007cf"
    assert new[1].endswith(tags)
    key = key_of(record)
    assert parse_key(str(key)) == key
    assert key[2:] == (() if isinstance(key, RemotePartitionKey) else (END_OFFSET, EPOCH))


@kafka
def test_kafka_takes_the_body_of_version_1_for_version_0_and_skips_its_tags() -> None:
    """Of the segment's record, tag 0 is read as TxnIndexEmpty, from the epoch's first byte (decisions/0048)."""
    lines = golden("lifecycle_v1.tsv")
    old = ask_kafka("body", [line[1] for line in golden("lifecycle_v0.tsv")])
    new = ask_kafka("body", [line[1] for line in lines])
    for (name, _), before, after in zip(lines, old, new, strict=True):
        fields, left = after.split(" | ")
        if name.startswith("segment"):
            assert (fields, left) == (before.split(" | ")[0].replace("txnIndexEmpty=true", "txnIndexEmpty=false"), "3")
        else:
            assert (fields, left) == (before.split(" | ")[0], "0 0=00000005 1=00000000000007cf")
    refusals = ask_kafka("read", [line[1] for line in lines])
    assert all(refusal.startswith("refused: Failed to deserialize record with type") for refusal in refusals)


def test_the_epoch_of_kafkas_draft_is_read() -> None:
    """Tag 0 is TxnIndexEmpty and tag 1 the epoch: sizes tell them from the seed's layout."""
    (old,) = (line for line in golden("lifecycle_v0.tsv") if line[0] == "segment_without_transactions")
    body = bytearray.fromhex(old[1])
    assert body.endswith(b"\x01\x00\x01\x01")
    assert body[2] == 0
    body[2] = 1
    body[-4:] = b"\x02\x00\x01\x01\x01\x04\x00\x00\x00\x05"
    record = decode(bytes(body)).record
    assert isinstance(record, RemoteLogSegmentMetadataRecord)
    assert (record.txn_index_empty, record.broker_leader_epoch) == (True, 5)


def test_a_tag_of_a_newer_writer_is_skipped() -> None:
    for _, value in golden("lifecycle_v1.tsv"):
        record, _ = decode(bytes.fromhex(value))
        tags = b"\x01\x00\x04\x00\x00\x00\x05" if record.api_key == 0 else b""
        if tags:
            newer = bytes.fromhex(value)[: -len(tags)] + b"\x02" + tags[1:] + b"\x63\x02\xff\xff"
            assert decode(newer).record == record


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ((0, 2), "unknown frame version of a lifecycle record: frame_version=2"),
        ((1, 3), "unknown lifecycle record: api_key=3"),
        ((2, 2), "unknown version of a lifecycle record: record=.* version=2"),
    ],
)
def test_what_is_unknown_is_refused_by_name(change: tuple[int, int], named: str) -> None:
    for _, value in golden("lifecycle_v1.tsv"):
        damaged = bytearray.fromhex(value)
        damaged[change[0]] = change[1]
        with pytest.raises(InvalidError, match=named):
            decode(bytes(damaged))


def test_an_unknown_state_is_refused_by_name() -> None:
    record = decode(bytes.fromhex(golden("lifecycle_v1.tsv")[2][1])).record
    assert isinstance(record, RemoteLogSegmentMetadataUpdateRecord)
    with pytest.raises(InvalidError, match=r"unknown state.*RemoteLogSegmentMetadataUpdateRecord state=4"):
        decode(encode(dataclasses.replace(record, remote_log_segment_state=4)))


def test_every_shorter_or_longer_value_is_refused() -> None:
    for _, value in golden("lifecycle_v1.tsv"):
        whole = bytes.fromhex(value)
        for end in range(len(whole)):
            with pytest.raises((CorruptError, InvalidError)):
                decode(whole[:end])
        with pytest.raises(CorruptError, match="surplus bytes"):
            decode(whole + b"\x00")


OWNERS = st.builds(TopicIdPartition, name=st.text(max_size=20), id=st.uuids(), partition=st.integers(0, 2**31 - 1))
SEGMENT_IDS = st.builds(RemoteLogSegmentId, topic_id_partition=OWNERS, id=st.uuids())
INT32, INT64 = st.integers(-(2**31), 2**31 - 1), st.integers(-(2**63), 2**63 - 1)
EPOCHS = st.lists(st.builds(SegmentLeaderEpoch, leader_epoch=INT32, offset=INT64), max_size=4).map(tuple)
CUSTOM = st.none() | st.binary(max_size=200)
RECORDS: st.SearchStrategy[LifecycleRecord] = st.one_of(
    st.builds(
        RemoteLogSegmentMetadataRecord,
        remote_log_segment_id=SEGMENT_IDS,
        start_offset=INT64,
        end_offset=INT64,
        broker_id=INT32,
        max_timestamp_ms=INT64,
        event_timestamp_ms=INT64,
        segment_leader_epochs=EPOCHS,
        segment_size_in_bytes=INT32,
        custom_metadata=CUSTOM,
        remote_log_segment_state=st.integers(0, 3),
        broker_leader_epoch=INT32,
    ),
    st.builds(
        RemoteLogSegmentMetadataUpdateRecord,
        remote_log_segment_id=SEGMENT_IDS,
        broker_id=INT32,
        event_timestamp_ms=INT64,
        custom_metadata=CUSTOM,
        remote_log_segment_state=st.integers(0, 3),
        broker_leader_epoch=INT32,
        end_offset=INT64,
    ),
    st.builds(
        RemotePartitionDeleteMetadataRecord,
        topic_id_partition=OWNERS,
        broker_id=INT32,
        event_timestamp_ms=INT64,
        remote_partition_delete_state=st.integers(0, 2),
        broker_leader_epoch=INT32,
        end_offset=INT64,
    ),
)


@given(RECORDS)
def test_a_record_reads_back(record: LifecycleRecord) -> None:
    assert decode(encode(record)) == (record, 1)


@given(st.binary(max_size=120))
def test_any_bytes_are_a_record_or_refused(value: bytes) -> None:
    for start in (b"", b"\x01\x00\x01", b"\x01\x01\x00", b"\x01\x02\x01"):
        try:
            decode(start + value)
        except (CorruptError, InvalidError):
            continue


@kafka
def test_kafka_places_partitions_as_the_golden_file_says() -> None:
    lines = golden("metadata_partitions.tsv")
    assert ask_kafka("partition", [f"{topic} {partition}" for topic, partition, _ in lines]) == [n for *_, n in lines]


@pytest.mark.parametrize(("topic", "partition", "number"), golden("metadata_partitions.tsv"))
def test_partitions_are_placed_as_kafka_places_them(topic: str, partition: str, number: str) -> None:
    key = parse_key(f"{topic}:{partition}")
    assert isinstance(key, RemotePartitionKey)
    assert metadata_partition(*key) == int(number) < METADATA_PARTITIONS


def test_a_number_out_of_range_is_refused() -> None:
    owner = TopicIdPartition(name="t", id=uuid.UUID(int=1), partition=0)
    record = RemotePartitionDeleteMetadataRecord(
        topic_id_partition=owner, broker_id=2**31, event_timestamp_ms=0, remote_partition_delete_state=1
    )
    with pytest.raises(InvalidError, match="RemotePartitionDeleteMetadataRecord"):
        encode(record)
    assert RemoteSegmentKey(owner.id, 0, 5, 1).of_partition == key_of(dataclasses.replace(record, broker_id=1))
