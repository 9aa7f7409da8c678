"""Tail index and segment cache tell readers what the primary does, even if told late. Planted bugs are found.

A run is a seeded sequence of changes (primary_of_logs.py), look-ups of readers with answers in any order, pages of the
feed that are late, incomplete or lack rows, commit shards that are followed, dropped and doubled, and log starts
that this agent moves. Held after each step, also while the feed is late:
- the extents of an answer hold each offset from the reader's on, once
- Kafka's consumer with read_committed shows what was committed in them, and nothing else
- the last stable offset is not later than the partition's
- what this agent said was deleted is not read again
Whenever the feed has arrived, each offset that the cache holds is answered as the primary answers it then.
test_segment_cache_postgres.py compares with the real one.
"""

from __future__ import annotations

import random
import types
from collections.abc import Callable, Coroutine, Generator, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import pytest
from prometheus_client import CollectorRegistry

from headrace.agent.fetch.index import segment_cache
from headrace.agent.fetch.index.index import TailIndex
from headrace.agent.fetch.index.segment_cache import SegmentCache
from headrace.agent.fetch.index.tail import Lookup, LookupStatus, stable_part
from headrace.agent.fetch.locate import Locator
from headrace.agent.fetch.metrics import FetchMetrics
from headrace.metastore.api.read import ALL_BYTES, Extent, ExtentQuery, FeedKind, FeedPage, PartitionExtents
from headrace.metastore.keys import partition_key
from tests.patch import Patch
from tests.planted import PlantedBugs, Trial
from tests.properties.primary_of_logs import PrimaryOfLogs, read_committed

KEYS = [partition_key(4, index) for index in range(12)]
PARTITIONS = 2
"""So many of the keys at a time."""
SHARDS = 2
EXTENTS_MAX = 40
STEPS = 1_000
READERS_MAX = 5
"""Readers that wait for the primary at the same time."""
SEEDS = range(60)
METRICS = FetchMetrics(CollectorRegistry())
pytestmark = pytest.mark.requirement("R8")

Asking = Coroutine[Any, None, list[Lookup]]


class Reading(NamedTuple):
    """A reader's look-up that waits for the primary; `deleted_to`: what was said to be deleted when it began."""

    query: ExtentQuery
    asking: Asking
    deleted_to: int


