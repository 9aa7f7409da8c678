"""The Produce codec, compared with kio in every version, and with malformed bytes."""

from __future__ import annotations

import datetime
import struct
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.protocol.produce_codec import (
    FIRST_BY_ID,
    FIRST_FLEXIBLE,
    ProducePartitionReply,
    ProduceReply,
    ProduceRequest,
    ProduceTopicReply,
    RecordError,
    decode_produce,
    encode_produce_response,
    refuse,
)
from headrace.protocol.typed import schema
from headrace.protocol.wire import NULL_UUID, LeaderHint, NodeEndpoint
from headrace.storage.errors import InvalidError
from tests.protocol.client_vectors import vectors, with_flipped_bits
from tests.protocol.codec_views import endpoints, kio_produce_view, milliseconds, produce_view
from tests.protocol.kio_entities import INT32, INT64, TEXT, entities, kio_read, kio_read_header, kio_write
from tests.seeds import examples

VERSIONS = range(3, 14)


@pytest.mark.parametrize("version", VERSIONS)
@settings(max_examples=examples(20))
@given(st.data())
def test_requests_decode_as_kio_wrote_them(version: int, data: st.DataObject) -> None:
    theirs = data.draw(entities(schema(0, version).request_type))
    ours = decode_produce(memoryview(kio_write(theirs)), version)
    assert produce_view(ours) == kio_produce_view(theirs)


def test_records_are_windows_into_the_frame() -> None:
    vector = next(v for v in vectors() if v.api_key == 0 and v.version == 9)
    frame = bytearray(vector.body)
    records = decode_produce(memoryview(frame), 9).topics[0].partitions[0].records
    assert records is not None
    assert records.obj is frame


def test_a_topics_tagged_fields_are_offered() -> None:
    body = b"\0" + struct.pack(">hi", -1, 1000) + b"\x02" + b"\x02t" + b"\x01" + b"\x01\x05\x04" + b"1234" + b"\0"
    (topic,) = decode_produce(memoryview(body), 9).topics
    assert {tag: bytes(value) for tag, value in topic.tags.items()} == {5: b"1234"}


def test_tags_of_a_partition_are_skipped() -> None:
    partition = struct.pack(">i", 3) + b"\x03ab" + b"\x01\x07\x01x"
    body = b"\0" + struct.pack(">hi", -1, 1000) + b"\x02" + b"\x02t" + b"\x03" + partition * 2 + b"\0" + b"\0"
    (topic,) = decode_produce(memoryview(body), 9).topics
    assert [(p.index, bytes(p.records or b"")) for p in topic.partitions] == [(3, b"ab"), (3, b"ab")]


@pytest.mark.parametrize("version", [0, 1, 2])
def test_old_versions_are_read_so_that_they_can_be_refused(version: int) -> None:
    body = struct.pack(">hi", 1, 500) + struct.pack(">ih1sii", 1, 1, b"t", 1, 7) + struct.pack(">i3s", 3, b"old")
    request = decode_produce(memoryview(body), version)
    assert produce_view(request) == (None, 1, 500, [("t", None, [(7, b"old")])])
    (answer,) = encode_produce_response(9, version, refuse(request, 35))
    expected = struct.pack(">iih1siihq", 9, 1, 1, b"t", 1, 7, 35, -1)
    expected += struct.pack(">q", -1) if version >= 2 else b""
    expected += struct.pack(">i", 0) if version >= 1 else b""
    assert bytes(answer) == expected


LYING = [
    pytest.param(3, b"\x7f\xff", id="transactional id longer than the frame"),
    pytest.param(3, b"\xff\xfe", id="negative length"),
    pytest.param(3, b"\xff\xff\0\1\0\0\0\0\x7f\xff\xff\xff", id="2^31-1 topics"),
    pytest.param(3, b"\xff\xff\0\1\0\0\0\0\xff\xff\xff\xff", id="null topics"),
    pytest.param(9, b"\0\0\1\0\0\0\0\xff\xff\xff\xff\x0f", id="2^32-2 topics"),
    pytest.param(9, b"\0\0\1\0\0\0\0\xff\xff\xff\xff\xff", id="varint without end"),
    pytest.param(9, b"\0\0\1\0\0\0\0\x02\x02t\x02\0\0\0\0\xff\xff\xff\xff\x0f", id="4 GiB of records"),
    pytest.param(9, b"\0\0\1\0\0\0\0\x02\x02t\x02\0\0\0\0\x03ab", id="nothing behind the records"),
    pytest.param(9, b"\0\0\1\0\0\0\0\x02\x02t\x01\xff\xff\xff\xff\x0f", id="2^32-1 tags"),
    pytest.param(9, b"\0\0\1\0\0\0\0\x02\x02t\x01\x01\x07\xff\xff\xff\xff\x0f\0", id="4 GiB of tag"),
    pytest.param(9, b"\0\0\1\0\0\0\0\x02\x02\xff\x01\0\0", id="name that is not utf-8"),
    pytest.param(9, b"\0\0\1\0\0\0\0\x01\0more", id="bytes left over"),
    pytest.param(13, b"\0\0\1\0\0\0\0\x02" + bytes(15), id="half a topic id"),
    pytest.param(13, b"", id="nothing"),
]


