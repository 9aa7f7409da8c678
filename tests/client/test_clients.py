"""The producer and consumer on a real agent: bad input, ends, and where a group begins."""

from __future__ import annotations

import asyncio

import pytest
from confluent_kafka import Producer

from headrace.client import ClientSettings, OrderedConsumer, OrderedProducer, RebalanceListener
from headrace.client.listeners import Partitions
from headrace.storage.errors import InvalidError, NotFoundError, UnavailableError
from headrace.storage.records.compression import Codec
from load.dev_server import DevServer
from tests.forked_cluster import shared_cluster
from tests.growth.__main__ import SETTINGS, alter_count

server = shared_cluster(settings={**SETTINGS, "linger.ms": 25, "auto.create.topics.enable": "false"})


@pytest.fixture
def client(server: DevServer) -> ClientSettings:
    return ClientSettings(server.bootstrap.split(","), retry_backoff_ms=20)


async def read(consumer: OrderedConsumer, count: int) -> list[bytes | None]:
    """The values of the next records."""
    values: list[bytes | None] = []
    while len(values) < count:
        values += [record.value for record in await consumer.getmany(timeout_ms=1_000)]
    return values


@pytest.mark.requirement("P1", "P10")
async def test_keys_are_where_the_java_producer_puts_them(server: DevServer, client: ClientSettings) -> None:
    """librdkafka has the same partitioner."""
    await server.create_topic("placed", 5)
    theirs: dict[bytes, int] = {}
    producer = Producer({"bootstrap.servers": server.bootstrap, "partitioner": "murmur2_random"})
    keys = [b"key-%d" % number for number in range(30)]
    for key in keys:
        producer.produce("placed", b"v", key, on_delivery=lambda _, m: theirs.update({m.key(): m.partition()}))
    await asyncio.to_thread(producer.flush)
    async with OrderedProducer(client) as ours:
        assert {key: (await ours.send_and_wait("placed", b"v", key)).partition for key in keys} == theirs


@pytest.mark.requirement("P10")
@pytest.mark.parametrize("codec", Codec)
async def test_records_come_as_they_were_sent(server: DevServer, client: ClientSettings, codec: Codec) -> None:
    topic = f"codec-{codec.name}"
    await server.create_topic(topic, 3)
    headers = [("name", b"value"), ("null", None)]
    async with OrderedProducer(client, codec=codec) as producer:
        futures = [await producer.send(topic, b"%d" % i, None if i % 3 else b"k", headers, i) for i in range(50)]
        stored = await asyncio.gather(*futures)
    consumer = OrderedConsumer(client, topic)
    consumer.subscribe([topic])
    async with consumer:
        found = []
        while len(found) < 50:
            found.append(await consumer.getone())
    assert {(each.partition, each.offset) for each in found} == {(each.partition, each.offset) for each in stored}
    for each in found:
        number = int(each.value or b"")
        assert (each.timestamp, each.headers, each.key) == (number, headers, None if number % 3 else b"k")


async def test_what_cannot_be_done_is_an_error(server: DevServer, client: ClientSettings) -> None:
    await server.create_topic("small", 1, {"max.message.bytes": "1000"})
    async with OrderedProducer(client, metadata_tries=2) as producer:
        with pytest.raises(NotFoundError):
            await producer.send("no-such-topic", b"v")
        with pytest.raises(InvalidError, match="code=10"):
            await producer.send_and_wait("small", b"v" * 2_000, b"k")
        assert (await producer.send_and_wait("small", b"v", b"k")).offset == 0  # its sequence numbers are free
    consumer = OrderedConsumer(client, "g")
    consumer.subscribe(["no-such-topic"])
    with pytest.raises(NotFoundError):
        await consumer.start()
    refused = OrderedConsumer(client, "g", assignor="no-such-assignor")
    refused.subscribe(["small"])
    async with refused:
        with pytest.raises(InvalidError, match="unsupported_assignor"):
            await refused.getone()
    with pytest.raises(UnavailableError):
        await OrderedProducer(ClientSettings(["127.0.0.1:1"])).start()


async def test_a_producer_that_stops_at_once_fails_what_is_left(server: DevServer, client: ClientSettings) -> None:
    await server.create_topic("left", 1)
    producer = OrderedProducer(client, linger_ms=60_000)
    await producer.start()
    future = await producer.send("left", b"v")
    await producer.stop(flush=False)
    with pytest.raises(UnavailableError, match="stopped"):
        await future


class Rebalances(RebalanceListener):
    """Remembers what came and went."""

    def __init__(self) -> None:
        self.assigned: set[int] = set()
        self.revoked: list[set[int]] = []

    async def on_partitions_assigned(self, partitions: Partitions) -> None:
        self.assigned |= {index for _, index in partitions}

    async def on_partitions_revoked(self, partitions: Partitions) -> None:
        self.revoked.append({index for _, index in partitions})


@pytest.mark.requirement("P10")
async def test_a_group_goes_on_at_its_commits(server: DevServer, client: ClientSettings) -> None:
    await server.create_topic("committed", 2)
    async with OrderedProducer(client) as producer:
        await asyncio.gather(*[await producer.send("committed", b"%d" % i, b"%d" % i) for i in range(20)])
    listener = Rebalances()
    first = OrderedConsumer(client, "commits")
    first.subscribe(["committed"], listener)
    async with first:
        assert sorted(await read(first, 20)) == sorted(b"%d" % i for i in range(20))
        assert first.assignment() == {("committed", 0), ("committed", 1)}
        await first.commit()
    assert (listener.assigned, listener.revoked) == ({0, 1}, [{0, 1}])
    async with OrderedProducer(client) as producer:
        await producer.send_and_wait("committed", b"later", b"1")
    second = OrderedConsumer(client, "commits", enable_auto_commit=False)
    second.subscribe(["committed"])
    async with second:
        assert await read(second, 1) == [b"later"]


@pytest.mark.requirement("P6", "P10")
async def test_latest_begins_at_the_end_but_reads_what_was_split_off_later(
    server: DevServer, client: ClientSettings
) -> None:
    await server.create_topic("latest", 1)
    async with OrderedProducer(client) as producer:
        await producer.send_and_wait("latest", b"before", b"k")
        consumer = OrderedConsumer(client, "latest", auto_offset_reset="latest", heartbeat_interval_ms=100)
        consumer.subscribe(["latest"])
        async with consumer:
            while consumer.position(("latest", 0)) is None:
                assert await consumer.getmany(timeout_ms=100) == []
            assert consumer.position(("latest", 0)) == 1
            await consumer.commit()
            await asyncio.to_thread(alter_count, server.bootstrap, "latest", 2)
            keys = [b"%d" % number for number in range(8)]
            stored = [await producer.send_and_wait("latest", b"after", key) for key in keys]
            assert {each.partition for each in stored} == {0, 1}
            assert await read(consumer, 8) == [b"after"] * 8
