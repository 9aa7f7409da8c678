"""A listener that throttles: what is counted, what the answer says, and when the connection is read again."""

from __future__ import annotations

import asyncio
import random
import struct
from collections.abc import Mapping

import pytest
from prometheus_client import CollectorRegistry

from headrace.agent.access.quotas import enforcement
from headrace.agent.access.quotas.enforcement import QuotaEnforcer, QuotaMetrics
from headrace.agent.access.quotas.limits import BucketKey
from headrace.agent.access.quotas.service import REPORT_CHARACTERS, QuotaExchange, Use, decode_report, encode_report
from headrace.agent.listener.connection_limits import Muting
from headrace.config.memory_budget import REMEMBERED_BYTES
from headrace.metastore.log.image import MetadataImage
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.request import ANONYMOUS, Request, Response
from headrace.storage.errors import UnavailableError
from tests.agent.access.quotas.test_limits import entity
from tests.agent.client_calls import a_request
from tests.agent.listener.listener_client import Client, Listening, frame, limits, listening, until
from tests.manual_clock import ManualClock
from tests.patch import Patch

MIB = 1024 * 1024
PRODUCE, FETCH = int(ApiKey.PRODUCE), int(ApiKey.FETCH)


def image(values: Mapping[str, float], **names: str | None) -> MetadataImage:
    return MetadataImage(quotas={entity(**names): values} if values else {})


