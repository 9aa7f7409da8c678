"""A fetch at the agent that acknowledged a record finds it, also if the feed was not polled since, for one poll."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Sequence

import pytest

from headrace.agent.fetch.index.own_commits import PARTITIONS_MAX, AcknowledgedEnds
from headrace.agent.fetch.index.tail import Lookup, LookupStatus
from headrace.metastore.api.commit import BatchAnswer, BatchOutcome, FileAnswer, FileCommit, FileStatus, StagedBatch
from headrace.metastore.api.read import ALL_BYTES, ExtentQuery, FeedPage, PartitionExtents
from headrace.storage.errors import UnavailableError
from tests.agent.fetch.fetch_world import World, expected, split_sent
from tests.agent.fetch.test_index import KEY, OTHER, extent

FILE_ID = extent(0, 0).file_id


@pytest.fixture
async def world() -> AsyncIterator[World]:
    world = World()
    yield world
    await world.service.close()


@pytest.fixture
async def key(world: World) -> int:
    """A partition with a record that the index has, from its beginning on, and no reader at its end."""
    (key,) = world.create_topic("t", 1)
    await world.service.start()
    await world.append(key, b"a")
    await world.clock.advance(0.5)
    await world.fetch({key: 0})
    await world.clock.advance(0.5)
    return key


@pytest.mark.requirement("W5")
@pytest.mark.parametrize("max_wait_ms", [0, 10_000])
async def test_a_fetch_from_an_old_offset_has_what_was_acknowledged(world: World, key: int, max_wait_ms: int) -> None:
    polls = world.metastore.asked["poll_feed"]
    for value in (b"b", b"c"):
        await world.append(key, value, own=True)
    assert world.metastore.asked["poll_feed"] == polls, "a commit without readers costs no poll"

    result = await world.fetch({key: 0}, max_wait_ms=max_wait_ms, min_bytes=1)

    assert split_sent(result.records(key)) == expected(world.live[key], 0)
    assert result.partitions[key].high_watermark == 3
    assert world.metastore.asked["poll_feed"] == polls + 1
    await world.fetch({key: 0}, min_bytes=1)
    assert world.metastore.asked["poll_feed"] == polls + 1, "the mark is gone"


@pytest.mark.requirement("W5")
async def test_a_fetch_that_does_not_reach_the_end_shows_it_without_a_poll(world: World, key: int) -> None:
    await world.append(key, b"b" * 1000)
    await world.clock.advance(0.5)
    polls = world.metastore.asked["poll_feed"]
    await world.append(key, b"c", own=True)

    result = await world.fetch({key: 0}, max_bytes=1, partition_max_bytes=1)

    assert result.partitions[key].high_watermark == 3
    assert len(split_sent(result.records(key))) == 1
    assert world.metastore.asked["poll_feed"] == polls


@pytest.mark.requirement("W5")
async def test_what_other_agents_appended_before_it_is_there_too(world: World, key: int) -> None:
    await world.append(key, b"b")
    await world.append(key, b"c", own=True)
    result = await world.fetch({key: 0}, min_bytes=1)
    assert split_sent(result.records(key)) == expected(world.live[key], 0)


@pytest.mark.requirement("W5")
async def test_a_duplicate_of_what_another_agent_appended_is_acknowledged_too(world: World, key: int) -> None:
    await world.append(key, b"b")
    commit, answer = _judged(key, BatchAnswer(BatchOutcome.DUPLICATE, 1, 0))
    world.service.on_committed([commit], [answer])
    result = await world.fetch({key: 0}, min_bytes=1)
    assert split_sent(result.records(key)) == expected(world.live[key], 0)


@pytest.mark.requirement("W5")
async def test_a_reader_at_the_end_finds_what_the_index_could_not_take(world: World, key: int) -> None:
    waiting = asyncio.ensure_future(world.request_fetch({key: 1}, max_wait_ms=10_000, min_bytes=1))
    await world.clock.settle()
    world.metastore.change_page = _fail
    await world.append(key, b"b")
    await world.append(key, b"c", own=True)
    await world.clock.settle()
    world.metastore.change_page = lambda page: page

    result = await world.fetch({key: 0}, min_bytes=1)

    assert split_sent(result.records(key)) == expected(world.live[key], 0)
    waiting.cancel()


@pytest.mark.requirement("W5")
async def test_the_high_watermark_shows_it_while_the_feed_does_not_answer(world: World, key: int) -> None:
    await world.append(key, b"b", own=True)
    world.metastore.fail = UnavailableError("down")

    result = await world.fetch({key: 0}, min_bytes=1)

    assert result.partitions[key].high_watermark == 2
    world.metastore.fail = None
    result = await world.fetch({key: 1}, min_bytes=1)
    assert split_sent(result.records(key)) == expected(world.live[key], 1)


@pytest.mark.requirement("W5")
@pytest.mark.parametrize("is_new_incarnation", [False, True], ids=["fed", "forgotten"])
async def test_a_poll_may_end_while_another_partition_waits_for_the_primary(
    world: World, key: int, is_new_incarnation: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of `key` the fetch has what the index knew before; the poll brings the record, or the index forgets all."""
    (other,) = world.create_topic("other", 1)
    await world.append(key, b"b", own=True)
    if is_new_incarnation:
        world.model.incarnation_id = uuid.UUID(int=9)
    has_polled = asyncio.Event()
    find_extents = world.metastore.find_extents

    async def find_late(queries: Sequence[ExtentQuery], max_bytes: int = ALL_BYTES) -> list[PartitionExtents]:
        await has_polled.wait()
        return await find_extents(queries, max_bytes)

    def polled(page: FeedPage) -> FeedPage:
        has_polled.set()
        return page

    monkeypatch.setattr(world.metastore, "find_extents", find_late)
    world.metastore.change_page = polled

    result = await world.fetch({key: 0, other: 0}, max_wait_ms=60_000, min_bytes=1)

    assert result.partitions[key].high_watermark == 2
    assert split_sent(result.records(key)) == expected(world.live[key], 0)


