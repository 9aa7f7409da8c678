"""HedgedStore: which PUTs get a second request, who wins, and that nothing is left running."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence

import pytest

from headrace.storage.errors import (
    HeadraceError,
    InvalidError,
    OutcomeUnknownError,
    ThrottledError,
    UnavailableError,
)
from headrace.storage.file_id import SEGMENTS, new_bulk_file_id, new_file_id, object_key
from headrace.storage.objects.hedging import (
    HEDGES,
    KIB,
    LEAST_DELAY_S,
    SAMPLES_MIN,
    THROTTLED_S,
    HedgedStore,
    HedgePolicy,
)
from headrace.storage.objects.memory import MemoryStore
from headrace.storage.objects.store import ByteRange, ObjectInfo, StoreDecorator
from tests.manual_clock import ManualClock

KEY = object_key(new_file_id(1_700_000_000_000, random.Random(1)))
P95_S = 0.1
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
    """A store with a policy that has seen PUTs of P95_S."""
    clock = ManualClock()
    inner = SlowStore(clock, outcomes)
    policy = HedgePolicy(100, parallelism=8)
    for _ in range(SAMPLES_MIN):
        policy.begin(KIB, clock.monotonic())
        policy.end(KIB, P95_S, clock.monotonic())
    return HedgedStore(inner, policy, clock), inner, clock


def counted(result: str) -> float:
    return HEDGES.labels(result)._value.get()


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


async def test_a_slow_read_is_not_hedged() -> None:
    store, inner, clock = hedged()
    await inner.put(KEY, b"0123456789")
    for read in (lambda: store.get(KEY), lambda: store.head(KEY), lambda: store.get_many(KEY, [ByteRange(1, 2)])):
        inner.outcomes, inner.calls = [(5.0, None)], 0
        await clock.run(read())
        assert inner.calls == 1


@pytest.mark.parametrize(
    "key",
    [
        "janitor.properties",
        "life/position",
        "k",
        f"{SEGMENTS}aa/file",
        object_key(new_file_id(1, random.Random(1), level=1)),
        object_key(new_bulk_file_id(1, 3, random.Random(1))),
    ],
)
async def test_only_files_that_an_agent_flushed_are_put_twice(key: str) -> None:
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
    store, _, clock = hedged((0.2, InvalidError("first")), (0.2, InvalidError("second")))
    with pytest.raises(InvalidError, match="first"):
        await clock.run(store.put(KEY, b"x"))


async def test_a_cancelled_caller_leaves_nothing_running() -> None:
    store, inner, clock = hedged((5.0, None), (5.0, None))
    put = asyncio.ensure_future(store.put(KEY, b"x"))
    await clock.advance(1.0)
    assert inner.running == 2
    put.cancel()
    with pytest.raises(asyncio.CancelledError):
        await put
    assert (inner.running, inner.cancelled) == (0, 2)


async def test_no_second_request_follows_a_request_to_slow_down() -> None:
    store, inner, clock = hedged((0.01, ThrottledError("slow down")), (5.0, None))
    with pytest.raises(ThrottledError):
        await clock.run(store.put(KEY, b"x"))
    await clock.run(store.put(KEY, b"x"))
    assert inner.calls == 2, "one request each"
    await clock.advance(THROTTLED_S)
    inner.outcomes = [(5.0, None)]
    await clock.run(store.put(KEY, b"x"))
    assert inner.calls == 4


async def test_a_throttled_second_request_ends_hedging() -> None:
    store, inner, clock = hedged((0.3, None), (0.01, ThrottledError("slow down")), (5.0, None))
    await clock.run(store.put(KEY, b"x"))
    await clock.run(store.put(KEY, b"x"))
    assert inner.calls == 3


async def test_no_second_request_while_all_places_for_uploads_are_taken() -> None:
    store, inner, clock = hedged(*[(1.0, None)] * 8)
    await clock.run(asyncio.wait([asyncio.ensure_future(store.put(KEY, b"x")) for _ in range(8)]))
    assert inner.calls == 8


async def test_the_store_learns_how_long_its_puts_take() -> None:
    store, inner, clock = hedged(*[(0.02, None)] * 300)
    for _ in range(300):
        await clock.run(store.put(KEY, b"x"))
    inner.outcomes, inner.calls = [(5.0, None)], 0
    started = clock.monotonic()
    await clock.run(store.put(KEY, b"x"))
    assert (inner.calls, clock.monotonic() - started) == (2, pytest.approx(max(0.02, LEAST_DELAY_S)))


async def test_hedges_are_counted_by_what_they_brought() -> None:
    before = {result: counted(result) for result in ("won", "lost", "failed")}
    down = UnavailableError("down")
    for first, second in (((5.0, None), (0.0, None)), ((0.2, None), (5.0, None)), ((0.2, down), (0.2, down))):
        store, _, clock = hedged(first, second)
        await clock.run(asyncio.wait([asyncio.ensure_future(store.put(KEY, b"x"))]))
    assert {result: counted(result) - before[result] for result in before} == {"won": 1, "lost": 1, "failed": 1}
