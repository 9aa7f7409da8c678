"""A swap call that is repeated gets its first answer, in any order of its copies with log starts and other jobs."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations
from typing import Any

import pytest

from headrace.metastore.api.compaction import SwapOutcome
from headrace.metastore.api.retention import LogStartTarget
from headrace.storage.clock import SystemClock
from headrace.storage.errors import FencedError, OutcomeUnknownError
from tests.compactor.segment_world import HOUR, SegmentWorld
from tests.metastore.sessions import claim
from tests.overlay import Overlay

MOVED, REPLACED, CALLED, AGAIN = "log start", "another job", "call", "call again"
ORDERS = [
    order
    for names in ((MOVED, CALLED, AGAIN), (REPLACED, CALLED, AGAIN), (MOVED, REPLACED, CALLED, AGAIN))
    for order in permutations(names)
    if order.index(CALLED) < order.index(AGAIN)
]
"""Everything that can come before, between and after the two copies of a call."""
LOG_START = 2
"""Behind the first of two inputs."""


async def delete_records(world: SegmentWorld, key: int) -> None:
    """Do the same as an agent does for a client."""
    await world.postgres.retention.move_log_starts([LogStartTarget(key, LOG_START)], max_extents=100)


async def retain(world: SegmentWorld, key: int) -> None:
    """Do the same as the job `retention` does."""
    token = (await claim(world.postgres, "retention-test")).token
    target = LogStartTarget(key, LOG_START)
    offset = world.view.image.offset
    assert await world.postgres.retention.enforce_retention([target], max_extents=100, by=token, metadata_offset=offset)
    await world.postgres.jobs.finish_job(token)


TRIGGERS = (delete_records, retain)


class Hurried(SystemClock):
    """A worker that repeats a call at once."""

    async def sleep(self, seconds: float) -> None:
        return


async def play(world: SegmentWorld, order: Sequence[str], key: int, move: Any) -> list[list[SwapOutcome]]:
    """One order, on its own partition, of a merge of two files: its swap call is sent twice; both answers."""
    known = set(await world.live_files())
    await world.fill([key], files=2)
    inputs = [await merged(world, file_id) for file_id in sorted(set(await world.live_files()) - known)]

    async def replace() -> None:
        if inputs[0] in {extent.file_id for extent in await world.extents(key)}:
            await world.run(await world.claim([inputs[0]], 2))

    steps, answers = iter(order), list[list[SwapOutcome]]()

    async def swap_extents(*call: Any) -> list[SwapOutcome]:
        """The answer of the first copy is lost; what follows the second comes before its answer."""
        for step in steps:
            if step in (CALLED, AGAIN):
                answers.append(await world.postgres.compaction.swap_extents(*call))
            if step == CALLED:
                raise OutcomeUnknownError("connection lost after the commit")
            if step == MOVED:
                await move(world, key)
            elif step == REPLACED:
                await replace()
        return answers[-1]

    api = Overlay(world.postgres, swap_extents=swap_extents)
    await world.run(await world.claim(sorted(inputs), 2), world.compactor(metastore=api, clock=Hurried()))
    return answers


async def merged(world: SegmentWorld, file_id: Any) -> Any:
    """The file that a merge of this one made."""
    before = set(await world.live_files())
    await world.run(await world.claim([file_id], 1))
    (found,) = set(await world.live_files()) - before
    return found


async def check_every_order(world: SegmentWorld) -> None:
    cases = [(order, move) for order in ORDERS for move in TRIGGERS if MOVED in order or move is delete_records]
    keys = await world.topic("t", len(cases))
    for (order, move), key in zip(cases, keys, strict=True):
        answers = await play(world, order, key, move)
        is_lost = order.index(CALLED) > min(order.index(step) for step in order if step in (MOVED, REPLACED))
        expected = [SwapOutcome.LOST if is_lost else SwapOutcome.DONE]
        assert answers == [expected, expected], (order, move.__name__, answers)
    await world.check_references()
    await world.settle()
    await world.check_rest()
    assert {extent.file_id for extent in await world.extents(*keys)} <= await world.objects()
    for (order, _), key in zip(cases, keys, strict=True):
        start = LOG_START if MOVED in order else 0
        ends = [(e.base_offset, e.last_offset) for e in await world.extents(key) if e.last_offset >= start]
        assert [offset for base, last in ends for offset in range(max(base, start), last + 1)] == [*range(start, 4)]


@pytest.mark.requirement("W8", "R11")
async def test_a_repeated_call_gets_its_first_answer_in_every_order(world: SegmentWorld) -> None:
    await check_every_order(world)


@pytest.mark.requirement("R11")
async def test_a_call_after_the_lease_is_refused_and_its_answer_is_forgotten(world: SegmentWorld) -> None:
    await world.filled(files=1)
    calls: list[Any] = []

    async def noted(*call: Any) -> list[SwapOutcome]:
        calls.append(call)
        return await world.postgres.compaction.swap_extents(*call)

    api = Overlay(world.postgres, swap_extents=noted)
    await world.run(await world.claim(await world.live_files(), 1), world.compactor(metastore=api))
    with pytest.raises(FencedError):
        await world.postgres.compaction.swap_extents(*calls[0])
    assert await world.ask("SELECT count(*) FROM swap_answers") == [(1,)]
    await world.postgres.housekeeping.prune_jobs(100)
    assert await world.ask("SELECT count(*) FROM swap_answers") == [(0,)]


@pytest.mark.requirement("R5")
async def test_no_counter_deletes_an_object_that_an_extent_names(world: SegmentWorld) -> None:
    """The counters of one file are wrong, as a fault once made them; those of the other say what rows say."""
    keys = await world.topic("t", 2)
    await world.fill(keys[:1], files=1)
    await world.fill(keys[1:], files=1)
    wrong, right = [await merged(world, file_id) for file_id in await world.live_files(level=0)]
    flushed = [extent.file_id for extent in await world.extents(*keys)]
    assert set(flushed) == {wrong, right}
    await world.advance(2 * HOUR)
    await world.ask(
        "UPDATE remote_segments SET state = 2, live_extents = 0, due_at = wall_time() - interval '1 hour'"
        " WHERE file_id = %s RETURNING 1",
        wrong,
    )
    dead = "live_bytes = 0, dead_at = wall_time() - interval '1 hour'"
    await world.ask(f"UPDATE segment_files SET {dead} WHERE file_id = %s RETURNING 1", wrong)
    await world.janitor()
    await world.janitor()
    assert {wrong, right} <= await world.objects()
    assert len(await world.records(keys[0])) == len(await world.records(keys[1])) == 2
