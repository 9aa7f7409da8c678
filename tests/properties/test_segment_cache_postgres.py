"""The segment cache against find_extents of a real Postgres, with real merges, log starts and deletions.

A run is a seeded sequence: commits, merges by the real worker, DeleteRecords and retention, deletions, questions to the
primary, and answers and feed rows that arrive later. Three things are held:
  feed read to its end   each offset that the cache has is answered as find_extents answers it then
  feed behind            each extent of the cache was find_extents' at a moment that is not before the feed's position,
                         and the cache has no gap
  always                 `headrace segments list` has the highest merged offset of each leader epoch
Caches with planted bugs read the same feed and the same answers, and each of them must be found.
"""

from __future__ import annotations

import random
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import NamedTuple

import pytest

from headrace.agent.fetch.index.index import TailIndex
from headrace.agent.fetch.index.segment_cache import SegmentCache
from headrace.agent.fetch.index.tail import up_to
from headrace.cli.segments import highest_offsets
from headrace.metastore.api.read import Extent, ExtentQuery, FeedKind, FeedPage, FeedRow, PartitionExtents
from headrace.metastore.api.retention import LogStartTarget
from headrace.metastore.api.segment_states import RemotePartitionKey
from headrace.metastore.keys import commit_shard
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.storage.file_id import level_of
from tests.compactor.segment_world import LEASE_MS, SegmentWorld
from tests.metastore.sessions import claim, delete
from tests.storage.batches import plain_batch

SEEDS = range(8)
STEPS = 150
TOPICS = 2
PARTITIONS = 2
EXTENTS_MAX = 30
EVERYTHING = 1 << 40
pytestmark = pytest.mark.requirement("R8")


class IgnoresSwaps(SegmentCache):
    def apply(self, row: FeedRow) -> None:
        if row.kind is not FeedKind.SWAP:
            super().apply(row)


class IgnoresDeletions(SegmentCache):
    def apply(self, row: FeedRow) -> None:
        super().apply(replace(row, deleted_keys=[]))


class IgnoresLogStarts(SegmentCache):
    def apply(self, row: FeedRow) -> None:
        if row.kind is not FeedKind.LOG_START:
            super().apply(row)


class KeepsOldAnswers(SegmentCache):
    def keep(self, key: int, extents: Sequence[Extent], changes: int) -> None:
        super().keep(key, extents, self.changes)


class DropsOnlyTheFirstReplaced(SegmentCache):
    def _drop_range(self, key: int, base_offset: int, last_offset: int) -> None:
        super()._drop_range(key, base_offset, base_offset)


class JoinsAcrossGaps(SegmentCache):
    def keep(self, key: int, extents: Sequence[Extent], changes: int) -> None:
        run = self._runs.get(key, [])
        if changes == self.changes and extents and run and run[-1].last_offset + 1 < extents[0].base_offset:
            self._put(key, [*run, *extents])
        else:
            super().keep(key, extents, changes)


BUGS = (
    IgnoresSwaps,
    IgnoresDeletions,
    IgnoresLogStarts,
    KeepsOldAnswers,
    DropsOnlyTheFirstReplaced,
    JoinsAcrossGaps,
)


@dataclass
class Reader:
    """An agent's index with one kind of cache; `wrong` is what it answered otherwise than the primary."""

    cache: type[SegmentCache]
    shards: int
    wrong: list[str] = field(default_factory=list)
    compared: int = 0

    def __post_init__(self) -> None:
        self.index = TailIndex(self.shards)
        self.index.history = self.cache(extents_max=EXTENTS_MAX)


class Moment(NamedTuple):
    """What the primary said after a change, and how long the feed was then."""

    heads: dict[int, int]
    extents: dict[int, set[Extent]]


class Asked(NamedTuple):
    """An answer of the primary under way; per reader what it had read of the feed when it asked."""

    answer: PartitionExtents
    marks: list[tuple[int, int]]


