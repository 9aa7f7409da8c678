"""Our producers and consumers on real agents and a real Postgres while a topic grows, shrinks, and grows again."""

from __future__ import annotations

import asyncio
import os
import signal
import uuid
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer, ConsumerRecord, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, RecordsToDelete
from kio.schema.errors import ErrorCode

from headrace.client import ClientSettings, OrderedConsumer, OrderedProducer
from headrace.client.cluster import ClientCluster
from headrace.client.fetching import FetchedPartition, TopicPositions, decode_fetch_response, encode_fetch_request
from headrace.client.messages import Frame, OrderedTopic
from headrace.client.offsets import MOVED_HEADER
from headrace.client.sending import ProducedBatch, decode_produce_response, encode_produce_request
from headrace.metastore.partitions.placement import key_hash, place
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.errors import INVALID_PARTITION_METADATA
from headrace.protocol.ordered_requests import LEADER_EPOCHS_KEY, decode_epochs_response, encode_epochs_request
from load.dev_server import DevServer
from tests.agent_process import SECONDS_MAX
from tests.forked_cluster import shared_cluster
from tests.growth.__main__ import SETTINGS, alter_count
from tests.growth.checks import Delivered, check_events
from tests.growth.ordered_run import OrderedRun
from tests.storage.batches import plain_batch

server = shared_cluster(agents=2, settings={**SETTINGS, "linger.ms": 25})


def a_run(server: DevServer, topic: str, **more: int) -> OrderedRun:
    wanted = {"producers": 2, "members": 2, "keys": 30, "rate": 300, "heartbeat_interval_ms": 200, **more}
    return OrderedRun(server.bootstrap, topic, **wanted)


@pytest.mark.requirement("P1", "P4", "P5", "P6", "P7", "P10", "P11")
async def test_the_order_of_each_key_is_kept_from_8_to_13_to_9(server: DevServer) -> None:
    """And the callbacks come in KIP-253's order, every key continues at each count, and marked partitions are
    spread.
    """
    await server.create_topic("t", 8)
    async with a_run(server, "t") as run:
        await run.until_all_go_on()
        for count in (13, 9):
            await asyncio.to_thread(alter_count, server.bootstrap, "t", count)
            await run.until_all_go_on()
        await run.until(lambda: spread(run, range(9)) == [4, 5] and spread(run, range(9, 13)) == [2, 2])
        await run.finish()
    assert_ordered(run)
    assert set(run.by_partition) == set(range(13))


@pytest.mark.requirement("P4", "P5")
async def test_requests_that_name_another_count_are_refused(server: DevServer) -> None:
    """Over a socket, each request in the bytes of docs/understand/ORDERED_REQUESTS.md."""
    await server.create_topic("counted", 2)
    await asyncio.to_thread(alter_count, server.bootstrap, "counted", 3)
    cluster = ClientCluster(ClientSettings(server.bootstrap.split(",")))
    batch = plain_batch(1)
    try:
        topic = await until_described(cluster, "counted", 3)
        node_id = cluster.leader("counted", 0)
        produced = [await produce(cluster, node_id, batch, count) for count in (2, 3, 4, 3)]
        fetched = [await fetch(cluster, node_id, topic.counts.topic_id, count) for count in (2, 3, 4)]
        body = encode_epochs_request({"counted": [0, 1, 2, 3]})
        answer = await cluster.send(node_id, Frame(LEADER_EPOCHS_KEY, 0, body, flexible=False))
    finally:
        await cluster.close()
    wrong = INVALID_PARTITION_METADATA
    assert [(each.error_code, each.base_offset) for each in produced] == [(wrong, -1), (0, 0), (wrong, -1), (0, 1)]
    assert [(each.error_code, len(each.records)) for each in fetched] == [(wrong, 0), (0, 2 * len(batch)), (wrong, 0)]
    epochs = {each.partition: each for each in decode_epochs_response(answer)["counted"]}
    assert {index: each.error_code for index, each in epochs.items()} == {
        0: 0,
        1: 0,
        2: 0,
        3: ErrorCode.unknown_topic_or_partition,
    }
    assert [(each.source, each.after_creation) for each in epochs.values()][:3] == [(-1, -1), (-1, -1), (0, 0)]


