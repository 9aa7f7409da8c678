"""The client's own codecs against the agents': what the one writes, the other reads."""

from __future__ import annotations

import struct
import uuid

import pytest
from kio.schema.errors import ErrorCode
from kio.schema.metadata.v13.response import MetadataResponseBroker, MetadataResponsePartition, MetadataResponseTopic

from headrace.client.fetching import FetchedPartition, TopicPositions, decode_fetch_response, encode_fetch_request
from headrace.client.messages import decode_metadata_response, encode_metadata_request
from headrace.client.sending import ProducedBatch, decode_produce_response, encode_produce_request
from headrace.protocol.errors import INVALID_PARTITION_METADATA
from headrace.protocol.fetch_codec import (
    AbortedTransaction,
    FetchPartitionReply,
    FetchReply,
    FetchTopicReply,
    decode_fetch,
    encode_fetch_response,
)
from headrace.protocol.partition_counts import TopicCounts, asks_for_counts, counts_of_topic, with_counts
from headrace.protocol.produce_codec import (
    ProducePartitionReply,
    ProduceReply,
    ProduceTopicReply,
    RecordError,
    decode_produce,
    encode_produce_response,
)
from headrace.protocol.request import ClientConnection, Request
from headrace.protocol.typed import decode, schema

TOPIC_ID = uuid.UUID(int=7)
_HEADER_BYTES = 5


def _body(buffers: list[bytes | memoryview]) -> memoryview:
    return memoryview(b"".join(buffers))[_HEADER_BYTES:]


@pytest.mark.requirement("P5", "P10")
def test_produce() -> None:
    body = encode_produce_request("t", 3, b"batch", 13, 1_000)
    request = decode_produce(memoryview(body), 12)
    (topic,) = request.topics
    assert (request.acks, request.timeout_ms, topic.name, topic.partition_count) == (-1, 1_000, "t", 13)
    assert [(each.index, bytes(each.records or b"")) for each in topic.partitions] == [(3, b"batch")]
    row = ProducePartitionReply(3, INVALID_PARTITION_METADATA, 9, 8, 7, [RecordError(1, "why")], "all of it")
    reply = ProduceReply([ProduceTopicReply("t", None, [row])])
    assert decode_produce_response(_body(encode_produce_response(5, 12, reply))) == ProducedBatch(
        INVALID_PARTITION_METADATA, 9, 8, "all of it"
    )


@pytest.mark.requirement("P5", "P10")
def test_fetch() -> None:
    topics = [TopicPositions(TOPIC_ID, 13, [(3, 50), (4, 60)])]
    body = encode_fetch_request(topics, max_wait_ms=1, max_bytes=2, partition_bytes=3)
    request = decode_fetch(memoryview(body), 13)
    (topic,) = request.topics
    assert (topic.topic_id, request.max_wait_ms, request.max_bytes, request.session_epoch) == (TOPIC_ID, 1, 2, -1)
    found = [(each.index, each.fetch_offset, each.max_bytes, each.partition_count) for each in topic.partitions]
    assert found == [(3, 50, 3, 13), (4, 60, 3, 13)]
    rows = [
        FetchPartitionReply(3, 0, 70, 70, 40, [b"some", b"records"], [AbortedTransaction(1, 2)]),
        FetchPartitionReply(4, INVALID_PARTITION_METADATA),
    ]
    reply = FetchReply([FetchTopicReply(None, TOPIC_ID, rows)])
    code, answers = decode_fetch_response(_body(encode_fetch_response(5, 13, reply)))
    assert code == 0
    assert answers == [
        FetchedPartition(TOPIC_ID, 3, 0, 70, 40, memoryview(b"somerecords")),
        FetchedPartition(TOPIC_ID, 4, INVALID_PARTITION_METADATA, -1, -1, memoryview(b"")),
    ]


@pytest.mark.requirement("P5", "P10")
def test_metadata() -> None:
    body = encode_metadata_request(["t", "gone"])
    request = Request(ClientConnection(1, "test"), 3, 12, 5, "test", memoryview(body), 0.0)
    _, asked = decode(request)
    assert ([topic.name for topic in asked.topics], asked.allow_auto_topic_creation) == (["t", "gone"], False)
    assert asks_for_counts(request.body)
    counts = TopicCounts(TOPIC_ID, 2, 5, (6,), True, True)
    found = decode_metadata_response(memoryview(with_counts(_metadata(), [counts_of_topic(counts)])))
    assert found.nodes == {1: ("agent", 9092)}
    assert found.errors == {"gone": ErrorCode.unknown_topic_or_partition}
    assert found.topics.keys() == {"t"}
    assert found.topics["t"].counts == counts
    assert (found.topics["t"].leaders, found.topics["t"].leader_epochs) == ({0: 1, 6: -1}, {0: 4, 6: 5})
    assert found.has_counts
    assert not decode_metadata_response(memoryview(_metadata())).has_counts


def _metadata() -> bytes:
    answer = schema(3, 12)
    rows = [
        answer.make(
            MetadataResponsePartition,
            error_code=ErrorCode.none,
            partition_index=index,
            leader_id=leader,
            leader_epoch=epoch,
            replica_nodes=(1, 2),
            isr_nodes=(1,),
            offline_replicas=(2,),
        )
        for index, leader, epoch in [(0, 1, 4), (6, -1, 5)]
    ]
    topics = [
        answer.make(
            MetadataResponseTopic,
            error_code=code,
            name=name,
            topic_id=topic_id,
            is_internal=False,
            partitions=tuple(partitions),
            topic_authorized_operations=-(1 << 31),
        )
        for name, topic_id, code, partitions in [
            ("t", TOPIC_ID, ErrorCode.none, rows),
            ("gone", None, ErrorCode.unknown_topic_or_partition, []),
        ]
    ]
    entity = answer.response(
        brokers=(answer.make(MetadataResponseBroker, node_id=1, host="agent", port=9092, rack="zone"),),
        cluster_id="cluster",
        controller_id=1,
        topics=tuple(topics),
    )
    header, body = answer.encode(5, entity)
    assert struct.unpack_from(">i", header) == (5,)
    return bytes(body)
