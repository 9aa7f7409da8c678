"""Groups in doubt and new files take turns, and a group is repeated as it was sent; planted bugs are found.

The order of streams is the flush queue's (test_flush_queue.py).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from headrace.agent.produce.commit import Committer
from headrace.agent.produce.files import CommittingFile, FlushedFile
from headrace.storage.errors import OutcomeUnknownError
from tests.agent.produce.test_commit import Bench, error_of
from tests.patch import Patch

CALLS = 24
"""More than the turns of two groups and a few new files, and than it takes until calls have one file each."""


async def _answer(bench: Bench, *lost: int) -> None:
    """Answer the newest call, unless it has a file of one of these partitions: then its answer is lost."""
    call = bench.metastore.commits[-1]
    keys = {batch.partition_key for file in call.files for batch in file.batches}
    if call.result.done():
        return
    if keys & {bench.topic.key(partition) for partition in lost}:
        call.fail(OutcomeUnknownError("connection lost"))
    else:
        await call.finish()
    await bench.world.clock.advance(2.5)


async def new_files_do_not_wait_for_a_group_in_doubt() -> None:
    async with Bench() as bench:
        stuck = await bench.flush(0, "stuck", timeout_ms=10_000_000)
        await _answer(bench, 0)
        new = await bench.flush(1, "new", timeout_ms=10_000_000)
        for _ in range(CALLS):
            await _answer(bench, 0)
        assert [stuck.done(), new.done()] == [False, True]


async def a_group_in_doubt_does_not_wait_for_new_files() -> None:
    async with Bench() as bench:
        doubtful = await bench.flush(0, "doubtful", timeout_ms=10_000_000)
        for number in range(CALLS):
            await bench.flush(1 + number % 7, "new", timeout_ms=10_000_000)  # during a call
            await _answer(bench, *([] if number else [0]))
        assert doubtful.done()


async def groups_in_doubt_do_not_wait_for_each_other() -> None:
    async with Bench() as bench:
        stuck = await bench.flush(0, "stuck", timeout_ms=10_000_000)
        other = await bench.flush(1, "other", timeout_ms=10_000_000)
        for _ in range(4):
            await _answer(bench, 0, 1)
        for _ in range(CALLS):
            await _answer(bench, 0)
        assert [stuck.done(), other.done()] == [False, True]


async def a_group_is_repeated_as_it_was_sent() -> None:
    async with Bench() as bench:
        blocker = await bench.flush(1, "blocker")
        sent = [await bench.flush(0, text, timeout_ms=10_000_000) for text in ("a", "b", "c")]
        await bench.finish(0)
        first = bench.metastore.commits[-1]
        assert len(first.files) == 3
        for _ in range(CALLS // 2):
            await _answer(bench, 0)
        assert all(call.files == first.files for call in bench.metastore.commits[1:])
        await _answer(bench)
        assert [error_of(task) for task in (blocker, *sent)] == ["none"] * 4


Check = Callable[[], Awaitable[None]]


@pytest.mark.parametrize(
    "check",
    [
        new_files_do_not_wait_for_a_group_in_doubt,
        a_group_in_doubt_does_not_wait_for_new_files,
        groups_in_doubt_do_not_wait_for_each_other,
        a_group_is_repeated_as_it_was_sent,
    ],
)
@pytest.mark.requirement("W4")
async def test_groups_take_turns(check: Check) -> None:
    await check()


def _doubt_always_goes_first(self: Committer) -> list[FlushedFile]:
    self._doubt_is_next = True
    return _NEXT(self)


def _new_files_always_go_first(self: Committer) -> list[FlushedFile]:
    self._doubt_is_next = False
    return _NEXT(self)


def _back_to_the_queue(self: Committer, group: list[FlushedFile]) -> None:
    """The queue has the order of streams, but neither turns nor groups."""
    self._back_off()
    for file in group:
        assert isinstance(file.stage, CommittingFile)
        file.stage = file.stage.doubted().put_back()


_NEXT = Committer._next_group
PLANTED = [
    ("_next_group", _doubt_always_goes_first, new_files_do_not_wait_for_a_group_in_doubt),
    ("_next_group", _new_files_always_go_first, a_group_in_doubt_does_not_wait_for_new_files),
    ("_doubt", _back_to_the_queue, new_files_do_not_wait_for_a_group_in_doubt),
    ("_doubt", _back_to_the_queue, groups_in_doubt_do_not_wait_for_each_other),
    ("_doubt", _back_to_the_queue, a_group_is_repeated_as_it_was_sent),
]


@pytest.mark.parametrize(("method", "wrong", "check"), PLANTED)
async def test_planted_bugs_are_found(patch: Patch, method: str, wrong: Callable[..., object], check: Check) -> None:
    patch.replace(Committer, method, wrong)
    with pytest.raises(AssertionError):
        await check()