@pytest.mark.slow
@pytest.mark.requirement("P3", "P6", "P11")
async def test_partitions_that_return_keep_the_order(server: DevServer) -> None:
    """Marked partitions are removed when DeleteRecords has emptied them, and their indexes are used again."""
    await server.create_topic("back", 3)
    async with a_run(server, "back", keys=20) as run:
        await run.until_all_go_on()
        for count in (5, 3):
            await asyncio.to_thread(alter_count, server.bootstrap, "back", count)
            await run.until_all_go_on()
        await empty(server, "back", (3, 4))
        await run.until(
            lambda: set().union(*(each.assignment() for each in run.consumers)) == {("back", i) for i in range(3)}
        )
        await asyncio.to_thread(alter_count, server.bootstrap, "back", 5)
        returned = len(run.events)
        await run.until_all_go_on()
        await run.finish()
    assert_ordered(run)
    read_again = {event.partition[1] for event in run.events[returned:] if isinstance(event, Delivered)}
    assert read_again == set(range(5))


@pytest.mark.requirement("P8")
async def test_without_ordered_delivery_no_member_waits_and_nothing_is_lost(server: DevServer) -> None:
    await server.create_topic("free", 4, {"enable.ordered.delivery": "false"})
    async with a_run(server, "free") as run:
        await run.until_all_go_on()
        for count in (7, 5):
            await asyncio.to_thread(alter_count, server.bootstrap, "free", count)
            await run.until_all_go_on()
        await run.finish()
    assert all(isinstance(event, Delivered) for event in run.events)
    assert set(run.by_partition) == set(range(7))
    numbers: dict[bytes, list[int]] = {}
    for event in run.events:
        assert isinstance(event, Delivered)
        numbers.setdefault(event.key, []).append(event.number)
    assert {key: sorted(found) for key, found in numbers.items()} == {
        key: list(range(1, count + 1)) for key, count in run.sent.items()
    }


@pytest.mark.requirement("P9")
async def test_old_values_of_a_compacted_topic_are_replaced_by_nulls_that_our_consumer_hides(server: DevServer) -> None:
    """Ordinary consumers see them. Once the source was emptied, no more of them are sent."""
    await server.create_topic("facts", 2, {"cleanup.policy": "compact,delete"})
    keys = [b"key-%d" % number for number in range(12)]
    settings = ClientSettings(server.bootstrap.split(","))
    async with OrderedProducer(settings) as producer:
        await asyncio.gather(*[await producer.send("facts", b"old", key) for key in keys])
        await asyncio.to_thread(alter_count, server.bootstrap, "facts", 3)
        for value in (b"new", b"newer"):
            await asyncio.gather(*[await producer.send("facts", value, key) for key in keys])
    moved = [key for key in keys if place(key_hash(key), 2, 3) == 2]
    assert moved
    stored = await read_all(server, "facts")
    nulls = [(record.partition, record.key) for record in stored if record.value is None]
    assert sorted(nulls) == sorted((0, key) for key in moved)
    assert all(record.headers == ((MOVED_HEADER, b""),) for record in stored if record.value is None)
    newest = {record.key: record.value for record in stored if record.partition == 2}
    assert newest == dict.fromkeys(moved, b"newer")

    consumer = OrderedConsumer(settings, "facts", heartbeat_interval_ms=200)
    consumer.subscribe(["facts"])
    found: list[tuple[bytes | None, bytes | None]] = []
    async with consumer:
        while len(found) < 3 * len(keys):
            found += [(record.key, record.value) for record in await consumer.getmany(timeout_ms=500)]
    assert all([value for each, value in found if each == key] == [b"old", b"new", b"newer"] for key in keys)

    await empty(server, "facts", (0,))
    async with OrderedProducer(settings) as producer:
        await asyncio.gather(*[await producer.send("facts", b"newest", key) for key in keys])
    assert not [record for record in await read_all(server, "facts") if record.value is None]


