"""What is evicted from the tail index is its oldest extent, and nothing that came after what something else removed."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable

import pytest

from headrace.agent.fetch.index.index import TailIndex
from headrace.metastore.api.read import NONE_OPEN, AbortedRange, Extent, FeedKind, FeedPage, FeedRow, LogStartMove
from headrace.metastore.keys import partition_key
from headrace.metastore.transaction_markers import Marker, marker_file_id

KEYS = [partition_key(1, index) for index in range(3)]
EXTENTS_MAX = 8


class Feed:
    """A feed of one shard, and an index that follows it."""

    def __init__(self) -> None:
        self.index = TailIndex(1, extents_max=EXTENTS_MAX)
        self.life = uuid.uuid4()
        self.seq = 0
        self.ends = dict.fromkeys(KEYS, 0)
        self.index.apply(self._page())

    def row(self, kind: FeedKind, extents: list[Extent], **more: object) -> None:
        self.seq += 1
        self.index.apply(self._page(FeedRow(0, self.seq, kind, extents=extents, **more)))  # type: ignore[arg-type]

    def commit(self, key: int, *, own: bool = False) -> None:
        extent = self._extent(key, uuid.uuid4())
        if own:
            self.index.take_own([extent])
        self.row(FeedKind.COMMIT, [extent])

    def abort(self, key: int) -> None:
        """The marker that ends an aborted transaction."""
        extent = self._extent(key, marker_file_id(Marker(9, 1, False)))
        aborted = AbortedRange(key, 9, 0, extent.last_offset)
        self.row(FeedKind.TRANSACTION, [extent], first_open_offsets={key: NONE_OPEN}, aborted=[aborted])

    def swap(self, key: int) -> None:
        """Everything so far is merged into one file."""
        if self.ends[key]:
            self.row(FeedKind.SWAP, [Extent(key, 0, self.ends[key] - 1, uuid.uuid4(), 0, 100, 0, 1)])

    def move_log_start(self, key: int) -> None:
        self.row(FeedKind.LOG_START, [], log_starts=[LogStartMove(key, self.ends[key])])

    def lose_rows(self, key: int) -> None:
        """The next row is not the next one: the shard starts over."""
        self.seq += 1
        self.commit(key)

    def check(self) -> None:
        """The newest extents are held, and no more than may be."""
        held = self.index.extents()
        assert len(held) <= EXTENTS_MAX
        for key in KEYS:
            offsets = [extent.base_offset for extent in held if extent.partition_key == key]
            assert offsets == list(range(self.ends[key] - len(offsets), self.ends[key]))

    def _extent(self, key: int, file_id: uuid.UUID) -> Extent:
        self.ends[key] += 1
        return Extent(key, self.ends[key] - 1, self.ends[key] - 1, file_id, 0, 100, 0, 1)

    def _page(self, *rows: FeedRow) -> FeedPage:
        return FeedPage(self.life, 0, {0: self.seq}, list(rows), [], 0)


REMOVALS: dict[str, Callable[[Feed, int], None]] = {
    "a swap": Feed.swap,
    "a log start": Feed.move_log_start,
    "lost rows": Feed.lose_rows,
}


@pytest.mark.requirement("X1", "W5")
@pytest.mark.parametrize("removal", REMOVALS.values(), ids=REMOVALS)
def test_an_arrival_that_something_else_removed_takes_no_newer_extent_along(
    removal: Callable[[Feed, int], None],
) -> None:
    feed = Feed()
    for _ in range(4):
        feed.commit(KEYS[0])
    removal(feed, KEYS[0])
    while feed.index.held_extents < EXTENTS_MAX:
        feed.commit(KEYS[1])

    feed.abort(KEYS[0])

    assert [e.base_offset for e in feed.index.extents() if e.partition_key == KEYS[0]][-1] == feed.ends[KEYS[0]] - 1


@pytest.mark.requirement("W5")
@pytest.mark.parametrize("seed", range(30))
def test_any_history_is_followed_and_its_newest_extents_are_held(seed: int) -> None:
    rng, feed = random.Random(seed), Feed()
    events = [Feed.commit] * 6 + [Feed.abort] * 3 + [*REMOVALS.values()]
    for _ in range(200):
        key = rng.choice(KEYS)
        event = rng.choice(events)
        feed.commit(key, own=rng.random() < 0.5) if event is Feed.commit else event(feed, key)
        feed.check()
        if event in (Feed.commit, Feed.abort):
            assert any(e.partition_key == key and e.base_offset == feed.ends[key] - 1 for e in feed.index.extents())
