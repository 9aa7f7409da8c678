"""The metadata log's records: bytes that never change, and what is done with bytes from elsewhere."""

from __future__ import annotations

import types
import typing
import uuid
from dataclasses import fields
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from headrace.metastore.api.cluster import MetadataRecord
from headrace.metastore.log import kip631_records, own_records
from headrace.metastore.log.kip631_records import FenceBrokerRecord, PartitionRecord, TopicRecord
from headrace.metastore.log.records import (
    decode_record,
    encode_plain_partition,
    encode_record,
    plain_partition,
    record_types,
)
from headrace.metastore.log.wire import Reader, Tag, write_uvarint
from headrace.storage.errors import CorruptError, InvalidError
from tests.metastore.log.golden_records import GOLDEN, ID, ID_HEX, OWN_NAMES, SEEDS_NAMES
from tests.seeds import examples


@pytest.mark.requirement("C2")
@pytest.mark.parametrize(("record", "golden"), GOLDEN, ids=lambda value: type(value).__name__)
def test_bytes_are_frozen(record: MetadataRecord, golden: str) -> None:
    data = bytes.fromhex(golden)
    assert encode_record(record).hex() == data.hex()
    assert decode_record(data) == record


@pytest.mark.requirement("C2")
@settings(max_examples=examples(100))
@given(st.deferred(lambda: ANY_RECORD))
def test_a_record_opens_with_its_frame_type_its_number_and_its_version(record: MetadataRecord) -> None:
    """Unsigned varints: 0, the record type, 0, then the payload. The key is null (test_metadata_topic.py)."""
    reader = Reader(encode_record(record))
    assert [reader.uvarint() for _ in range(3)] == [0, record.record_type, 0]
    assert reader.position == 3


@pytest.mark.requirement("C2")
def test_all_fifteen_types_and_our_own_are_there_under_their_numbers() -> None:
    assert [cls.record_type for cls in record_types()] == [*range(15), *range(100, 115)]
    assert [cls.__name__ for cls in record_types()] == [*SEEDS_NAMES, *OWN_NAMES]
    assert {type(record) for record, _ in GOLDEN} == set(record_types())


def _values(python_type: Any) -> st.SearchStrategy[Any]:
    """Any value that a field of this type may hold."""
    if typing.get_origin(python_type) is types.UnionType:
        inner, _ = typing.get_args(python_type)
        return st.none() | _values(inner)
    if typing.get_origin(python_type) is tuple:
        return st.lists(_values(typing.get_args(python_type)[0]), max_size=3).map(tuple)
    if python_type in (*vars(kip631_records).values(), *vars(own_records).values()):
        return _instances(python_type)
    return {
        str: st.text(st.characters(codec="utf-8"), max_size=200),
        bytes: st.binary(max_size=200),
        bool: st.booleans(),
        float: st.floats(allow_nan=False),
        uuid.UUID: st.uuids(),
        int: st.integers(-(2**31), 2**31 - 1),  # inside an array
    }[python_type]


def _numbers(codec: Any) -> st.SearchStrategy[int]:
    form = codec._struct.format[-1]
    bits = {"b": 8, "h": 16, "H": 16, "i": 32, "q": 64}[form]
    return st.integers(0, 2**bits - 1) if form == "H" else st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def _instances(cls: type) -> st.SearchStrategy[Any]:
    hints = typing.get_type_hints(cls, include_extras=True)
    strategies: dict[str, st.SearchStrategy[Any]] = {}
    for field in fields(cls):
        python_type, codec, *_ = typing.get_args(hints[field.name])
        strategies[field.name] = _numbers(codec) if python_type is int else _values(python_type)
    return st.builds(cls, **strategies)


ANY_RECORD = st.sampled_from(record_types()).flatmap(_instances)


@settings(max_examples=examples(300))
@given(ANY_RECORD)
def test_what_was_encoded_is_decoded(record: MetadataRecord) -> None:
    assert decode_record(encode_record(record)) == record


@settings(max_examples=examples(150))
@given(ANY_RECORD, st.data())
def test_a_record_that_is_cut_off_or_has_surplus_bytes_is_corrupt(record: MetadataRecord, data: st.DataObject) -> None:
    whole = encode_record(record)
    cut = data.draw(st.integers(0, len(whole) - 1))
    with pytest.raises(CorruptError):
        decode_record(whole[:cut])
    with pytest.raises(CorruptError, match="surplus"):
        decode_record(whole + b"\x00")


@settings(max_examples=examples(300))
@given(st.binary(max_size=60), st.sampled_from([*range(15), *range(100, 115)]))
def test_any_bytes_give_a_record_or_a_named_error(body: bytes, record_type: int) -> None:
    try:
        record = decode_record(bytes([0, record_type, 0]) + body)
    except CorruptError:
        return
    assert record.record_type == record_type


