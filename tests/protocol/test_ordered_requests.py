"""Partition counts as tagged fields, and the two private requests: what is written is read, and noise is refused."""

from __future__ import annotations

import contextlib
import struct
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.protocol import wire
from headrace.protocol.fetch_codec import decode_fetch
from headrace.protocol.ordered_requests import (
    GroupPositionRequest,
    GroupPositionResponse,
    PartitionEpochs,
    PartitionPosition,
    decode_epochs_request,
    decode_epochs_response,
    decode_position_request,
    decode_position_response,
    encode_epochs_request,
    encode_epochs_response,
    encode_position_request,
    encode_position_response,
)
from headrace.protocol.partition_counts import (
    COUNT_ASKED,
    COUNT_TAG,
    NO_COUNT,
    TopicCounts,
    asks_for_counts,
    count_tags,
    counts_of_topic,
    read_counts,
    with_counts,
)
from headrace.protocol.produce_codec import decode_produce
from headrace.storage.errors import InvalidError

INDEX = st.integers(0, 2**31 - 1)
NAME = st.text(min_size=1, max_size=20)
EPOCH = st.integers(-1, 2**31 - 1)
POSITIONS = st.lists(st.builds(PartitionPosition, INDEX, st.booleans(), st.integers(-1, 2**63 - 1)), max_size=4)
EPOCHS = st.lists(
    st.builds(PartitionEpochs, INDEX, st.integers(-1, 99), EPOCH, EPOCH, EPOCH, st.dictionaries(INDEX, INDEX)),
    max_size=4,
)
COUNTS = st.builds(
    TopicCounts, st.uuids(), INDEX, INDEX, st.lists(INDEX, max_size=4).map(tuple), st.booleans(), st.booleans()
)


@pytest.mark.requirement("P5")
@given(NAME, INDEX, NAME, st.dictionaries(NAME, POSITIONS, max_size=3), st.integers(-1, 99))
def test_positions_are_read_as_they_were_written(
    group: str, generation: int, member: str, topics: dict[str, list[PartitionPosition]], code: int
) -> None:
    asked = GroupPositionRequest(group, generation, member, topics)
    assert decode_position_request(memoryview(encode_position_request(asked))) == asked
    answer = GroupPositionResponse(code, topics)
    assert decode_position_response(memoryview(encode_position_response(answer))) == answer


@pytest.mark.requirement("P5")
@given(st.dictionaries(NAME, st.lists(INDEX, max_size=4), max_size=3), st.dictionaries(NAME, EPOCHS, max_size=3))
def test_epochs_are_read_as_they_were_written(
    asked: dict[str, list[int]], answer: dict[str, list[PartitionEpochs]]
) -> None:
    assert decode_epochs_request(memoryview(encode_epochs_request(asked))) == asked
    assert decode_epochs_response(memoryview(encode_epochs_response(answer))) == answer


@pytest.mark.requirement("P5")
def test_the_requests_have_the_bytes_of_the_description() -> None:
    asked = GroupPositionRequest("g", 7, "m", {"t": [PartitionPosition(3, True, -1)]})
    fields = struct.pack(">h1sih1sih1sii?q", 1, b"g", 7, 1, b"m", 1, 1, b"t", 1, 3, True, -1)
    assert encode_position_request(asked) == fields
    answer = {"t": [PartitionEpochs(9, 0, 1, 4, 5, {0: 2, 1: 5})]}
    fields = struct.pack(">iih1sii", 0, 1, 1, b"t", 1, 9) + struct.pack(">hiiiiiiii", 0, 1, 4, 5, 2, 0, 2, 1, 5)
    assert encode_epochs_response(answer) == fields


@given(st.binary(max_size=60))
def test_noise_is_refused_or_read(noise: bytes) -> None:
    body = memoryview(noise)
    for decode in (decode_position_request, decode_position_response, decode_epochs_request, decode_epochs_response):
        with contextlib.suppress(InvalidError):
            decode(body)
    with contextlib.suppress(*wire.MALFORMED):
        read_counts(body)


def test_more_elements_than_a_request_may_have_are_refused() -> None:
    body = memoryview(encode_epochs_request({"t": list(range(50))}))
    assert decode_epochs_request(body, 50) == {"t": list(range(50))}
    with pytest.raises(InvalidError, match="too many"):
        decode_epochs_request(body, 49)


@pytest.mark.requirement("P5")
@given(st.lists(COUNTS, max_size=3, unique_by=lambda topic: topic.topic_id), st.binary(max_size=9))
def test_counts_follow_a_metadata_response(topics: list[TopicCounts], fields: bytes) -> None:
    body = with_counts(fields + wire.EMPTY_TAGS, [counts_of_topic(topic) for topic in topics])
    assert body.startswith(fields)
    tags, end = wire.read_tags(memoryview(body), len(fields))
    assert end == len(body)
    assert read_counts(tags[COUNT_TAG]) == {topic.topic_id: topic for topic in topics}


def test_only_a_request_with_the_tagged_field_asks_for_counts() -> None:
    flags = b"\1\1"
    assert asks_for_counts(memoryview(flags + COUNT_ASKED))
    assert not asks_for_counts(memoryview(flags + wire.EMPTY_TAGS))


@pytest.mark.requirement("P5")
def test_a_topic_in_produce_and_fetch_carries_the_count() -> None:
    produced = {tags: decode_produce(memoryview(_produce(tags)), 9) for tags in (count_tags(13), wire.EMPTY_TAGS)}
    assert [request.topics[0].partition_count for request in produced.values()] == [13, NO_COUNT]
    fetched = {tags: decode_fetch(memoryview(_fetch(tags)), 13) for tags in (count_tags(13), wire.EMPTY_TAGS)}
    counts = [[p.partition_count for p in request.topics[0].partitions] for request in fetched.values()]
    assert counts == [[13, 13], [NO_COUNT, NO_COUNT]]


@pytest.mark.parametrize("value", [b"", b"\0\0\0\0", b"\xff\xff\xff\xff", b"\0\0\0\0\0\0\0\1"])
def test_a_count_that_is_none_is_refused(value: bytes) -> None:
    with pytest.raises(InvalidError):
        decode_produce(memoryview(_produce(wire.tags({COUNT_TAG: value}))), 9)
    with pytest.raises(InvalidError):
        decode_fetch(memoryview(_fetch(wire.tags({COUNT_TAG: value}))), 13)


def _produce(topic_tags: bytes) -> bytes:
    partition = struct.pack(">i", 3) + b"\x03ab" + b"\0"
    return b"\0" + struct.pack(">hi", -1, 1000) + b"\x02" + b"\x02t" + b"\x02" + partition + topic_tags + b"\0"


def _fetch(topic_tags: bytes) -> bytes:
    partitions = b"".join(struct.pack(">iiqiqi", index, -1, 0, -1, -1, 100) + b"\0" for index in (3, 4))
    topic = uuid.UUID(int=1).bytes + b"\x03" + partitions + topic_tags
    return struct.pack(">iiiibii", -1, 0, 1, 100, 0, 0, -1) + b"\x02" + topic + b"\x01" + b"\x01" + b"\0"
