"""A wait with a limit: the result, the limit, and a caller that is cancelled at each moment."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest

from headrace.storage.clock import within
from tests.manual_clock import ManualClock


@pytest.fixture
def complaints() -> list[dict[str, Any]]:
    """Return what the event loop reports, such as an exception that was not retrieved."""
    return []


async def _watched(complaints: list[dict[str, Any]]) -> None:
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))


async def _turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def _after(turns: int, outcome: str | Exception) -> str:
    await _turns(turns)
    if isinstance(outcome, Exception):
        raise outcome
    return outcome


async def test_a_result_and_an_error_are_passed_on() -> None:
    clock = ManualClock()
    assert await within(clock, 1.0, _after(3, "done")) == "done"
    with pytest.raises(ConnectionResetError):
        await within(clock, 1.0, _after(3, ConnectionResetError()))


async def test_work_is_cancelled_at_the_limit() -> None:
    clock = ManualClock()
    work = asyncio.get_running_loop().create_future()
    waiting = asyncio.ensure_future(within(clock, 1.0, work))
    await _turns(3)
    await clock.advance(1.0)
    with pytest.raises(TimeoutError):
        await waiting
    assert work.cancelled()


@pytest.mark.parametrize("outcome", ["done", ConnectionResetError()])
@pytest.mark.parametrize("turns", range(1, 8))
async def test_a_caller_that_is_cancelled_leaves_nothing_behind(
    outcome: str | Exception, turns: int, complaints: list[dict[str, Any]]
) -> None:
    """A result is taken or handed to `unused`; an error is never reported as not retrieved."""
    await _watched(complaints)
    begun, unused = [], list[str]()

    async def work() -> str:
        result = await _after(3, outcome)
        begun.append(result)
        return result

    waiting = asyncio.ensure_future(within(ManualClock(), 1.0, work(), unused.append))
    await _turns(turns)
    waiting.cancel()
    taken = await asyncio.gather(waiting, return_exceptions=True)
    await _turns(3)
    del waiting
    gc.collect()
    assert complaints == []
    if begun:
        assert ("done" in taken) + len(unused) == 1
