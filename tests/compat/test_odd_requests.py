"""Odd requests that no client sends, on Apache Kafka and on an agent: what differs is in docs/start/COMPATIBILITY.md.

The same bytes go to both. An agent's answers are checked in `make test`, Kafka's in `make test-all`.
"""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from kio.schema.errors import ErrorCode
from kio.schema.find_coordinator.v4.request import FindCoordinatorRequest
from kio.schema.find_coordinator.v4.response import FindCoordinatorResponse
from kio.schema.init_producer_id.v4.request import InitProducerIdRequest
from kio.schema.init_producer_id.v4.response import InitProducerIdResponse
from kio.schema.list_offsets.v7 import request as list_offsets
from kio.schema.list_offsets.v7.response import ListOffsetsResponse
from kio.schema.offset_commit.v8 import request as offset_commit
from kio.schema.offset_commit.v8.response import OffsetCommitResponse
from kio.schema.produce.v9 import request as produce
from kio.schema.produce.v9.response import ProduceResponse

from headrace.protocol.client.transport import ClientConfig, ask, client_config
from headrace.storage.records.codec import Record, encode_batch
from headrace.storage.records.header import CONTROL_BIT, CRC_START, batch_crc
from load.dev_server import DevServer
from tests.compat.kafka_server import kafka_server

PAGE = Path(__file__).parents[2] / "docs" / "start" / "COMPATIBILITY.md"
ATTRIBUTES_AT = 21
SECONDS_MAX = 300
LATEST, LARGEST_TIMESTAMP = -1, -3
NOT_YET = {
    ErrorCode.coordinator_not_available,
    ErrorCode.coordinator_load_in_progress,
    ErrorCode.leader_not_available,
    ErrorCode.not_coordinator,
    ErrorCode.not_leader_or_follower,
    ErrorCode.unknown_topic_or_partition,
}
HOUR_MS = 3_600_000
NONE = ErrorCode.none


def a_batch(**more: Any) -> bytes:
    """One record."""
    return encode_batch([Record(more.get("base_offset", 0), 1_000, b"k", b"v")], **{"base_offset": 0} | more)


def as_control(batch: bytes) -> bytes:
    """The batch as one that only brokers write."""
    changed = bytearray(batch)
    changed[ATTRIBUTES_AT : ATTRIBUTES_AT + 2] = CONTROL_BIT.to_bytes(2, "big")
    changed[CRC_START - 4 : CRC_START] = batch_crc(memoryview(changed)).to_bytes(4, "big")
    return bytes(changed)


class Odd(NamedTuple):
    """The batch, its topic's message.timestamp.type, what each answers, and the row of the page if these differ."""

    batch: bytes
    timestamps: str
    kafka: ErrorCode
    headrace: ErrorCode
    row: str = ""


ODD = {
    "log append time": Odd(
        a_batch(log_append_time=True), "CreateTime", NONE, ErrorCode.invalid_timestamp, "the attribute LogAppendTime"
    ),
    "log append time, there": Odd(
        a_batch(log_append_time=True), "LogAppendTime", ErrorCode.invalid_timestamp, ErrorCode.invalid_timestamp
    ),
    "delete horizon": Odd(
        a_batch(delete_horizon_ms=1_000), "CreateTime", NONE, ErrorCode.invalid_record, "a delete horizon (KIP-534)"
    ),
    "base offset": Odd(a_batch(base_offset=7), "CreateTime", ErrorCode.invalid_record, ErrorCode.invalid_record),
    "epoch -1": Odd(
        a_batch(producer_id=77, producer_epoch=-1, base_sequence=0),
        "CreateTime",
        NONE,
        ErrorCode.invalid_record,
        "a producer id and epoch -1",
    ),
    "epoch and sequence -1": Odd(
        a_batch(producer_id=78), "CreateTime", ErrorCode.invalid_record, ErrorCode.invalid_record
    ),
    "producer id -2": Odd(
        a_batch(producer_id=-2, producer_epoch=0, base_sequence=0),
        "CreateTime",
        NONE,
        ErrorCode.invalid_record,
        "a producer id below -1",
    ),
    "control": Odd(as_control(a_batch()), "CreateTime", ErrorCode.invalid_record, ErrorCode.invalid_record),
}


