"""ThrottledStore: rates hold over every interval, and no caller waits without need."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.storage.objects.memory import MemoryStore
from headrace.storage.objects.store import ByteRange
from headrace.storage.objects.throttled import ThrottledStore, TokenBucket
from tests.manual_clock import ManualClock
from tests.seeds import examples


@settings(max_examples=examples(50))
@given(
    rate=st.floats(1, 1000),
    asked=st.lists(st.tuples(st.floats(0, 3), st.floats(0, 2000)), min_size=1, max_size=12),
)
def test_no_stretch_of_time_sees_more_than_its_share(rate: float, asked: list[tuple[float, float]]) -> None:
    """`asked`: (seconds after the one before, tokens) of callers that run side by side."""
    let_through = asyncio.run(_let_through(rate, asked))
    for begin, (since, _) in enumerate(let_through):
        for end in range(begin, len(let_through)):
            counts = [count for _, count in let_through[begin : end + 1]]
            allowed = rate * (let_through[end][0] - since + 1) + max(counts)  # one request may be owed for
            assert sum(counts) <= allowed + 1e-6 * sum(counts)


async def _let_through(rate: float, asked: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """(time, tokens) of each caller, in the order in which they were let through."""
    clock = ManualClock()
    bucket = TokenBucket(rate, clock)
    done: list[tuple[float, float]] = []

    async def taker(count: float) -> None:
        await bucket.take(count)
        done.append((clock.monotonic(), count))

    takers = []
    for pause, count in asked:
        await clock.advance(pause)
        takers.append(asyncio.ensure_future(taker(count)))
        await clock.settle()
    await clock.run(asyncio.gather(*takers), limit_seconds=1e6)
    return done


async def test_what_fits_waits_for_nothing() -> None:
    clock = ManualClock()
    store = ThrottledStore(MemoryStore(clock), bytes_per_s=100, requests_per_s=10, clock=clock)
    for number in range(4):
        await store.put(f"k{number}", bytes(25))  # the clock does not move: a wait would never end


async def test_bytes_and_requests_are_paid_for() -> None:
    clock = ManualClock()
    store = ThrottledStore(MemoryStore(clock), bytes_per_s=100, requests_per_s=10, clock=clock)
    started = clock.monotonic()
    await store.put("k", bytes(500))  # more than a second's worth: at once, and owed
    await clock.run(store.get("k", ByteRange(0, 1)))
    assert clock.monotonic() - started == pytest.approx(4.0)
    await clock.run(store.get("k"))  # whole: paid for when its size is known
    await clock.run(store.put("l", b"x"))
    assert clock.monotonic() - started == pytest.approx(9.01)
    started = clock.monotonic()
    await clock.advance(5)
    for _ in range(20):
        await clock.run(store.head("k"))
    await clock.run(store.delete_many(["k"]))
    assert clock.monotonic() - started == pytest.approx(6.0)
    assert await clock.run(_listed(store)) == ["l"]
    assert clock.monotonic() - started == pytest.approx(6.1)


async def test_a_new_rate_applies_to_existing_debts() -> None:
    """Also for who waits already: with a rate set too low by mistake a job would never end."""
    clock = ManualClock()
    store = ThrottledStore(MemoryStore(clock), bytes_per_s=1, requests_per_s=10, clock=clock)
    await store.put("k", bytes(1_000_001))
    waiting = asyncio.ensure_future(store.put("l", b"x"))
    await clock.advance(100)
    assert not waiting.done()
    store.limit_bytes(1_000_000)
    await clock.advance(11)
    assert waiting.done()
    await store.put("m", bytes(2_000_000))
    started = clock.monotonic()
    store.limit_bytes(100_000)
    await clock.run(store.put("n", b"x"))
    assert clock.monotonic() - started == pytest.approx(10, rel=0.05)


async def _listed(store: ThrottledStore) -> list[str]:
    return [info.key async for info in store.list_objects()]
