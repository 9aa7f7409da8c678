"""Calls of the zone cache over real sockets and the real listener: pipelined, large, cut off, refused."""

from __future__ import annotations

import asyncio
import dataclasses
import random
import uuid
from collections.abc import AsyncIterator

import pytest
from prometheus_client import CollectorRegistry

from headrace.agent.apis.dispatch import Dispatcher
from headrace.agent.fetch.zone_cache.shared import CONNECTIONS, Fallback, Peers, ZoneCacheMetrics
from headrace.agent.listener.host import Limits
from headrace.agent.listener.server import KafkaListener
from headrace.agent.peers.channel import ZONE_CACHE, ZONE_CACHE_KEY
from headrace.agent.peers.connection import PeerTerms, open_connection
from headrace.metastore.api.agents import Listener
from headrace.metastore.log.image import AgentImage
from headrace.storage.clock import SystemClock
from headrace.storage.errors import UnavailableError
from headrace.storage.file_id import object_key
from headrace.storage.segment.file_range import FileRange
from tests.agent.fetch.fetch_world import FaultyStore
from tests.agent.fetch.zone_cache.zone_world import SECRET, Member, Zone

FILE = uuid.UUID(int=7)
DATA = random.Random(7).randbytes(3_000_000)
NOW_MS = 1_700_000_000_000
LIMITS = Limits(1 << 20, 1 << 26, 64, 100, 60_000)


class Owner:
    """An agent that serves chunks on a port."""

    def __init__(self) -> None:
        self.zone = Zone(["a", "a"])
        self.member: Member = self.zone.members[2]
        self.store: FaultyStore = self.zone.store
        dispatcher = Dispatcher()
        dispatcher.register_unadvertised(ZONE_CACHE_KEY, self.member.zone_cache.handle)
        self.listener = KafkaListener(dispatcher.handle, LIMITS, SystemClock(), CollectorRegistry())

    async def start(self) -> AgentImage:
        await self.store.put(object_key(FILE), DATA)
        port = await self.listener.start("127.0.0.1", 0)
        return AgentImage(2, 1, uuid.UUID(int=2), "127.0.0.1", port, "a", False)


@pytest.fixture
async def owner() -> AsyncIterator[Owner]:
    owner = Owner()
    yield owner
    await owner.listener.drain(0)


def _peers(timeout_ms: int = 60_000, secret: bytes = SECRET) -> tuple[Peers, CollectorRegistry]:
    registry = CollectorRegistry()
    metrics = ZoneCacheMetrics(registry)
    return Peers(PeerTerms(secret, lambda: 1, lambda: NOW_MS), SystemClock(), metrics, timeout_ms=timeout_ms), registry


def _parts(rng: random.Random, count: int) -> list[FileRange]:
    chunks = [rng.randrange(len(DATA) // 1000) * 1000 for _ in range(count)]
    return [FileRange(FILE, chunk + 10, chunk + rng.randrange(11, 1000), len(DATA)) for chunk in chunks]


async def test_calls_side_by_side_get_each_their_own_bytes(owner: Owner) -> None:
    agent, rng = await owner.start(), random.Random(1)
    peers, _ = _peers()
    asked = [_parts(rng, rng.randrange(1, 60)) for _ in range(80)]
    for parts, answers in zip(asked, await asyncio.gather(*(peers.ask(agent, p) for p in asked)), strict=True):
        assert [bytes(a) for a in answers if isinstance(a, memoryview)] == [DATA[p.start : p.end] for p in parts]
    assert len(owner.listener._host.connections) <= CONNECTIONS
    again = await peers.ask(agent, _parts(rng, 5))
    assert all(isinstance(answer, memoryview) for answer in again)
    peers.close()


async def test_an_agent_is_asked_at_its_listener_for_agents(owner: Owner) -> None:
    found, rng = await owner.start(), random.Random(2)
    private = Listener("INTERNAL", found.host, found.port, 0)
    agent = dataclasses.replace(
        found, host="lb.invalid", port=1, listeners=(Listener("PLAINTEXT", "lb.invalid", 1, 0), private)
    )
    metrics = ZoneCacheMetrics(CollectorRegistry())
    peers = Peers(PeerTerms(SECRET, lambda: 1, lambda: NOW_MS, private.name), SystemClock(), metrics, timeout_ms=60_000)
    assert all(isinstance(answer, memoryview) for answer in await peers.ask(agent, _parts(rng, 5)))
    peers.close()


async def test_calls_one_after_another_keep_one_connection(owner: Owner) -> None:
    agent, rng = await owner.start(), random.Random(2)
    peers, _ = _peers()
    for _ in range(20):
        await peers.ask(agent, _parts(rng, 3))
    assert len(owner.listener._host.connections) == 1
    peers.close()


async def test_an_answer_of_many_megabytes(owner: Owner) -> None:
    agent = await owner.start()
    peers, _ = _peers()
    parts = [FileRange(FILE, start, start + 1000, len(DATA)) for start in range(0, len(DATA), 1000)]
    answers = await peers.ask(agent, parts)
    assert b"".join(bytes(a) for a in answers if isinstance(a, memoryview)) == DATA
    peers.close()


async def test_an_owner_that_crashes_during_a_call_is_noticed_at_once(owner: Owner) -> None:
    agent = await owner.start()
    peers, _ = _peers()
    reached = asyncio.Event()

    async def hang(_: str) -> None:
        reached.set()
        await asyncio.Event().wait()

    owner.store.before_get = hang
    calls = [asyncio.ensure_future(peers.ask(agent, [FileRange(FILE, n * 1000, n * 1000 + 9, 0)])) for n in range(3)]
    await reached.wait()
    for connection in list(owner.listener._host.connections):
        connection.abort()
    assert await asyncio.gather(*calls) == [[Fallback.DOWN]] * 3


async def test_an_owner_that_is_not_reachable(owner: Owner) -> None:
    agent = await owner.start()
    await owner.listener.drain(0)
    peers, _ = _peers()
    assert await peers.ask(agent, [FileRange(FILE, 0, 9, 0)]) == [Fallback.DOWN]
    with pytest.raises(UnavailableError):
        await open_connection(ZONE_CACHE, agent.host, agent.port)


async def test_a_wrong_secret_ends_the_connection(owner: Owner) -> None:
    agent = await owner.start()
    peers, _ = _peers(secret=b"?" * 32)
    assert await peers.ask(agent, [FileRange(FILE, 0, 9, 0)]) == [Fallback.DOWN]
    assert owner.store.gets == []


async def test_no_more_connections_than_allowed_and_no_more_bytes_awaited_than_bounded(owner: Owner) -> None:
    agent = await owner.start()
    peers, registry = _peers()
    gate = asyncio.Event()
    reached: asyncio.Queue[str] = asyncio.Queue()

    async def hold(key: str) -> None:
        reached.put_nowait(key)
        await gate.wait()

    owner.store.before_get = hold
    calls = []
    for number in range(3 * CONNECTIONS):
        calls.append(asyncio.ensure_future(peers.ask(agent, [FileRange(FILE, number * 1000, number * 1000 + 9, 0)])))
        await reached.get()
    assert len(owner.listener._host.connections) == CONNECTIONS
    too_much = [FileRange(FILE, 0, 64 * 1024 * 1024, 0)]
    assert await peers.ask(agent, too_much) == [Fallback.BUSY]
    gate.set()
    assert all(isinstance(answers[0], memoryview) for answers in await asyncio.gather(*calls))
    assert registry.get_sample_value("headrace_zone_cache_rpcs_total", {"direction": "sent"}) == 3 * CONNECTIONS
    peers.close()