async def until_described(cluster: ClientCluster, topic: str, count: int) -> OrderedTopic:
    """Wait until it is described by the agent that is asked."""
    async with asyncio.timeout(SECONDS_MAX):
        while True:
            found = (await cluster.refresh([topic])).get(topic)
            if found is not None and found.counts.undeleted == count:
                return found
            await asyncio.sleep(0.05)


async def produce(cluster: ClientCluster, node_id: int, batch: bytes, count: int) -> ProducedBatch:
    body = encode_produce_request("counted", 0, batch, count, 10_000)
    return decode_produce_response(await cluster.send(node_id, Frame(ApiKey.PRODUCE, 12, body, flexible=True)))


async def fetch(cluster: ClientCluster, node_id: int, topic_id: uuid.UUID, count: int) -> FetchedPartition:
    wanted = TopicPositions(topic_id, count, [(0, 0)])
    body = encode_fetch_request([wanted], max_wait_ms=10_000, max_bytes=1 << 20, partition_bytes=1 << 20)
    frame = Frame(ApiKey.FETCH, 13, body, flexible=True)
    _, (found,) = decode_fetch_response(await cluster.send(node_id, frame))
    return found


def spread(run: OrderedRun, partitions: range) -> list[int]:
    """Return how many of these each member has."""
    return sorted(sum(index in partitions for _, index in each.assignment()) for each in run.consumers)


def assert_ordered(run: OrderedRun) -> None:
    report = check_events(run.events, run.sent)
    assert (report.out_of_order, report.without_callbacks, report.missing) == ([], [], {})
    assert report.moves > 10


async def empty(server: DevServer, topic: str, partitions: tuple[int, ...]) -> None:
    """DeleteRecords up to the end."""
    admin = AIOKafkaAdminClient(bootstrap_servers=server.bootstrap)
    await admin.start()
    try:
        await admin.delete_records({TopicPartition(topic, index): RecordsToDelete(-1) for index in partitions})
    finally:
        await admin.close()


async def read_all(server: DevServer, topic: str) -> list[ConsumerRecord[bytes, bytes]]:
    """The same as an ordinary consumer."""
    consumer = AIOKafkaConsumer(bootstrap_servers=server.bootstrap, auto_offset_reset="earliest")
    await consumer.start()
    try:
        partitions = [TopicPartition(topic, index) for index in range(3)]
        consumer.assign(partitions)
        ends = await consumer.end_offsets(partitions)
        await consumer.seek_to_beginning()
        found = []
        while any([await consumer.position(each) < ends[each] for each in partitions]):
            for records in (await consumer.getmany(timeout_ms=200)).values():
                found += records
        return found
    finally:
        await consumer.stop()


@pytest.mark.slow
@pytest.mark.requirement("P6", "P11")
async def test_the_order_is_kept_when_the_coordinator_is_killed(tmp_path: Path) -> None:
    """Positions are reported to the next one, which knows none; batches under way are sent again."""
    settings = {**SETTINGS, "linger.ms": 25, "broker.session.timeout.ms": 3_000, "broker.heartbeat.interval.ms": 500}
    with DevServer(tmp_path / "data", agents=2, settings=settings) as server:
        await server.create_topic("t", 4)
        async with a_run(server, "t") as run:
            await run.until_all_go_on()
            await asyncio.to_thread(alter_count, server.bootstrap, "t", 7)
            node_id = await run.consumers[0].coordinator()
            os.kill(next(agent.pid for agent in server.agents if agent.node_id == node_id), signal.SIGKILL)
            await run.until_all_go_on()
            left = next(agent.kafka for agent in server.agents if agent.node_id != node_id)
            await asyncio.to_thread(alter_count, left, "t", 5)
            await run.until_all_go_on()
            await run.finish()
    assert_ordered(run)
