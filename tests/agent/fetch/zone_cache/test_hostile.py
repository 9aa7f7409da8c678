"""Hostile producers cost the zone's agents no more calls than plain ones: calls follow fetches, not batches."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from dataclasses import replace
from types import MappingProxyType
from typing import NamedTuple

import pytest
from prometheus_client import CollectorRegistry

from headrace.agent.apis.dispatch import Dispatcher
from headrace.agent.cluster.zone import ZoneTraffic
from headrace.agent.fetch.service import FetchService, FetchSurroundings
from headrace.agent.listener.host import Limits
from headrace.agent.listener.server import KafkaListener
from headrace.agent.peers.channel import ZONE_CACHE_KEY
from headrace.metastore.log.image import AgentImage
from headrace.storage.clock import SystemClock
from load.contexts import a_context
from tests.agent.cluster.standing_view import StandingView
from tests.agent.fetch.fetch_world import BROKER_EPOCH, NODE_ID, World
from tests.agent.fetch.zone_cache.zone_world import SECRET
from tests.nouns import nouns
from tests.storage.batches import plain_batch

OWNER = NODE_ID + 1
PARTITIONS = 4
BATCHES = 48
FILES = 40
LIMITS = Limits(1 << 20, 1 << 26, 64, 100, 60_000)


class Cost(NamedTuple):
    """What a load cost the zone: calls and ranges in them, and how many of its files the other agent keeps."""

    calls: int
    ranges: int
    files: int


class TwoAgents:
    """A reader, and the other agent of its zone; neither wrote the files."""

    def __init__(self) -> None:
        self.world = World(seed=3)
        self.registry = CollectorRegistry()

    async def start(self) -> TwoAgents:
        world = self.world
        self.keys = world.create_topic("t", PARTITIONS)
        self.owner_view = StandingView(world.view.commit_shards, node_id=NODE_ID, broker_epoch=BROKER_EPOCH)
        self.owner_view.node_id = OWNER
        self.owner = self._service(self.owner_view, CollectorRegistry())
        self.reader = self._service(world.view, self.registry)
        dispatcher = Dispatcher()
        assert self.owner.zone_cache is not None
        dispatcher.register_unadvertised(ZONE_CACHE_KEY, self.owner.zone_cache.handle)
        self.listener = KafkaListener(dispatcher.handle, LIMITS, SystemClock(), CollectorRegistry())
        port = await self.listener.start("127.0.0.1", 0)
        agents = {
            node_id: AgentImage(node_id, 1, uuid.UUID(int=node_id), "127.0.0.1", port, "a", False)
            for node_id in (NODE_ID, OWNER)
        }
        image = replace(world.view.image, agents=MappingProxyType(agents))
        world.view.image = world.view.head = self.owner_view.image = image
        await self.owner.start()
        await self.reader.start()
        return self

    async def stop(self) -> None:
        await self.reader.close()
        await self.owner.close()
        await self.listener.drain(0)

    def _service(self, view: StandingView, registry: CollectorRegistry) -> FetchService:
        world = self.world
        context = a_context(
            nouns(world.metastore),
            world.clock,
            store=world.store,
            settings=world.settings,
            rng=world.rng,
            registry=registry,
        )
        around = FetchSurroundings(traffic=ZoneTraffic(world.settings.broker_rack, registry), zone_secret=SECRET)
        return FetchService(context, view, around)

    async def load(self, *, hostile: bool) -> Cost:
        """Read for a consumer at the tail of all partitions while `FILES` files arrive."""
        assert self.reader.zone_cache is not None
        owners = self.reader.zone_cache.shared.owners
        offsets = {key: len(self.world.live[key]) for key in self.keys}
        calls_before, ranges_before = self._sent()
        files = 0
        for number in range(FILES):
            file_id = await self.world.write(
                [(key, batch) for key in self.keys for batch in _batches(number, hostile=hostile)]
            )
            files += owners.owner(file_id, 0) is not None
            self.reader.on_ended()
            await self.world.clock.settle()
            found = await self.world.request_fetch(offsets, service=self.reader)
            for key in self.keys:
                new = self.world.live[key][offsets[key] :]
                assert found.records(key) == b"".join(live.sent() for live in new)
                offsets[key] += len(new)
        calls, ranges = self._sent()
        return Cost(calls - calls_before, ranges - ranges_before, files)

    def _sent(self) -> tuple[int, int]:
        names = ("zone_cache_rpcs_total", "zone_cache_ranges_total")
        calls, ranges = (self.registry.get_sample_value(f"headrace_{name}", {"direction": "sent"}) for name in names)
        return int(calls or 0), int(ranges or 0)


def _batches(number: int, *, hostile: bool) -> list[bytes]:
    """The same as many for one partition: of idempotent producers every third was sent twice, and is dropped the
    second time.
    """
    if not hostile:
        return [plain_batch(1, b"x" * 50) for _ in range(BATCHES)]
    batches = []
    for sequence in range(BATCHES):
        stamp = {"producer_id": 1000, "producer_epoch": 0, "base_sequence": number * BATCHES + sequence}
        batches += [plain_batch(1, b"x" * 50, **stamp)] * (2 if sequence % 3 == 0 else 1)
    return batches


@pytest.fixture
async def agents() -> AsyncIterator[TwoAgents]:
    agents = await TwoAgents().start()
    yield agents
    await agents.stop()


@pytest.mark.requirement("W14", "W12")
async def test_hostile_batches_cost_no_more_calls(agents: TwoAgents) -> None:
    plain = await agents.load(hostile=False)
    hostile = await agents.load(hostile=True)
    assert hostile.ranges > 5 * plain.ranges, "duplicates cut the extents into many"
    # which files the other agent keeps is drawn by their ids: calls are compared per such file
    assert min(plain.files, hostile.files) > FILES / 4
    assert hostile.calls / hostile.files <= 1.1 * plain.calls / plain.files