class Story:
    """One run."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.primary = PrimaryOfLogs(self.rng, KEYS[:PARTITIONS], SHARDS)
        self.index = TailIndex(SHARDS)
        self.index.history = SegmentCache(extents_max=EXTENTS_MAX)
        self.index.wanted = lambda shards: [shard for shard in range(shards) if self.rng.random() < 0.8]
        self.locator = Locator(self.index, self, self.rng, METRICS)  # type: ignore[arg-type]
        self.reading: list[Reading] = []
        self.page: FeedPage | None = None
        """The poll that is under way."""
        self.moving: list[tuple[int, Callable[[int, int], None], int | None]] = []
        """Log starts that this agent moves, or asks for: the new one once the primary was asked."""
        self.deleted_to = dict.fromkeys(KEYS, 0)
        self.next = dict.fromkeys(KEYS, 0)
        """Where a reader continues."""
        self.seen: dict[int, list[Extent]] = {}
        """Runs of the cache that were checked."""
        self.compared = self.read_back = 0
        self.is_young = self.rng.random() < 0.5
        """Whether logs begin often: partitions are new, and records are deleted. Else there are long replays."""
        self.index.apply(self.primary.page({}, whole=True))

    async def find_extents(self, queries: Sequence[ExtentQuery], max_bytes: int = ALL_BYTES) -> list[PartitionExtents]:
        """The answer is as of the second step, and arrives with the third."""
        await _step()
        found = [self.primary.find(*query) for query in queries]
        await _step()
        return found

    def tell(self) -> None:
        steps: dict[Callable[[], None], int] = {
            self.change: 200,
            self.read: 300,
            self.answer: 500,
            self.poll: self.rng.choice((30, 100)),
            self.move: 100 * self.is_young,
            self.follow: 10,
            self.drop: 3 + 10 * self.is_young,
            self.replace: 1 + 10 * self.is_young,
            self.lose: 1,
        }
        weights = list(steps.values())
        for number, step in enumerate(self.rng.choices(list(steps), weights, k=STEPS)):
            step()
            if number == STEPS // 2:
                self.rng.choice((self.primary.grow, self.forget))()
            self.check_held()

    def change(self) -> None:
        primary = self.primary
        changes = [primary.append] * 5 + [primary.end] * 4 + [primary.merge] * 2 + [primary.clean] * 6
        self.rng.choice([*changes, primary.move_log_start])(self.rng.choice(list(primary.extents)))

    def replace(self) -> None:
        """A partition is deleted, and there is a new one."""
        created = len(self.primary.log_starts)
        if created < len(KEYS):
            self.primary.delete(self.rng.choice(list(self.primary.extents)))
            self.primary.create(KEYS[created])

    def read(self) -> None:
        """A reader begins to look up an offset, often where one has stopped."""
        if len(self.reading) >= READERS_MAX:
            return
        key = self.rng.choice(list(self.primary.log_starts)[-PARTITIONS - 1 :])
        start = max(0, self.primary.log_starts[key] - 2)
        end = self.primary.high_watermark(key) if key in self.primary.extents else start
        offset = self.next[key] if self.rng.random() < 0.5 else self.rng.randint(start, end)
        query = ExtentQuery(key, offset, self.rng.choice((1, 10, 20, 60)))
        self.go_on(Reading(query, self.locator.locate([query]), self.deleted_to[key]))

    def answer(self) -> None:
        """The primary answers a question, or an answer arrives: any of them."""
        if self.reading:
            self.go_on(self.reading.pop(self.rng.randrange(len(self.reading))))

    def go_on(self, reading: Reading) -> None:
        try:
            reading.asking.send(None)
        except StopIteration as stop:
            (lookup,) = stop.value
            self.check(reading.query, lookup, reading.deleted_to)
            if lookup.extents:
                self.next[reading.query.partition_key] = lookup.extents[-1].last_offset + 1
        else:
            self.reading.append(reading)

    def poll(self) -> None:
        """A poll is sent, or its page arrives."""
        if self.page is None:
            self.page = self.primary.page(self.index.heads, whole=self.rng.random() < 0.8)
            return
        page, self.page = self.page, None
        self.index.apply(page)
        if self.index.is_at_end(self.primary.page({}, whole=True)):
            self.compare()

    def lose(self) -> None:
        """A page says that the rows of a shard are gone."""
        if self.index.heads and self.page is None:
            lost = self.rng.choice(sorted(self.index.heads))
            self.page = self.primary.page(self.index.heads, whole=True, lost=lost)

    def forget(self) -> None:
        """The feed failed unexpectedly."""
        self.page = None
        self.index.forget_all()

    def follow(self) -> None:
        self.index.follow(range(self.index.shards))

    def drop(self) -> None:
        if self.index.heads:
            self.index.drop([self.rng.choice(sorted(self.index.heads))])

    def move(self) -> None:
        """This agent begins to ask for a log start, the primary moves it or not, or the answer arrives."""
        if len(self.moving) < 2:
            on_moved = partial(self.index.move_log_start, self.index.before_move())
            self.moving.append((self.rng.choice(list(self.primary.extents)), on_moved, None))
            return
        key, on_moved, start = self.moving.pop(self.rng.randrange(2))
        if start is None and key in self.primary.extents:
            if self.rng.random() < 0.7:
                self.primary.move_log_start(key)
            start = self.primary.log_starts[key]
            if self.rng.random() < 0.5:
                self.moving.append((key, on_moved, start))
                return
        if start is not None:
            on_moved(key, start)
            self.deleted_to[key] = max(self.deleted_to[key], start)

    def check(self, query: ExtentQuery, lookup: Lookup, deleted_to: int) -> None:
        key, offset, _ = query
        if lookup.status is not LookupStatus.FOUND or not lookup.extents:
            return
        assert offset >= deleted_to, f"deleted records: {query} {lookup}"
        extents = list(lookup.extents)
        assert extents[0].base_offset <= offset <= extents[0].last_offset, f"not the reader's: {query} {lookup}"
        check_seamless(extents)
        truth = self.primary.find(key, 0)
        assert not truth.known or lookup.last_stable_offset <= truth.last_stable_offset, f"not stable: {lookup}"
        stable = list(stable_part(query, lookup).extents)
        end = min(lookup.last_stable_offset, extents[-1].last_offset + 1)
        shown = read_committed(self.primary.batches, stable, list(lookup.aborted), offset)
        committed = self.primary.committed[key].items()
        wanted = sorted(base for base, last in committed if offset < end and last >= offset and base < end)
        assert [base for base in shown if base < end] == wanted, f"{query} {lookup}"
        self.read_back += not lookup.recent

    def check_held(self) -> None:
        history = self.index.history
        assert sum(map(len, history._runs.values())) == history._held <= EXTENTS_MAX
        for key in self.primary.extents:
            if offset := self.deleted_to[key]:
                assert not self.index.look(key, offset - 1, 1), "deleted records"
                assert not self.index.look_back(key, offset - 1, 1), "deleted records"
        for key, run in list(history._runs.items()):
            if run is not self.seen.get(key):
                self.seen[key] = run
                check_seamless(run)
                offset = max(run[0].base_offset, self.deleted_to[key])
                lookup = self.index.look_back(key, offset, sum(extent.length for extent in run[:-1]))
                if lookup is not None:
                    self.check(ExtentQuery(key, offset, ALL_BYTES), lookup, self.deleted_to[key])

    def compare(self) -> None:
        """Every offset of the cache, with what the primary says now."""
        for key, run in list(self.index.history._runs.items()):
            truth = self.primary.find(key, 0)
            assert truth.known, "held after its deletion"
            for offset in range(max(run[0].base_offset, truth.log_start_offset), run[-1].last_offset + 1):
                found = self.index.history.from_offset(key, offset)
                now = self.primary.find(key, offset)
                assert found == now.extents[: len(found)]
                self.compared += 1
                lookup = self.index.look_back(key, offset, 1_000)
                if lookup is not None:
                    assert lookup[1:3] == (now.log_start_offset, now.high_watermark)
                    self.check(ExtentQuery(key, offset, 1_000), lookup, self.deleted_to[key])


def check_seamless(extents: Sequence[Extent]) -> None:
    for before, after in pairwise(extents):
        assert before.last_offset + 1 == after.base_offset, f"skipped, or twice: {extents}"


@types.coroutine
def _step() -> Generator[None, None, None]:
    yield


def run(seed: int) -> tuple[int, int]:
    """Return how many offsets of the cache were compared, and how many answers came from it. AssertionError if one is
    wrong."""
    story = Story(seed)
    try:
        story.tell()
    finally:
        for reading in story.reading:
            reading.asking.close()
    return story.compared, story.read_back


def test_readers_get_what_was_committed() -> None:
    compared, read_back = (sum(counts) for counts in zip(*map(run, SEEDS), strict=True))
    assert compared > 1_500
    assert read_back > 5_000


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1_000, 5_000, 500))
def test_readers_get_what_was_committed_in_many_more_stories(first: int) -> None:
    for seed in range(first, first + 500):
        run(seed)


def swaps_are_ignored(patch: Patch) -> None:
    right = SegmentCache.apply
    patch.replace(SegmentCache, "apply", lambda self, row: row.kind is FeedKind.SWAP or right(self, row))


def deletions_are_ignored(patch: Patch) -> None:
    right = SegmentCache.apply
    patch.replace(SegmentCache, "apply", lambda self, row: row.kind is FeedKind.TOPIC_DELETED or right(self, row))


def old_answers_are_kept(patch: Patch) -> None:
    right = SegmentCache.keep
    patch.replace(
        SegmentCache, "keep", lambda self, key, extents, _, aborted: right(self, key, extents, self.changes, aborted)
    )


def a_swap_removes_only_its_first_extent(patch: Patch) -> None:
    right = SegmentCache._drop_range
    patch.replace(SegmentCache, "_drop_range", lambda self, key, base, last: right(self, key, base, base))


def lost_rows_leave_the_cache(patch: Patch) -> None:
    patch.replace(SegmentCache, "forget", lambda self, keys=None: None)


def answers_are_joined_across_a_gap(patch: Patch) -> None:
    """Answers that do not meet, or from before and after a swap: extents are left out, or are there twice."""
    patch.replace(segment_cache, "_continued", lambda before, first: before)


def crossing_answers_are_joined(patch: Patch) -> None:
    """An answer from before a swap, and the rest of one from after it: extents are left out, or are there twice."""
    patch.replace(segment_cache, "_continuing", lambda last, after: after)


def aborted_transactions_stay_without_their_markers(patch: Patch) -> None:
    """An answer from before a marker was removed, and one from after it: later records of the producer are hidden."""
    patch.replace(segment_cache, "_have_markers", lambda run, ranges: True)


def aborted_transactions_go_with_a_part_of_the_run(patch: Patch) -> None:
    right = SegmentCache._drop_range

    def drop_range(self: SegmentCache, key: int, base_offset: int, last_offset: int) -> None:
        right(self, key, base_offset, last_offset)
        self._aborted.pop(key, None)

    patch.replace(SegmentCache, "_drop_range", drop_range)


def a_drop_of_another_shard_hides_a_moved_log_start(patch: Patch) -> None:
    right = TailIndex._count_removal

    def count_removal(self: TailIndex) -> None:
        right(self)
        self.history_mark += 1

    patch.replace(TailIndex, "_count_removal", count_removal)


def a_moved_log_start_needs_a_tail(patch: Patch) -> None:
    """An answer of the primary from before the move comes later."""
    right = TailIndex.move_log_start

    def move_log_start(self: TailIndex, history_mark: int, key: int, log_start_offset: int) -> None:
        if key in self._tails:
            right(self, history_mark, key, log_start_offset)

    patch.replace(TailIndex, "move_log_start", move_log_start)


BUGS = (
    swaps_are_ignored,
    deletions_are_ignored,
    old_answers_are_kept,
    a_swap_removes_only_its_first_extent,
    lost_rows_leave_the_cache,
    answers_are_joined_across_a_gap,
    crossing_answers_are_joined,
    aborted_transactions_stay_without_their_markers,
    aborted_transactions_go_with_a_part_of_the_run,
    a_drop_of_another_shard_hides_a_moved_log_start,
    a_moved_log_start_needs_a_tail,
)
PLANTED = PlantedBugs("segment cache")


@PLANTED.cases(BUGS, lambda bug: bug.__name__)
def test_a_planted_bug_is_found(bug: Callable[[Patch], None], trial: Trial) -> None:
    bug(trial.patch)
    for seed in trial.seeds():
        with trial.shown_by(AssertionError):
            run(seed)
