"""A backfill leaves the event loop to live clients."""

from __future__ import annotations

from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from headrace.agent.fetch.files.walk import Batches
from tests.agent.fetch.fetch_world import World
from tests.storage.batches import plain_batch

HELD_SECONDS = 0.01


@pytest.mark.parametrize("history", [True, False])
async def test_historical_extents_leave_the_loop_as_long_as_they_held_it(
    monkeypatch: pytest.MonkeyPatch, *, history: bool
) -> None:
    world = World()
    (key,) = world.create_topic("t", 1)
    batch = plain_batch(1, b"x" * 1000)
    files = 20
    for _ in range(files):
        await world.write([(key, batch)])
    reader = world.new_service(CollectorRegistry())
    await reader.start()
    add = Batches.add

    def slow_add(batches: Batches, *args: Any, **more: Any) -> Any:
        world.clock.jump(HELD_SECONDS)
        return add(batches, *args, **more)

    monkeypatch.setattr(Batches, "add", slow_add)
    began = world.clock.monotonic()
    offset, wanted = (0, 10) if history else (files - 10, 11)  # the tail reaches the high watermark
    found = await world.fetch({key: offset}, service=reader, partition_max_bytes=wanted * len(batch))
    await reader.close()
    passed = world.clock.monotonic() - began
    assert found.records(key).count(b"x" * 1000) == 10
    assert passed == pytest.approx(10 * HELD_SECONDS * (2 if history else 1))