@pytest.mark.requirement("W5")
async def test_the_latest_offset_is_behind_what_was_acknowledged(world: World, key: int) -> None:
    await world.append(key, b"b", own=True)
    (answer,) = await world.list_offsets([(world.name(key), 0, -1)])
    assert answer.offset == 2


async def test_the_end_of_a_transaction_is_heard_of_by_the_next_fetch(world: World, key: int) -> None:
    polls = world.metastore.asked["poll_feed"]
    world.service.on_ended()
    await world.clock.settle()
    assert world.metastore.asked["poll_feed"] == polls
    for _ in range(2):
        await world.fetch({key: 0}, min_bytes=1)
    assert world.metastore.asked["poll_feed"] == polls + 1


def _fail(page: FeedPage) -> FeedPage:
    raise UnavailableError("the feed is out of reach")


def _judged(key: int, *answers: BatchAnswer) -> tuple[FileCommit, FileAnswer]:
    batches = [StagedBatch(key, 0, 100, 1, 0) for _ in answers]
    return FileCommit(FILE_ID, 1000, batches), FileAnswer(FILE_ID, FileStatus.COMMITTED, list(answers))


class TestMarks:
    """Tests of which marks are there, and until when."""

    def setup_method(self) -> None:
        self.ends = AcknowledgedEnds()

    def note(self, offset: int, key: int = KEY, outcome: BatchOutcome = BatchOutcome.APPENDED) -> None:
        commit, answer = _judged(key, BatchAnswer(outcome, offset, 0))
        self.ends.note([commit], [answer])

    def is_missing(self, high_watermark: int, offset: int = 0, key: int = KEY, **fields: bool) -> bool:
        extents = [extent(offset, high_watermark - 1)] if high_watermark > offset else []
        lookup = Lookup(LookupStatus.FOUND, 0, high_watermark, extents, **fields)
        query = ExtentQuery(key, offset, 1)
        marks = self.ends.marks([query])
        return marks is not None and self.ends.is_missing(marks, query, lookup)

    def test_the_highest_end_counts(self) -> None:
        self.note(7)
        self.note(3, outcome=BatchOutcome.DUPLICATE)
        assert self.is_missing(7)
        assert not self.is_missing(8)
        assert not self.is_missing(7, key=OTHER)
        assert not self.is_missing(7, cut=True)

    def test_refused_batches_leave_no_mark(self) -> None:
        self.note(-1, outcome=BatchOutcome.OUT_OF_ORDER)
        assert self.ends.marks([ExtentQuery(KEY, 0, 1)]) is None

    def test_a_duplicate_without_an_offset_may_be_anywhere(self) -> None:
        self.note(-1, outcome=BatchOutcome.DUPLICATE_SEQUENCE)
        assert self.is_missing(7, key=OTHER)

    @pytest.mark.parametrize("is_complete", [True, False])
    def test_a_complete_poll_ends_those_that_were_made_before_it(self, is_complete: bool) -> None:
        self.note(4)
        self.ends.begin_poll()
        assert self.is_missing(4)
        self.note(9, key=OTHER)
        self.ends.end_poll(is_complete=is_complete)
        assert self.is_missing(4) is not is_complete
        assert self.is_missing(9, key=OTHER)
        self.ends.begin_poll()
        self.ends.end_poll(is_complete=True)
        assert self.ends.marks([ExtentQuery(KEY, 0, 1)]) is None

    def test_those_of_a_fetch_stay_until_a_life_is_over(self) -> None:
        query, lookup = ExtentQuery(KEY, 0, 1), Lookup(LookupStatus.FOUND, 0, 0)
        self.note(4)
        marks = self.ends.marks([query])
        assert marks is not None
        self.ends.begin_poll()
        self.ends.end_poll(is_complete=True)
        assert self.ends.is_missing(marks, query, lookup)
        assert self.ends.raised(marks, query, lookup).high_watermark == 5
        self.ends.forget()
        assert not self.ends.is_missing(marks, query, lookup)
        assert self.ends.raised(marks, query, lookup) == lookup

    @pytest.mark.requirement("X7")
    def test_they_are_bounded(self) -> None:
        for key in range(PARTITIONS_MAX + 1):
            self.note(4, key=key)
        assert len(self.ends._ends) <= PARTITIONS_MAX
        assert self.is_missing(4, key=0)