class World:
    """An enforcer, and a listener that it may be set on."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock, self.registry = clock, CollectorRegistry()
        self.metrics = QuotaMetrics(self.registry)
        self.active: list[QuotaEnforcer | None] = []
        self.enforcer = QuotaEnforcer(clock, self.metrics, self.active.append)
        self.started: list[float] = []
        self.answer_bytes = 0

    async def handle(self, request: Request) -> Response:
        self.started.append(self.clock.monotonic())
        zero = bytes(4)
        return Response([request.correlation_id.to_bytes(4, "big"), zero + bytes(self.answer_bytes)])

    def limit(self, server: Listening, values: Mapping[str, float], **names: str | None) -> None:
        self.enforcer.on_image(image(values, **names))
        server.listener.limit_clients(self.active[-1])


@pytest.fixture
def world(fake_clock: ManualClock) -> World:
    return World(fake_clock)


def sized(number: int, size: int, api_key: int = PRODUCE, version: int = 7) -> bytes:
    """A frame of `size` bytes without its length."""
    empty = len(frame(number, api_key=api_key, version=version)) - 4
    return frame(number, bytes(size - empty), api_key=api_key, version=version)


async def answered(world: World, client: Client) -> tuple[int, int]:
    """(correlation id, throttle_time_ms) of a Produce reply: its last four bytes."""
    number, body = await world.clock.run(client.reply())
    return number, struct.unpack(">i", body[-4:])[0]


@pytest.mark.requirement("X2")
async def test_a_producer_is_answered_at_once_and_then_muted(world: World) -> None:
    async with listening(world.handle, limits(), world.clock) as server:
        world.limit(server, {"producer_byte_rate": 1000.0}, **{"client-id": None})
        client = await server.connect()
        began = world.clock.monotonic()
        await client.send(*(sized(number, 1500) for number in range(3)))
        assert await answered(world, client) == (0, 500)
        assert world.started == [began]
        assert (await answered(world, client))[0] == 1
        assert (await answered(world, client))[0] == 2
        gaps = [later - earlier for earlier, later in zip(world.started, world.started[1:], strict=False)]
        assert gaps == [pytest.approx(0.5), pytest.approx(1.5)]
        labels = {"quota": "producer_byte_rate"}
        assert world.registry.get_sample_value("headrace_quota_throttled_total", labels) == 3


@pytest.mark.requirement("X2")
async def test_a_consumer_pays_for_what_it_got(world: World) -> None:
    world.answer_bytes = 3000 - 8
    async with listening(world.handle, limits(), world.clock) as server:
        world.limit(server, {"consumer_byte_rate": 1000.0}, user=None)
        client = await server.connect()
        await client.send(sized(1, 100, FETCH, 4))
        number, body = await world.clock.run(client.reply())
        assert (number, struct.unpack(">i", body[:4])[0]) == (1, 2000)
        await client.send(sized(2, 100, FETCH, 4))
        await world.clock.run(client.reply())
        assert world.started[1] - world.started[0] == pytest.approx(2.0)


async def test_other_clients_are_not_held_up(world: World) -> None:
    async with listening(world.handle, limits(), world.clock) as server:
        world.limit(server, {"producer_byte_rate": 1.0}, user="nobody-here")
        client = await server.connect()
        await client.send(*(sized(number, MIB) for number in range(3)))
        assert [await answered(world, client) for _ in range(3)] == [(0, 0), (1, 0), (2, 0)]


@pytest.mark.requirement("X2")
async def test_a_muted_client_goes_on_when_its_quota_is_raised_or_removed(world: World) -> None:
    async with listening(world.handle, limits(), world.clock) as server:
        world.limit(server, {"producer_byte_rate": 1.0}, user=None)
        client = await server.connect()
        await client.send(sized(1, 10_000), sized(2, 10_000))
        assert (await answered(world, client))[1] == 9_999_000
        world.limit(server, {"producer_byte_rate": 1e9}, user=None)
        await answered(world, client)
        assert world.started[1] - world.started[0] <= 2.0
        world.limit(server, {})
        assert world.active[-1] is None


async def test_a_muted_client_that_leaves_is_forgotten(world: World) -> None:
    async with listening(world.handle, limits(), world.clock) as server:
        world.limit(server, {"producer_byte_rate": 1.0}, user=None)
        client = await server.connect()
        await client.send(sized(1, 10_000))
        await answered(world, client)
        await client.close()
        world.limit(server, {})
        await world.clock.advance(2.0)
        await until(lambda: not server.listener._host.connections)
        assert not server.listener._host.muted


@pytest.mark.requirement("X2")
async def test_a_connection_that_is_never_muted_would_be_found(world: World, patch: Patch) -> None:
    """A planted bug."""
    patch.replace(Muting, "begin", lambda self, use, seconds: None)
    with pytest.raises(AssertionError):
        await test_a_producer_is_answered_at_once_and_then_muted(world)


async def test_time_on_the_event_loop_is_counted_and_time_of_waiting_is_not(world: World) -> None:
    async def work(request: Request) -> Response:
        world.clock.jump(0.25)
        await asyncio.sleep(0)
        world.clock.jump(0.25)
        await world.clock.sleep(60.0)
        return await World.handle(world, request)

    async with listening(work, limits(), world.clock) as server:
        world.limit(server, {"request_percentage": 10.0}, user=None)
        client = await server.connect()
        await client.send(frame(1, api_key=ApiKey.LIST_OFFSETS, version=2))
        _, body = await world.clock.run(client.reply())
        assert struct.unpack(">i", body[:4])[0] == 0, "it was paid while the request waited"
        buckets = dict(world.enforcer.buckets())
        assert buckets[BucketKey("request_percentage", "ANONYMOUS", None)].used == pytest.approx(50.0)


def test_agents_and_logins_have_no_quota(world: World) -> None:
    world.enforcer.on_image(image({"request_percentage": 1.0}, user=None))
    link = a_request(ApiKey.METADATA, 12, b"")
    link.connection.is_link = True
    assert world.enforcer.arrived(link, 10) is None
    assert world.enforcer.arrived(a_request(ApiKey.SASL_AUTHENTICATE, 2, b""), 10) is None
    assert world.enforcer.arrived(a_request(31_000, 0, b""), 10) is None
    assert world.enforcer.arrived(a_request(ApiKey.METADATA, 12, b""), 10) is not None


def test_the_user_is_the_principals_name(world: World) -> None:
    world.enforcer.on_image(image({"producer_byte_rate": 10.0}, user="alice:x"))
    request = a_request(PRODUCE, 9, b"")
    assert world.enforcer.arrived(request, 10) is None
    request.connection.principal = "User:alice:x"
    assert world.enforcer.arrived(request, 10) is not None
    assert ANONYMOUS == "User:ANONYMOUS"


@pytest.mark.requirement("X7")
def test_long_names_share_one_bucket_and_fill_no_report(world: World) -> None:
    world.enforcer.on_image(image({"producer_byte_rate": 10.0}, **{"client-id": None}))
    for number in range(2_000):
        world.enforcer.arrived(a_request(PRODUCE, 9, b"", client_id=f"{number}".ljust(32_000, "x")), 1_000)
        assert world.enforcer.in_use_bytes <= REMEMBERED_BYTES["quota_clients"]
    buckets = dict(world.enforcer.buckets())
    shared = BucketKey("producer_byte_rate", None, None)
    assert len(buckets) < 200
    assert shared in buckets
    uses = {key: Use(bucket.generation, float(number), False) for number, (key, bucket) in enumerate(buckets.items())}
    report = encode_report(uses)
    assert len(report) <= REPORT_CHARACTERS
    assert 0 < len(decode_report(report)) < len(uses)


def test_many_names_share_one_bucket(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names are free: a client that invents them must not use memory without bound."""
    monkeypatch.setattr(enforcement, "BUCKETS_MAX", 10)
    world.enforcer.on_image(image({"producer_byte_rate": 10.0}, **{"client-id": None}))
    for number in range(100):
        world.enforcer.arrived(a_request(PRODUCE, 9, b"", client_id=f"app-{number}"), 1_000)
    assert len(dict(world.enforcer.buckets())) == 11
    world.clock.jump(10_000)
    world.enforcer.drop_full_buckets()
    assert not dict(world.enforcer.buckets())


