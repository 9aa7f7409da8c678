"""The tail index while the commit shards grow: no extent is missed or out of place, and nothing is forgotten.

A made-up feed has partitions, commits and growth; the index polls it in small pages at drawn times. What it shows on
the way is a beginning of the truth, and in the end it has all of it.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Collection

import pytest

from headrace.agent.fetch.index.index import TailIndex
from headrace.metastore.api.read import Extent, FeedKind, FeedPage, FeedRow, PartitionExtents
from headrace.metastore.keys import commit_shard, partition_key
from tests.seeds import seeds

LIFE = uuid.UUID(int=1)
PAGE_ROWS = 2
"""Rows of a shard in a page: a shard is often behind when another one is not."""
KEYS = [partition_key(3, index) for index in range(9)]
COUNTS = (2, 4, 16)
STEPS = 60


class GrowingFeed:
    """The metastore's side: rows by shard, and each partition's extents."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.counts = iter(COUNTS[1:])
        self.rows: dict[int, list[FeedRow]] = {shard: [] for shard in range(COUNTS[0])}
        self.kept_from: dict[int, int] = {}
        """Shard -> the first row that is still kept."""
        self.extents: dict[int, list[Extent]] = {key: [] for key in KEYS}

    def commit(self) -> None:
        by_shard: dict[int, list[Extent]] = {}
        for key in self.rng.sample(KEYS, self.rng.randint(1, len(KEYS))):
            base = self.end(key)
            extent = Extent(
                key, base, base + self.rng.randint(0, 3), uuid.UUID(int=self.rng.getrandbits(128)), 0, 1, 0, 0
            )
            self.extents[key].append(extent)
            by_shard.setdefault(commit_shard(key, len(self.rows)), []).append(extent)
        for shard, extents in by_shard.items():
            self.rows[shard].append(FeedRow(shard, len(self.rows[shard]) + 1, FeedKind.COMMIT, extents))

    def grow(self) -> None:
        for shard in range(len(self.rows), next(self.counts, len(self.rows))):
            self.rows[shard] = []

    def forget_rows(self) -> None:
        """The slots with all rows of until now are emptied."""
        self.kept_from = {shard: len(rows) + 1 for shard, rows in self.rows.items()}

    def end(self, key: int) -> int:
        return self.extents[key][-1].last_offset + 1 if self.extents[key] else 0

    def poll(self, positions: dict[int, int]) -> FeedPage:
        rows: list[FeedRow] = []
        lost = []
        for shard, position in sorted(positions.items()):
            after = self.rows[shard][position : position + PAGE_ROWS]
            if after and position + 1 < self.kept_from.get(shard, 0):
                lost.append(shard)
            else:
                rows += after
        heads = {shard: len(kept) for shard, kept in self.rows.items()}
        return FeedPage(LIFE, 0, heads, rows, lost, 0)


def _story(seed: int, made: Callable[[int], TailIndex], *, loses: bool = False) -> list[str]:
    """Return what was wrong."""
    rng = random.Random(seed)
    feed, index = GrowingFeed(rng), made(COUNTS[0])
    forgotten: list[Extent] = []
    index.on_forgotten = forgotten.extend
    index.apply(feed.poll(index.heads))
    for key in KEYS:
        index.observe(PartitionExtents(key, True, 0, 0, []), index.generation)
    for _ in range(STEPS):
        step = rng.choice([feed.commit] * 5 + [feed.grow] + [feed.forget_rows] * loses + [None] * 4)
        if step is None:
            index.apply(feed.poll(index.heads))
            if wrong := [key for key in KEYS if not _is_a_beginning(index, feed, key)]:
                return [f"not a beginning: {wrong}"]
        else:
            step()
    for _ in range(STEPS * 4):
        index.apply(feed.poll(index.heads))
    found = [f"not at the end: {key}" for key in KEYS if not _is_at_the_end(index, feed, key)]
    if not loses:
        found += [f"forgotten: {index.generation}"] if index.generation > 1 else []
    return found + (["reported as lost"] if forgotten else [])


def _is_a_beginning(index: TailIndex, feed: GrowingFeed, key: int) -> bool:
    shown = [extent for extent in index.extents() if extent.partition_key == key]
    truth = feed.extents[key]
    if not shown:
        return index.high_watermark(key) <= feed.end(key)
    first = truth.index(shown[0])
    return truth[first : first + len(shown)] == shown and index.high_watermark(key) == shown[-1].last_offset + 1


def _is_at_the_end(index: TailIndex, feed: GrowingFeed, key: int) -> bool:
    """Return whether a reader at the end gets the truth, or asks the primary."""
    if index.high_watermark(key) not in (0, feed.end(key)):
        return False
    sight = index.look(key, index.high_watermark(key), 1)
    return sight is None or sight.high_watermark == feed.end(key)


class AtTheHead(TailIndex):
    """As agents of the release before: a new shard is followed from its newest row on."""

    def _follow_growth(self, page: FeedPage) -> None:
        for shard in page.heads.keys() - self.heads.keys():
            self.heads[shard] = page.heads[shard]
        self.shards = len(self.heads)


class AtOnce(TailIndex):
    """New shards are followed before the old ones are applied."""

    def _follow_growth(self, page: FeedPage) -> None:
        for shard in page.heads.keys() - self.heads.keys():
            self.heads[shard] = 0
        self.shards = len(self.heads)


class ByTheOldCount(TailIndex):
    """Partitions are looked for in the shards that they had."""

    def _forget_shards(self, shards: Collection[int], heard: dict[int, int]) -> None:
        count, self.shards = self.shards, COUNTS[0]
        super()._forget_shards(shards, heard)
        self.shards = count


@pytest.mark.requirement("W5")
@pytest.mark.parametrize("seed", seeds(range(100), range(100, 400)))
def test_growth_loses_and_reorders_nothing(seed: int) -> None:
    assert _story(seed, TailIndex) == []


@pytest.mark.parametrize("seed", seeds(range(100), range(100, 400)))
def test_rows_that_are_gone_are_forgotten_by_the_count_that_they_were_written_with(seed: int) -> None:
    assert _story(seed, TailIndex, loses=True) == []


@pytest.mark.parametrize(("bug", "loses"), [(AtTheHead, False), (AtOnce, False), (ByTheOldCount, True)])
def test_planted_bugs_are_found(bug: type[TailIndex], loses: bool) -> None:
    assert any(_story(seed, bug, loses=loses) for seed in range(200))


def test_a_feed_of_before_the_growth_is_another_history() -> None:
    """A standby was promoted that lacks the growth: its life has not begun yet, so its incarnation is the old one."""
    feed, index = GrowingFeed(random.Random(1)), TailIndex(COUNTS[0])
    index.apply(feed.poll(index.heads))
    feed.commit()
    before = {shard: list(rows) for shard, rows in feed.rows.items()}
    feed.grow()
    feed.commit()
    for _ in range(4):
        index.apply(feed.poll(index.heads))
    held = index.extents()
    assert held
    forgotten: list[Extent] = []
    index.on_forgotten = forgotten.extend
    heads = {shard: len(rows) for shard, rows in before.items()}
    index.apply(FeedPage(LIFE, 0, heads, [], sorted(index.heads.keys() - heads.keys()), 0))
    assert forgotten == held
    assert (index.extents(), index.heads) == ([], heads)
    for key in KEYS:
        index.observe(PartitionExtents(key, True, 0, 7, []), index.generation)
        assert index.high_watermark(key) == 7, "its shard is one of the old count"