class Server(NamedTuple):
    """One of the two."""

    name: str
    config: ClientConfig
    bootstrap: str

    def ask(self, request: Any, response_type: type[Any], code_of: Callable[[Any], ErrorCode]) -> Any:
        """The first answer that says something of the request."""
        until = time.monotonic() + SECONDS_MAX
        while code_of(answer := ask(self.config, request, response_type)) in NOT_YET:
            assert time.monotonic() < until, answer
        return answer

    def topic(self, timestamps: str) -> str:
        """A topic of one partition with this message.timestamp.type."""
        name = f"odd-{timestamps}"
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        (created,) = admin.create_topics([NewTopic(name, 1, 1, config={"message.timestamp.type": timestamps})]).values()
        error = created.exception(SECONDS_MAX)
        assert error is None or error.args[0].code() == confluent_kafka.KafkaError.TOPIC_ALREADY_EXISTS
        return name

    def produce(self, topic: str, batch: bytes) -> ErrorCode:
        """Return what it says of the batch."""
        partition = produce.PartitionProduceData(index=0, records=batch)  # type: ignore[arg-type]
        request = produce.ProduceRequest(
            acks=-1,  # type: ignore[arg-type]
            timeout=datetime.timedelta(seconds=30),  # type: ignore[arg-type]
            topic_data=(produce.TopicProduceData(name=topic, partition_data=(partition,)),),  # type: ignore[arg-type]
        )
        answer = self.ask(request, ProduceResponse, lambda a: a.responses[0].partition_responses[0].error_code)
        return ErrorCode(answer.responses[0].partition_responses[0].error_code)

    def offset_at(self, topic: str, timestamp: int) -> int:
        """Return what ListOffsets finds."""
        partition = list_offsets.ListOffsetsPartition(partition_index=0, timestamp=timestamp)  # type: ignore[arg-type]
        request = list_offsets.ListOffsetsRequest(
            replica_id=-1,  # type: ignore[arg-type]
            isolation_level=0,  # type: ignore[arg-type]
            topics=(list_offsets.ListOffsetsTopic(name=topic, partitions=(partition,)),),  # type: ignore[arg-type]
        )
        answer = self.ask(request, ListOffsetsResponse, lambda a: a.topics[0].partitions[0].error_code)
        assert answer.topics[0].partitions[0].error_code == NONE
        return int(answer.topics[0].partitions[0].offset)


@pytest.fixture(
    scope="module",
    params=["headrace", pytest.param("kafka", marks=[pytest.mark.needs("kafka"), pytest.mark.slow])],
)
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    if request.param == "kafka":
        with kafka_server(tmp_path_factory.mktemp("kafka")) as bootstrap:
            yield Server("kafka", client_config(bootstrap, None), bootstrap)
    else:
        agent: DevServer = request.getfixturevalue("one_agent")
        yield Server("headrace", client_config(agent.bootstrap, None), agent.bootstrap)


@pytest.mark.parametrize("name", ODD)
def test_an_odd_batch(server: Server, name: str) -> None:
    odd = ODD[name]
    expected = odd.kafka if server.name == "kafka" else odd.headrace
    assert server.produce(server.topic(odd.timestamps), odd.batch) is expected


def test_what_differs_is_listed() -> None:
    rows = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| a batch of Produce")]
    for odd in ODD.values():
        assert (odd.kafka is odd.headrace) == (not odd.row)
        assert not odd.row or any(odd.row in row and odd.headrace.name.upper() in row for row in rows), odd.row


def test_ids_with_the_character_nul(server: Server) -> None:
    is_kafka = server.name == "kafka"
    partition = offset_commit.OffsetCommitRequestPartition(
        partition_index=0,  # type: ignore[arg-type]
        committed_offset=0,  # type: ignore[arg-type]
        committed_metadata="",
    )
    topics = (offset_commit.OffsetCommitRequestTopic(name=server.topic("CreateTime"), partitions=(partition,)),)  # type: ignore[arg-type]
    for key_type in (0, 1):  # Kafka makes the topics of coordinators when it is asked for one
        found = FindCoordinatorRequest(key_type=key_type, coordinator_keys=("a\0b",))  # type: ignore[arg-type]
        server.ask(found, FindCoordinatorResponse, lambda a: a.coordinators[0].error_code)
    commit = offset_commit.OffsetCommitRequest(group_id="a\0b", member_id="", topics=topics)  # type: ignore[arg-type]
    answer = server.ask(commit, OffsetCommitResponse, lambda a: a.topics[0].partitions[0].error_code)
    assert answer.topics[0].partitions[0].error_code is (NONE if is_kafka else ErrorCode.invalid_group_id)
    begin = InitProducerIdRequest(
        transactional_id="a\0b",  # type: ignore[arg-type]
        transaction_timeout=datetime.timedelta(seconds=60),  # type: ignore[arg-type]
    )
    answer = server.ask(begin, InitProducerIdResponse, lambda a: a.error_code)
    assert answer.error_code is (NONE if is_kafka else ErrorCode.invalid_request)
    page = PAGE.read_text(encoding="utf-8")
    assert (
        "| a group id or a transactional id with the character NUL | taken | `INVALID_GROUP_ID`, `INVALID_REQUEST`"
        in page
    )


def test_look_ups_by_time_behind_a_marker(server: Server) -> None:
    """A record of an hour ago, and the end of its transaction now."""
    topic = server.topic("CreateTime")
    producer = confluent_kafka.Producer({"bootstrap.servers": server.bootstrap, "transactional.id": "markers"})
    producer.init_transactions(SECONDS_MAX)
    producer.begin_transaction()
    offsets: list[int | None] = []
    now_ms = time.time_ns() // 1_000_000
    producer.produce(
        topic, b"v", partition=0, timestamp=now_ms - HOUR_MS, on_delivery=lambda _, sent: offsets.append(sent.offset())
    )
    producer.commit_transaction(SECONDS_MAX)
    (record,) = offsets
    assert record is not None
    until = time.monotonic() + SECONDS_MAX
    while server.offset_at(topic, LATEST) < record + 2:  # Kafka answers before the marker is there
        assert time.monotonic() < until
    found = [server.offset_at(topic, LARGEST_TIMESTAMP), server.offset_at(topic, now_ms - HOUR_MS // 2)]
    assert found == ([record + 1] * 2 if server.name == "kafka" else [record, -1])
    assert server.offset_at(topic, now_ms - HOUR_MS) == record
    assert "| ListOffsets by time, and for the largest timestamp (-3) |" in PAGE.read_text(encoding="utf-8")