@pytest.mark.requirement("X2")
async def test_connections_of_an_address_are_limited(world: World) -> None:
    async with listening(world.handle, limits(), world.clock) as server:
        world.enforcer.on_image(image({"connection_creation_rate": 2.0}, ip="127.0.0.1"))
        assert world.active == [None], "requests are not asked about"
        server.listener.limit_connections(world.enforcer.may_connect)
        clients = [await server.connect() for _ in range(3)]
        await clients[0].send(sized(1, 100))
        await answered(world, clients[0])
        assert await clients[2].ended() == b""
        assert server.metric("headrace_kafka_connections_closed_total", reason="too_fast_of_address") == 1
        world.clock.jump(1.0)
        clients.append(await server.connect())
        await clients[3].send(sized(1, 100))
        await answered(world, clients[3])
        for client in clients:
            await client.close()


@pytest.mark.requirement("X2")
async def test_agents_hear_of_each_other_through_postgres(metastore: PostgresMetastore, world: World) -> None:
    """Two enforcers on the real table: what one agent used is a debt at the other."""
    other = World(world.clock)
    rng = random.Random(1)
    exchanges = []
    for node_id, each in enumerate((world, other)):
        each.enforcer.on_image(image({"producer_byte_rate": 100.0}, user=None))
        exchanges.append(
            QuotaExchange(each.enforcer, metastore.cluster, lambda n=node_id: n, each.metrics, world.clock, rng)  # type: ignore[misc]
        )
        await exchanges[-1].exchange()
    await exchanges[0].exchange()
    world.enforcer.arrived(a_request(PRODUCE, 9, b""), 1_100)
    await exchanges[0].exchange()
    await exchanges[1].exchange()
    key = BucketKey("producer_byte_rate", "ANONYMOUS", None)
    assert other.enforcer.spend(key, 0.0) == pytest.approx(20.0), "1000 are owed, and it has half"
    stored = await metastore.cluster.exchange_quota_use(7, encode_report({key: Use(1, 2.0, True)}))
    assert decode_report(stored[0])[key].used == 1_100


async def test_without_a_metastore_shares_stay(world: World, caplog: pytest.LogCaptureFixture) -> None:
    class Away:
        async def exchange_quota_use(self, node_id: int, report: str) -> Mapping[int, str]:
            raise UnavailableError("away")

    world.enforcer.on_image(image({"producer_byte_rate": 100.0}, user=None))
    exchange = QuotaExchange(world.enforcer, Away(), lambda: 1, world.metrics, world.clock, random.Random(1))
    await exchange.exchange()
    await exchange.exchange()
    assert world.registry.get_sample_value("headrace_quota_exchange_failures_total") == 2
    assert len(caplog.records) == 1