class Story:
    """One run."""

    def __init__(self, world: SegmentWorld, seed: int) -> None:
        self.world, self.rng, self.seed = world, random.Random(seed), seed
        self.postgres = world.postgres
        self.shards = self.postgres.commit_shards
        self.readers = [Reader(cache, self.shards) for cache in (SegmentCache, *BUGS)]
        self.topics: dict[str, list[int]] = {}
        self.gone: list[int] = []
        self.epochs_compared = 0
        self.moments: list[Moment] = []
        self.under_way: deque[Asked] = deque()

    async def tell(self) -> None:
        for _ in range(TOPICS):
            await self.create()
        await self.poll(whole=True)
        changes = [self.commit] * 4 + [self.merge] * 2 + [self.delete_records, self.retain]
        for number in range(STEPS):
            step = self.rng.random()
            if number % 50 == 49:
                await self.replace_topic()
            elif step < 0.2:
                await self.rng.choice(changes)()
                await self.remember()
            elif step < 0.6:
                await self.ask()
                if self.rng.random() < 0.6:
                    self.receive()
            elif step < 0.7:
                self.receive()
            else:
                await self.poll(whole=self.rng.random() < 0.5)
            self.check_bound()

    def keys(self) -> list[int]:
        return [key for keys in self.topics.values() for key in keys]

    async def create(self) -> None:
        name = f"t{self.seed}-{len(self.topics) + len(self.gone)}"
        self.topics[name] = await self.world.topic(name, PARTITIONS)
        await self.world.fill(self.topics[name], files=4)
        await self.remember()

    async def replace_topic(self) -> None:
        name = self.rng.choice(sorted(self.topics))
        self.gone += self.topics.pop(name)
        await delete(self.postgres, self.world.view.image.topics_by_name[name].topic_id)
        await self.remember()
        await self.create()

    async def commit(self) -> None:
        some = sorted(self.rng.sample(self.keys(), self.rng.randint(1, len(self.keys()))))
        await self.world.commit(*((key, plain_batch(self.rng.randint(1, 3))) for key in some))

    async def merge(self) -> None:
        """Some neighbouring files into files with small extents, each with its swaps."""
        level = self.rng.choice((1, 2))
        rows = await self.world.file_rows()
        files = [file_id for file_id in await self.world.live_files() if rows[file_id]["level"] < level]
        first = self.rng.randrange(len(files)) if files else 0
        if chosen := files[first : first + self.rng.randint(2, 5)]:
            worker = self.world.compactor(extent_bytes=self.rng.choice((200, 1 << 20)))
            await self.world.run(await self.world.claim(chosen, level), worker)

    async def target(self) -> LogStartTarget:
        key = self.rng.choice(self.keys())
        (now,) = await self.postgres.index.find_extents([ExtentQuery(key, 0, 1)])
        return LogStartTarget(key, min(now.log_start_offset + self.rng.randrange(8), now.high_watermark))

    async def delete_records(self) -> None:
        await self.postgres.retention.move_log_starts([await self.target()], max_extents=self.rng.choice((1, 100)))

    async def retain(self) -> None:
        job = await claim(self.postgres, "retention", key=str(self.rng.random()), lease_ms=LEASE_MS)
        head = await self.postgres.cluster.metadata_head()
        await self.postgres.retention.enforce_retention(
            [await self.target()], max_extents=100, by=job.token, metadata_offset=head
        )
        await self.postgres.jobs.finish_job(job.token)

    async def remember(self) -> None:
        keys = self.keys() + self.gone
        found = await self.postgres.index.find_extents([ExtentQuery(key, 0, EVERYTHING) for key in keys])
        heads = (await self.postgres.index.poll_feed({})).heads
        self.moments.append(Moment(heads, {answer.partition_key: set(answer.extents) for answer in found}))

    async def ask(self) -> None:
        end = max(extent.last_offset for held in self.moments[-1].extents.values() for extent in held)
        query = ExtentQuery(self.rng.choice(self.keys()), self.rng.randint(0, end), self.rng.choice((1, 300, 2_000)))
        marks = [(reader.index.generation, reader.index.history.changes) for reader in self.readers]
        (answer,) = await self.postgres.index.find_extents([query])
        self.under_way.append(Asked(answer, marks))

    def receive(self) -> None:
        """Do the same as locate.py takes answers over."""
        if self.under_way:
            answer, marks = self.under_way.popleft()
            for reader, (generation, changes) in zip(self.readers, marks, strict=True):
                reader.index.observe(answer, generation)
                if generation == reader.index.generation:
                    reader.index.history.keep(answer.partition_key, answer.extents, changes)

    async def poll(self, *, whole: bool) -> None:
        page = await self.postgres.index.poll_feed(self.readers[0].index.heads)
        while page.rows and whole:
            self.apply(page)
            page = await self.postgres.index.poll_feed(self.readers[0].index.heads)
        self.apply(page if whole else replace(page, rows=page.rows[: self.rng.randint(0, len(page.rows))]))
        if whole:
            await self.compare()
            await self.compare_epochs()

    def apply(self, page: FeedPage) -> None:
        for reader in self.readers:
            reader.index.apply(page)

    async def compare(self) -> None:
        """Every held offset, and some that are not, with find_extents at this moment."""
        held: dict[int, int] = defaultdict(int)
        for reader in self.readers:
            for key, run in reader.index.history._runs.items():
                held[key] = max(held[key], run[-1].last_offset)
        queries = [
            ExtentQuery(key, offset, self.rng.choice((1, 300, 1_000)))
            for key, last_offset in held.items()
            for offset in range(last_offset + 2)
        ]
        if queries:
            for query, truth in zip(queries, await self.postgres.index.find_extents(queries), strict=True):
                for reader in self.readers:
                    self.compare_one(reader, query, truth)

    async def compare_epochs(self) -> None:
        """The highest offset in merged files, by the keys and by the extents."""
        for name, keys in self.topics.items():
            topic_id = self.world.view.image.topics_by_name[name].topic_id
            for index, key in enumerate(keys):
                (now,) = await self.postgres.index.find_extents([ExtentQuery(key, 0, 1)])
                listed = await self.postgres.segment_logs.list_segments(topic_id, index, -1, 1_000)
                # what is below a log start goes a few extents at a time
                segments = [each for each in listed if each.key.end_offset >= now.log_start_offset]
                merged = [extent for extent in self.moments[-1].extents[key] if level_of(extent.file_id)]
                expected = {epoch: max(e.last_offset for e in each) for epoch, each in by_epoch(merged).items()}
                assert highest_offsets(RemotePartitionKey(topic_id, index), segments) == expected
                self.epochs_compared += len(expected)

    def compare_one(self, reader: Reader, query: ExtentQuery, truth: PartitionExtents) -> None:
        key, offset, max_bytes = query
        held = reader.index.history.from_offset(key, offset)
        if held and not truth.known:
            reader.wrong.append(f"{query}: held after its deletion")
        if held and offset >= truth.log_start_offset:
            found = up_to(held, 0, max_bytes)
            if found != truth.extents[: len(found)] or reader.index.history.segment_at(key, offset) != truth.extents[0]:
                reader.wrong.append(f"{query}: {found} instead of {truth.extents}")
            reader.compared += 1
        answer = reader.index.look_back(*query)
        if answer is not None and answer[1:4] != (
            truth.log_start_offset,
            truth.high_watermark,
            truth.extents[: len(answer.extents)],
        ):
            reader.wrong.append(f"{query}: {answer} instead of {truth}")

    def check_bound(self) -> None:
        for reader in self.readers:
            for key, run in reader.index.history._runs.items():
                shard = commit_shard(key, self.shards)
                since = max(n for n, m in enumerate(self.moments) if m.heads[shard] <= reader.index.heads[shard])
                allowed = set[Extent]().union(*(m.extents.get(key, set()) for m in self.moments[since:]))
                if not allowed.issuperset(run):
                    reader.wrong.append(f"{key}: older than the feed: {set(run) - allowed}")
                if any(after.base_offset != before.last_offset + 1 for before, after in pairwise(run)):
                    reader.wrong.append(f"{key}: a gap: {run}")


def by_epoch(extents: Sequence[Extent]) -> dict[int, list[Extent]]:
    found: dict[int, list[Extent]] = defaultdict(list)
    for extent in extents:
        found[extent.leader_epoch].append(extent)
    return found


@pytest.fixture
async def world(metastore: PostgresMetastore, metastore_url: str) -> AsyncIterator[SegmentWorld]:
    async with SegmentWorld.running(metastore, metastore_url) as world:
        await world.raise_level()
        yield world


async def test_what_the_cache_holds_is_what_find_extents_says(world: SegmentWorld) -> None:
    wrong: dict[type[SegmentCache], int] = dict.fromkeys(BUGS, 0)
    compared = epochs_compared = 0
    for seed in SEEDS:
        story = Story(world, seed)
        await story.tell()
        right, *planted = story.readers
        assert not right.wrong, (seed, right.wrong[0])
        compared += right.compared
        epochs_compared += story.epochs_compared
        for reader in planted:
            wrong[reader.cache] += len(reader.wrong)
    assert compared > 500
    assert epochs_compared > 100
    assert all(wrong.values()), f"planted bugs that are not found: {wrong}"
