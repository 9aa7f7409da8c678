"""Consumers while the feed lags, loses rows and shards, restarts, and compaction moves their data.

Under all faults, a consumer's batches are the live ones, each once, in order; it never gets the answer that
its offset is out of range, and once the disturbance ends it reaches the end.
Deliberate bugs that were tried and are caught here: trusting the index across missing feed rows,
ignoring a lost shard, not asking the primary again for a file that compaction took away.
"""

from __future__ import annotations

import asyncio
import random
import uuid
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode

from headrace.metastore.api.read import Extent, FeedKind
from headrace.metastore.keys import commit_shard
from headrace.storage.errors import OutcomeUnknownError, UnavailableError
from headrace.storage.file_id import new_file_id, object_key
from headrace.storage.objects.store import ByteRange
from tests.agent.fetch.fetch_world import NEVER_SEEN, World, expected, split_sent
from tests.model.partition_model import ModelPartition
from tests.seeds import examples
from tests.storage.batches import plain_batch

PARTITIONS = 4
USUAL = ("write", "write own", "fetch", "fetch", "wait")
DISTURBED = ("swap", "swap unread", "delay feed", "drop rows", "lose shard", "restore", "fail", "heal")


@pytest.mark.requirement("W5")
@settings(max_examples=examples(60))
@given(st.lists(st.sampled_from(USUAL + DISTURBED), min_size=5, max_size=40), st.integers(0, 2**32))
def test_a_disturbed_feed_never_shows_wrong_data_and_never_rewinds(steps: list[str], seed: int) -> None:
    asyncio.run(_Disturbed(seed).run(steps))


class _Disturbed:
    """One consumer of four partitions, and everything that can happen around it."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(f"disturbed {seed}")  # not the world's own numbers: it makes file ids, too
        self.world = World(seed=seed, shards=1)
        self.keys = self.world.create_topic("t", PARTITIONS)
        self.at = dict.fromkeys(self.keys, 0)
        self.got: dict[int, list[bytes]] = {key: [] for key in self.keys}

    async def run(self, steps: list[str]) -> None:
        await self.world.service.start()
        for step in steps:
            await getattr(self, step.replace(" ", "_"))()
        await self.heal()
        await self.world.clock.advance(2.0)
        for _ in range(3 + len(steps)):
            await self.fetch()
        for key in self.keys:
            assert self.got[key] == expected(self.world.live[key], 0)
        await self.world.service.close()

    async def write(self, own: bool = False) -> None:
        batches = []
        for key in self.rng.choices(self.keys, k=self.rng.randint(1, 2)):
            dead = NEVER_SEEN if self.rng.random() < 0.3 else {}
            batches.append((key, plain_batch(self.rng.randint(1, 3), b"%d" % self.rng.getrandbits(40), **dead)))
        await self.world.write(batches, own=own)

    async def write_own(self) -> None:
        await self.write(own=True)

    async def fetch(self) -> None:
        result = await self.world.fetch(
            self.at, max_wait_ms=self.rng.choice([0, 20]), max_bytes=self.rng.choice([150, 5000])
        )
        for key in self.keys:
            if self.world.metastore.fail is not None and result.code(key) == ErrorCode.kafka_storage_error:
                continue
            assert result.code(key) == 0
            batches = split_sent(result.records(key))
            self.got[key] += batches
            assert self.got[key] == expected(self.world.live[key], 0)[: len(self.got[key])]
            if batches:
                self.at[key] = self.world.live[key][len(self.got[key]) - 1].last_offset + 1
            assert self.at[key] <= result.partitions[key].high_watermark

    async def wait(self) -> None:
        await self.world.clock.advance(self.rng.choice([0.005, 0.02, 0.5]))

    async def swap(self) -> None:
        """Compaction copies one partition's extents into a new file; the old file may be gone at once."""
        partition = self.world.model.partitions[self.rng.choice(self.keys)]
        if partition.extents:
            await self._swap(partition, self.rng.randrange(len(partition.extents)))

    async def swap_unread(self) -> None:
        """The same, with what the consumer reads next and the index already knows."""
        await self.write()
        await self.world.clock.advance(0.02)
        for key in self.keys:
            partition = self.world.model.partitions[key]
            unread = [i for i, extent in enumerate(partition.extents) if extent.last_offset >= self.at[key]]
            if unread:
                await self._swap(partition, unread[0])
        await self.fetch()

    async def _swap(self, partition: ModelPartition, first: int) -> None:
        old = partition.extents[first : first + self.rng.randint(1, 3)]
        new = [await self._copied(extent) for extent in old]
        partition.extents[first : first + len(old)] = new
        shard = commit_shard(old[0].partition_key, self.world.model.shards)
        self.world.model._append_feed(shard, FeedKind.SWAP, extents=new)
        if self.rng.random() < 0.7:
            still_named = {e.file_id for p in self.world.model.partitions.values() for e in p.extents}
            gone = [extent.file_id for extent in old if extent.file_id not in still_named]
            await self.world.store.delete_many([object_key(file_id) for file_id in gone])

    async def _copied(self, extent: Extent) -> Extent:
        store, clock = self.world.store, self.world.clock
        body = await store.get(object_key(extent.file_id), ByteRange(extent.position, extent.length))
        file_id = new_file_id(clock.wall_ms(), self.rng)
        padding = bytes(self.rng.randint(0, 50))
        await store.put(object_key(file_id), padding + body + b"footer")
        return extent._replace(source=file_id, position=len(padding))

    async def delay_feed(self) -> None:
        """Pages without news, although there is some."""
        self.world.metastore.change_page = lambda page: replace(page, rows=[], lost_shards=[])

    async def drop_rows(self) -> None:
        """A feed that loses rows without saying so: only the numbers tell."""
        self.world.metastore.change_page = lambda page: replace(
            page, rows=[row for row in page.rows if self.rng.random() < 0.5]
        )
        for _ in range(4):
            await self.write()
        await self.world.clock.advance(0.02)
        self.world.metastore.change_page = lambda page: page

    async def lose_shard(self) -> None:
        self.world.model.forget_feed(0)

    async def restore(self) -> None:
        self.world.model.incarnation_id = uuid.UUID(int=self.rng.getrandbits(128))

    async def fail(self) -> None:
        self.world.metastore.fail = self.rng.choice([UnavailableError("down"), OutcomeUnknownError("cut")])

    async def heal(self) -> None:
        self.world.metastore.fail = None
        self.world.metastore.change_page = lambda page: page
