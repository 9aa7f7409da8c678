"""ListOffsets' -3: the first record with the highest timestamp, also with wrong headers."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.agent.fetch.offsets import timestamps
from headrace.metastore.api.read import Extent
from headrace.metastore.transaction_markers import MARKER_BYTES, Marker, marker_file_id
from headrace.storage.records.codec import Record, encode_batch
from tests.agent.fetch.fetch_world import World
from tests.seeds import examples
from tests.storage.batches import forge

MAX_TIMESTAMP = -3
FAR = 1 << 45


def batch(*timestamps: int, excess: int = 0) -> bytes:
    """Its header has a timestamp `excess` ms above those of its records."""
    data = encode_batch([Record(i, at, None, b"v") for i, at in enumerate(timestamps)], base_offset=0)
    return forge(data, max_timestamp=max(timestamps) + excess) if excess else data


def end_transaction(world: World, key: int) -> None:
    """Append the marker of a transaction."""
    partition = world.model.partitions[key]
    offset, source = partition.high_watermark, marker_file_id(Marker(7, 0, True))
    partition.extents.append(Extent(key, offset, offset, source, 1_700_000_000_000, MARKER_BYTES, 0, -1))
    partition.high_watermark += 1


async def found(world: World, *files: bytes | None, log_start: int = 0) -> tuple[int, int]:
    """(offset, timestamp) of the answer, from files of one batch each; None: the marker of a transaction."""
    await world.service.start()
    (key,) = world.create_topic("t", 1)
    for data in files:
        if data is None:
            end_transaction(world, key)
        else:
            await world.write([(key, data)])
    world.model.move_log_start(key, log_start)
    world.metastore.asked.clear()
    world.store.gets.clear()
    (answer,) = await world.list_offsets([("t", 0, MAX_TIMESTAMP)])
    await world.service.close()
    assert answer.error_code == 0
    return answer.offset, answer.timestamp


async def test_promises_that_are_not_kept_are_passed_over() -> None:
    files = batch(1000, 1001), batch(1000, 1001, excess=FAR), batch(9000, 9090, 9090), batch(8, excess=FAR), batch(60)
    assert await found(World(), *files) == (5, 9090)


async def test_the_last_record_is_the_newest_though_an_old_header_promises_more() -> None:
    """As in a log with records in order of time: three look-ups, not forty."""
    world = World()
    assert await found(world, batch(5, excess=FAR), *(batch(1000 * n) for n in range(1, 50))) == (49, 49_000)
    assert world.metastore.asked["list_offsets"] <= 5


async def test_a_record_later_than_its_header_says_is_an_answer_where_an_older_header_promises_more() -> None:
    """Both headers are wrong, and the last record can not be found by its time."""
    late = encode_batch([Record(0, -1, None, b"v"), Record(1, 900, None, b"v")], base_offset=0)
    assert await found(World(), batch(5, excess=FAR), batch(300), forge(late, max_timestamp=100)) == (3, 900)
    assert await found(World(), batch(5, excess=FAR), batch(300), forge(late, max_timestamp=100), batch(80)) == (1, 300)


async def test_a_last_record_without_a_time_ends_no_search() -> None:
    assert await found(World(), batch(5, excess=FAR), batch(300), batch(-1)) == (1, 300)


async def test_a_newest_record_below_the_log_start_is_no_answer() -> None:
    """All headers are right: the first extent's newest record was removed, its others were not."""
    assert await found(World(), batch(900, 80, 10), batch(20, 70), log_start=1) == (1, 80)


async def test_a_marker_at_the_end_of_the_log_is_no_record() -> None:
    """The newest record is below the log start; of the last one only the marker is left; only markers are."""
    assert await found(World(), batch(900, 80, 10), None, log_start=1) == (1, 80)
    assert await found(World(), batch(900, 80, 10), None, None, log_start=3) == (-1, -1)
    assert await found(World(), None, batch(-1), None, batch(5), None) == (3, 5)


async def test_a_batch_without_a_maximum_timestamp_is_found_by_its_base() -> None:
    unset = forge(batch(500, 70), max_timestamp=-1)
    assert await found(World(), batch(60), unset, batch(80)) == (1, 500)


async def test_a_promise_that_is_kept_costs_one_question_and_one_extent() -> None:
    world = World(cache_bytes=0)
    assert await found(world, *(batch(n) for n in range(40))) == (39, 39)
    assert (world.metastore.asked["list_offsets"], world.metastore.asked["find_extents"]) == (1, 0)
    assert len(world.store.gets) == 1


TIMES = st.lists(st.integers(-1, 300), min_size=1, max_size=3)


SENT = st.lists(st.one_of(st.none(), st.tuples(TIMES, st.sampled_from([0, 0, 5, FAR]))), min_size=1, max_size=8)


def check(sent: list[tuple[list[int], int] | None], log_start: int) -> None:
    """Compare with a scan. None: a marker, which has an offset and no time."""
    times = [at for one in sent for at in ([-1] if one is None else one[0])]
    start = min(log_start, len(times))
    newest = max(times[start:], default=-1)
    files = [None if one is None else batch(*one[0], excess=one[1]) for one in sent]
    answer = asyncio.run(found(World(), *files, log_start=start))
    expected = (times.index(newest, start), newest) if newest >= 0 else (-1, -1)
    is_timeless = newest < 0 and answer[1] == -1
    assert answer == expected or is_timeless, "records without a timestamp are none"


@given(SENT, st.integers(0, 6))
@settings(deadline=None, max_examples=examples(60))
def test_the_answer_is_what_a_scan_finds(sent: list[tuple[list[int], int] | None], log_start: int) -> None:
    check(sent, log_start)


def test_a_marker_that_is_read_as_a_file_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timestamps, "is_in_file", lambda extent: True)
    with pytest.raises((AssertionError, AttributeError)):
        check([([900, 80], 0), None], 1)
