"""DelayedStore: PUTs wait, side by side, and nothing else does."""

from __future__ import annotations

import asyncio

from headrace.cli.bench.slow_agent import DelayedStore
from headrace.storage.objects.memory import MemoryStore
from tests.manual_clock import ManualClock


async def test_puts_wait_side_by_side_and_other_requests_do_not() -> None:
    clock = ManualClock()
    plain = MemoryStore(clock)
    store = DelayedStore(plain, put_seconds=0.03, clock=clock)
    await plain.put("there", b"1")
    puts = asyncio.gather(store.put("a", b"2"), store.put("b", b"3"))
    await clock.advance(0.029)
    assert [info.key async for info in store.list_objects()] == ["there"]
    assert await store.get("there") == b"1"
    await clock.advance(0.001)
    assert [info.size for info in await puts] == [1, 1]
    assert await store.get("b") == b"3"
