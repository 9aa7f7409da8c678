"""The Fetch codec, compared with kio in every version, and with malformed bytes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.protocol.fetch_codec import (
    FIRST_BY_ID,
    FIRST_FLEXIBLE,
    AbortedTransaction,
    DivergingEpoch,
    FetchPartitionReply,
    FetchReply,
    FetchTopicReply,
    decode_fetch,
    encode_fetch_response,
)
from headrace.protocol.typed import schema
from headrace.protocol.wire import NULL_UUID, LeaderHint, NodeEndpoint
from headrace.storage.errors import InvalidError
from tests.protocol.client_vectors import vectors, with_flipped_bits
from tests.protocol.codec_views import endpoints, fetch_view, kio_fetch_view, milliseconds
from tests.protocol.kio_entities import INT32, INT64, TEXT, entities, kio_read, kio_read_header, kio_write
from tests.seeds import examples

VERSIONS = range(4, 19)


@pytest.mark.parametrize("version", VERSIONS)
@settings(max_examples=examples(20))
@given(st.data())
def test_requests_decode_as_kio_wrote_them(version: int, data: st.DataObject) -> None:
    theirs = data.draw(entities(schema(1, version).request_type))
    ours = decode_fetch(memoryview(kio_write(theirs)), version)
    assert fetch_view(ours) == kio_fetch_view(theirs)


LYING = [
    pytest.param(4, bytes(17) + b"\x7f\xff\xff\xff", id="2^31-1 topics"),
    pytest.param(4, bytes(17) + b"\xff\xff\xff\xff", id="null topics"),
    pytest.param(7, bytes(25) + b"\0\0\0\0" + b"\0\0\0\1\0\1t\x7f\xff\xff\xff", id="2^31-1 forgotten partitions"),
    pytest.param(12, bytes(25) + b"\xff\xff\xff\xff\x0f", id="2^32-2 topics"),
    pytest.param(12, bytes(25) + b"\x01\x01\xff\xff\xff\xff\x0f", id="rack id longer than the frame"),
    pytest.param(12, bytes(25) + b"\x01\x01\x01\xff\xff\xff\xff\x0f", id="2^32-1 tags"),
    pytest.param(15, bytes(21) + b"\x01\x01\x01\x01\x01\x02\0\0", id="half a replica state"),
    pytest.param(12, bytes(25) + b"\x01\x01\x01\0more", id="bytes left over"),
    pytest.param(18, b"", id="nothing"),
]


@pytest.mark.parametrize(("version", "body"), LYING)
def test_a_false_length_is_refused(version: int, body: bytes) -> None:
    with pytest.raises(InvalidError, match=f"malformed request: api=fetch version={version}"):
        decode_fetch(memoryview(body), version)


@settings(max_examples=examples(300))
@given(st.integers(4, 18), st.binary(max_size=200))
def test_noise_is_refused_or_read(version: int, noise: bytes) -> None:
    _decode_or_refuse(noise, version)


@settings(max_examples=examples(300))
@given(st.sampled_from([v for v in vectors() if v.api_key == 1]), st.data())
def test_flipped_bits_are_refused_or_read(vector: Any, data: st.DataObject) -> None:
    _decode_or_refuse(with_flipped_bits(vector, data), vector.version)


def _decode_or_refuse(body: bytes, version: int) -> None:
    """Check that what is read never amounts to more than was there."""
    try:
        request = decode_fetch(memoryview(body), version)
    except InvalidError:
        return
    held = sum(1 + len(topic.partitions) for topic in request.topics)
    assert held + sum(1 + len(topic.partitions) for topic in request.forgotten) <= len(body)


PARTITIONS = st.builds(
    FetchPartitionReply,
    index=INT32,
    error_code=st.integers(-1, 120),
    high_watermark=INT64,
    last_stable_offset=INT64,
    log_start_offset=INT64,
    records=st.lists(st.binary(max_size=200).map(lambda data: memoryview(data)) | st.binary(max_size=200), max_size=3),
    aborted_transactions=st.none() | st.lists(st.builds(AbortedTransaction, INT64, INT64), max_size=2),
    preferred_read_replica=INT32,
    diverging_epoch=st.none() | st.builds(DivergingEpoch, INT32, INT64),
    current_leader=st.none() | st.builds(LeaderHint, INT32, INT32),
)
REPLIES = st.builds(
    FetchReply,
    topics=st.lists(st.builds(FetchTopicReply, TEXT, st.uuids(), st.lists(PARTITIONS, max_size=3)), max_size=3),
    error_code=st.integers(-1, 120),
    session_id=INT32,
    throttle_time_ms=st.integers(0, 2**31 - 1),
    node_endpoints=st.lists(st.builds(NodeEndpoint, INT32, TEXT, INT32, st.none() | TEXT), max_size=2),
)


@pytest.mark.parametrize("version", VERSIONS)
@settings(max_examples=examples(30))
@given(correlation_id=INT32, reply=REPLIES)
def test_responses_are_what_kio_reads(version: int, correlation_id: int, reply: FetchReply) -> None:
    data = b"".join(encode_fetch_response(correlation_id, version, reply))
    header, start = kio_read_header(data, version >= FIRST_FLEXIBLE)
    assert header.correlation_id == correlation_id
    theirs = kio_read(schema(1, version).response_type, data[start:])
    assert milliseconds(theirs.throttle_time) == reply.throttle_time_ms
    if version >= 7:
        assert (theirs.error_code, theirs.session_id) == (reply.error_code, reply.session_id)
    for topic, their_topic in zip(reply.topics, theirs.responses, strict=True):
        if version >= FIRST_BY_ID:
            assert (their_topic.topic_id or NULL_UUID) == topic.topic_id
        else:
            assert their_topic.topic == topic.name
        ours = [_fields(p, p.index, b"".join(p.records), version) for p in topic.partitions]
        assert ours == [_fields(p, p.partition_index, p.records, version) for p in their_topic.partitions]
    if version >= 16:
        assert endpoints(theirs) == endpoints(reply)


def _fields(p: Any, index: int, records: bytes, version: int) -> list[Any]:
    """What the version has of a partition, ours or kio's."""
    aborted = p.aborted_transactions
    fields: list[Any] = [index, p.error_code, p.high_watermark, p.last_stable_offset, records]
    fields.append(None if aborted is None else [(t.producer_id, t.first_offset) for t in aborted])
    if version >= 5:
        fields.append(p.log_start_offset)
    if version >= 11:
        fields.append(p.preferred_read_replica)
    if version >= 12:
        end, hint = p.diverging_epoch or DivergingEpoch(-1, -1), p.current_leader or LeaderHint()
        fields += [(end.epoch, end.end_offset), (hint.leader_id, hint.leader_epoch)]
    return fields


@pytest.mark.parametrize("version", VERSIONS)
def test_an_empty_partition_has_records_of_no_length(version: int) -> None:
    """Null makes librdkafka report a protocol error and kafka-python fail with a TypeError."""
    reply = FetchReply([FetchTopicReply("t", NULL_UUID, [FetchPartitionReply(0)])])
    data = b"".join(encode_fetch_response(1, version, reply))
    theirs = kio_read(schema(1, version).response_type, data[5 if version >= FIRST_FLEXIBLE else 4 :])
    assert theirs.responses[0].partitions[0].records == b""


def test_record_buffers_are_sent_as_they_came() -> None:
    first, second = memoryview(b"a" * 100), b"b" * 50
    reply = FetchReply([FetchTopicReply("t", None, [FetchPartitionReply(0, records=[first, second])])])
    buffers = encode_fetch_response(1, 12, reply)
    assert buffers[1] is first
    assert buffers[2] is second