@pytest.mark.requirement("C2")
@settings(max_examples=examples(200))
@given(st.deferred(lambda: ANY_RECORD), st.integers(0, 200), st.binary(max_size=200))
def test_a_tagged_field_of_a_newer_writer_is_skipped_in_every_type(
    record: MetadataRecord, tag: int, body: bytes
) -> None:
    whole = encode_record(record)
    assume(whole[-1] == 0 and not _has_own_tags(record))  # the last byte counts the tagged fields
    newer = bytearray(whole[:-1])
    for number in (1, tag, len(body)):
        write_uvarint(newer, number)
    assert decode_record(bytes(newer) + body) == record


def _has_own_tags(record: MetadataRecord) -> bool:
    """Return whether the record's own tagged fields were written."""
    hints = typing.get_type_hints(type(record), include_extras=True)
    tagged = [f for f in fields(record) if any(isinstance(part, Tag) for part in typing.get_args(hints[f.name]))]  # type: ignore[arg-type]
    return any(getattr(record, field.name) != field.default for field in tagged)


@pytest.mark.requirement("C2")
def test_tagged_fields_of_a_newer_writer_are_skipped() -> None:
    newer = bytes.fromhex(f"000200 04626172 {ID_HEX} 03 05 02 beef 904e 04 00000003 ffff03 00")
    assert decode_record(newer) == TopicRecord(topic_name="bar", topic_id=ID, initial_partition_count=3)


@pytest.mark.requirement("C2")
@pytest.mark.parametrize("cls", record_types())
@pytest.mark.parametrize("version", [1, 2, 300])
def test_an_unknown_version_of_any_type_is_refused_by_name(cls: type[MetadataRecord], version: int) -> None:
    data = bytearray((0, cls.record_type))
    write_uvarint(data, version)
    with pytest.raises(InvalidError, match=f"record={cls.__name__} version={version}"):
        decode_record(bytes(data))


@pytest.mark.requirement("C2")
@pytest.mark.parametrize(
    ("data", "named"),
    [
        ("01 02 00", "frame_type=1"),
        ("00 0f 00", "record_type=15"),
        ("00 ac02 00", "record_type=300"),
        ("00 02 01", "record=TopicRecord version=1"),
    ],
)
def test_unknown_frames_types_and_versions_are_refused_by_name(data: str, named: str) -> None:
    with pytest.raises(InvalidError, match=named):
        decode_record(bytes.fromhex(data))


@pytest.mark.parametrize(
    ("data", "named"),
    [
        (f"000200 00 {ID_HEX} 00", "null"),
        (f"000200 02ff {ID_HEX} 00", "UTF-8"),
        (f"000200 04626172 {ID_HEX} 01 904e 05 0000000300", "wrong size"),
        ("000200 ffffffffff01", "varint"),
        ("000900 00", "ends early"),
    ],
)
def test_corrupt_bytes_are_named(data: str, named: str) -> None:
    with pytest.raises(CorruptError, match=named):
        decode_record(bytes.fromhex(data))


@settings(max_examples=examples(200))
@given(ANY_RECORD)
def test_the_short_way_to_read_a_partition_says_what_the_long_one_says(record: MetadataRecord) -> None:
    short = plain_partition(encode_record(record))
    if isinstance(record, PartitionRecord) and record == _plain(
        record.partition_id, record.topic_id, record.leader_epoch
    ):
        assert short == (record.partition_id, record.topic_id.bytes, record.leader_epoch)
    else:
        assert short is None


@given(st.integers(-(2**31), 2**31 - 1), st.uuids(), st.integers(-(2**31), 2**31 - 1))
def test_the_short_way_to_write_a_partition_writes_the_same_bytes(index: int, topic_id: uuid.UUID, epoch: int) -> None:
    data = encode_record(_plain(index, topic_id, epoch))
    assert encode_plain_partition(index, topic_id.bytes, epoch) == data
    assert plain_partition(data) == (index, topic_id.bytes, epoch)


def _plain(index: int, topic_id: uuid.UUID, epoch: int) -> PartitionRecord:
    """Return the record without replicas, a leader and tagged fields."""
    return PartitionRecord(
        partition_id=index,
        topic_id=topic_id,
        replicas=(),
        isr=(),
        removing_replicas=(),
        adding_replicas=(),
        leader_epoch=epoch,
    )


def test_a_number_that_does_not_fit_is_refused() -> None:
    with pytest.raises(InvalidError, match="FenceBrokerRecord"):
        encode_record(FenceBrokerRecord(broker_id=2**31, broker_epoch=0))
