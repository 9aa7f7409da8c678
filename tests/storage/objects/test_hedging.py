"""HedgedStore: when a twin is sent, who wins, and that nothing is left running."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from headrace.storage.errors import HeadraceError, NotFoundError, OutcomeUnknownError, UnavailableError
from headrace.storage.file_id import SEGMENTS
from headrace.storage.objects.decorator import StoreDecorator
from headrace.storage.objects.hedging import HedgedStore
from headrace.storage.objects.memory import MemoryStore
from headrace.storage.objects.store import ByteRange, ObjectInfo
from tests.manual_clock import ManualClock

KEY = f"{SEGMENTS}aa/file"
Outcome = tuple[float, HeadraceError | None]


class SlowStore(StoreDecorator):
    """Fault model: the n-th call takes `outcomes[n]`'s seconds and then fails or takes effect; later calls take none.

    A cancelled call takes no effect and is counted, after some turns of the loop spent on tidying up.
    """

    def __init__(self, clock: ManualClock, outcomes: Sequence[Outcome] = ()) -> None:
        super().__init__(MemoryStore(clock))
        self.clock = clock
        self.outcomes = list(outcomes)
        self.bodies: list[bytes] = []
        self.running = self.cancelled = self.calls = 0

    async def put(self, key: str, body: bytes | memoryview, *, if_absent: bool = False) -> ObjectInfo:
        self.bodies.append(bytes(body))
        await self._take_time()
        return await super().put(key, body, if_absent=if_absent)

    async def get(self, key: str, byte_range: ByteRange | None = None) -> bytes:
        await self._take_time()
        return await super().get(key, byte_range)

    async def head(self, key: str) -> ObjectInfo:
        await self._take_time()
        return await super().head(key)

    async def _take_time(self) -> None:
        self.calls += 1
        seconds, error = self.outcomes.pop(0) if self.outcomes else (0.0, None)
        self.running += 1
        try:
            await self.clock.sleep(seconds)
        except asyncio.CancelledError:
            await asyncio.sleep(0)
            self.cancelled += 1
            raise
        finally:
            self.running -= 1
        if error is not None:
            raise error


def hedged(*outcomes: Outcome) -> tuple[HedgedStore, SlowStore, ManualClock]:
    clock = ManualClock()
    inner = SlowStore(clock, outcomes)
    return HedgedStore(inner, after_ms=100, clock=clock), inner, clock


async def test_a_quick_answer_needs_no_twin() -> None:
    store, inner, clock = hedged((0.09, None))
    await clock.run(store.put(KEY, b"x"))
    assert (inner.calls, inner.running, inner.cancelled) == (1, 0, 0)


async def test_a_slow_put_gets_a_twin_with_the_same_bytes_and_the_quicker_wins() -> None:
    store, inner, clock = hedged((5.0, None), (0.03, None))
    started = clock.monotonic()
    await clock.run(store.put(KEY, memoryview(b"body")))
    assert clock.monotonic() - started == pytest.approx(0.13)
    assert inner.bodies == [b"body", b"body"]
    assert (inner.running, inner.cancelled) == (0, 1), "the loser was cancelled, and over when put returned"


async def test_the_first_request_may_still_win() -> None:
    store, inner, clock = hedged((0.2, None), (5.0, None))
    started = clock.monotonic()
    await clock.run(store.put(KEY, b"x"))
    assert clock.monotonic() - started == pytest.approx(0.2)
    assert (inner.calls, inner.running, inner.cancelled) == (2, 0, 1)


async def test_gets_and_heads_are_hedged_too() -> None:
    store, inner, clock = hedged()
    await inner.put(KEY, b"0123456789")
    for read in (lambda: store.get(KEY), lambda: store.head(KEY), lambda: store.get_many(KEY, [ByteRange(1, 2)])):
        inner.outcomes, inner.calls = [(5.0, None)], 0
        await clock.run(read())
        assert inner.calls == 2


@pytest.mark.parametrize("key", ["janitor.properties", "life/position", "k"])
async def test_what_may_be_overwritten_is_put_once(key: str) -> None:
    """A loser may take effect after it was cancelled, and replace what was put later."""
    store, inner, clock = hedged((5.0, None))
    await clock.run(store.put(key, b"x"))
    assert inner.calls == 1


async def test_a_conditional_put_is_never_hedged() -> None:
    store, inner, clock = hedged((5.0, None))
    await clock.run(store.put(KEY, b"x", if_absent=True))
    assert inner.calls == 1


async def test_a_quick_failure_is_raised_without_a_twin() -> None:
    store, inner, clock = hedged((0.01, UnavailableError("down")))
    with pytest.raises(UnavailableError):
        await clock.run(store.get(KEY))
    assert inner.calls == 1


async def test_one_failure_waits_for_the_other_answer() -> None:
    store, inner, clock = hedged((0.15, UnavailableError("down")), (0.3, None))
    await clock.run(store.put(KEY, b"x"))
    assert await inner.get(KEY) == b"x"
    store, inner, clock = hedged((0.3, None), (0.01, UnavailableError("down")))
    await clock.run(store.put(KEY, b"x"))
    assert (inner.running, inner.cancelled) == (0, 0)


async def test_of_two_failures_the_one_that_leaves_more_open_is_raised() -> None:
    unknown, down = OutcomeUnknownError("lost"), UnavailableError("down")
    for first, second in ((unknown, down), (down, unknown)):
        store, _, clock = hedged((0.2, first), (0.2, second))
        with pytest.raises(OutcomeUnknownError):
            await clock.run(store.put(KEY, b"x"))
    store, _, clock = hedged((0.2, NotFoundError("first")), (0.2, NotFoundError("second")))
    with pytest.raises(NotFoundError, match="first"):
        await clock.run(store.get(KEY))


async def test_a_cancelled_caller_leaves_nothing_running() -> None:
    store, inner, clock = hedged((5.0, None), (5.0, None))
    put = asyncio.ensure_future(store.put(KEY, b"x"))
    await clock.advance(1.0)
    assert inner.running == 2
    put.cancel()
    with pytest.raises(asyncio.CancelledError):
        await put
    assert (inner.running, inner.cancelled) == (0, 2)