@pytest.mark.parametrize(("version", "body"), LYING)
def test_a_false_length_is_refused(version: int, body: bytes) -> None:
    with pytest.raises(InvalidError, match=f"malformed request: api=produce version={version}"):
        decode_produce(memoryview(body), version)


def test_records_that_pass_the_end_are_named() -> None:
    body = b"\0\0\1\0\0\0\0\x02\x02t\x02\0\0\0\x09\x80\x01ab"
    with pytest.raises(InvalidError, match="records exceed the request: partition=9 size=127"):
        decode_produce(memoryview(body), 9)


@settings(max_examples=examples(300))
@given(st.integers(0, 13), st.binary(max_size=200))
def test_noise_is_refused_or_read(version: int, noise: bytes) -> None:
    _decode_or_refuse(noise, version)


@settings(max_examples=examples(300))
@given(st.sampled_from([v for v in vectors() if v.api_key == 0]), st.data())
def test_flipped_bits_are_refused_or_read(vector: Any, data: st.DataObject) -> None:
    _decode_or_refuse(with_flipped_bits(vector, data), vector.version)


def _decode_or_refuse(body: bytes, version: int) -> None:
    """Check that what is read never amounts to more than was there."""
    try:
        request = decode_produce(memoryview(body), version)
    except InvalidError:
        return
    held = sum(len(p.records or b"") for topic in request.topics for p in topic.partitions)
    assert held + sum(1 + len(topic.partitions) for topic in request.topics) <= len(body)


HINTS = st.none() | st.builds(LeaderHint, INT32, INT32)
PARTITIONS = st.builds(
    ProducePartitionReply,
    index=INT32,
    error_code=st.integers(-1, 120),
    base_offset=INT64,
    log_append_time_ms=st.integers(-1, 4 * 10**12),
    log_start_offset=INT64,
    record_errors=st.lists(st.builds(RecordError, INT32, st.none() | TEXT), max_size=2),
    error_message=st.none() | TEXT,
    current_leader=HINTS,
)
REPLIES = st.builds(
    ProduceReply,
    topics=st.lists(st.builds(ProduceTopicReply, TEXT, st.uuids(), st.lists(PARTITIONS, max_size=3)), max_size=3),
    throttle_time_ms=st.integers(0, 2**31 - 1),
    node_endpoints=st.lists(st.builds(NodeEndpoint, INT32, TEXT, INT32, st.none() | TEXT), max_size=2),
)


@pytest.mark.parametrize("version", VERSIONS)
@settings(max_examples=examples(30))
@given(correlation_id=INT32, reply=REPLIES)
def test_responses_are_what_kio_reads(version: int, correlation_id: int, reply: ProduceReply) -> None:
    data = b"".join(encode_produce_response(correlation_id, version, reply))
    header, start = kio_read_header(data, version >= FIRST_FLEXIBLE)
    assert header.correlation_id == correlation_id
    theirs = kio_read(schema(0, version).response_type, data[start:])
    assert milliseconds(theirs.throttle_time) == reply.throttle_time_ms
    assert len(theirs.responses) == len(reply.topics)
    for topic, their_topic in zip(reply.topics, theirs.responses, strict=True):
        if version >= FIRST_BY_ID:
            assert (their_topic.topic_id or NULL_UUID) == topic.topic_id
        else:
            assert their_topic.name == topic.name
        assert [_fields(p, p.log_append_time_ms, "message", version) for p in topic.partitions] == [
            _fields(p, _epoch_ms(p.log_append_time), "batch_index_error_message", version)
            for p in their_topic.partition_responses
        ]
    if version >= 10:
        assert endpoints(theirs) == endpoints(reply)


def _fields(p: Any, append_time_ms: int, message: str, version: int) -> list[Any]:
    """What the version has of a partition, ours or kio's. `message`: how the text of a record's error is named."""
    fields: list[Any] = [p.index, p.error_code, p.base_offset, append_time_ms]
    if version >= 5:
        fields.append(p.log_start_offset)
    if version >= 8:
        fields += [[(e.batch_index, getattr(e, message)) for e in p.record_errors], p.error_message]
    if version >= 10:
        hint = p.current_leader or LeaderHint()
        fields.append((hint.leader_id, hint.leader_epoch))
    return fields


def _epoch_ms(time: datetime.datetime | None) -> int:
    return -1 if time is None else round(time.timestamp() * 1000)


def test_refuse_names_every_partition() -> None:
    vector = next(v for v in vectors() if v.api_key == 0 and v.version == 13)
    request: ProduceRequest = decode_produce(vector.body, 13)
    (topic,) = refuse(request, 29, "no").topics
    assert topic.topic_id == request.topics[0].topic_id
    assert [(p.index, p.error_code, p.base_offset, p.error_message) for p in topic.partitions] == [(0, 29, -1, "no")]
