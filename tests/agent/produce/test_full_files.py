"""The requests that a client keeps in flight come into one file, unless the bucket is slow.

Behind a PUT that takes longer than linger.idle.ms a file is closed early all the same: then files overlap.
"""

from __future__ import annotations

import asyncio
import functools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.agent.produce import pipeline
from headrace.agent.produce.flush_policy import FlushLimits
from headrace.cli.bench.slow_agent import DelayedStore
from tests.agent.produce.produce_world import ProduceWorld
from tests.seeds import examples
from tests.storage.batches import plain_batch

ROUNDS = 20


async def _files(depth: int, put_seconds: float, turnaround_seconds: float, seed: int) -> list[int]:
    """Requests of each file, while a client sends another request soon after each answer."""
    world = ProduceWorld(seed=seed, flush_early_per_second=None, flush_early_burst=1_000)
    world.store = DelayedStore(world.bucket, put_seconds=put_seconds, clock=world.clock)
    rng = random.Random(seed)
    async with world:
        world.create_topic("t")

        async def send(connection: object) -> None:
            for _ in range(ROUNDS):
                await world.clock.sleep(rng.uniform(0, turnaround_seconds))
                await world.produce(connection, {"t": {0: plain_batch(1, b"x")}})  # type: ignore[arg-type]

        connection = world.connect()
        await world.clock.run(asyncio.gather(*(send(connection) for _ in range(depth))))
        return [len(trace.appended_at) for trace in world.traces]


def _files_max(depth: int) -> int:
    """A file a round and a few more, and at first one for each request until the depth is known."""
    return ROUNDS * 5 // 4 + depth


@pytest.mark.requirement("X8")
@settings(max_examples=examples(30))
@given(
    depth=st.integers(1, 8),
    put_seconds=st.sampled_from([0.001, 0.002, 0.0025]),
    turnaround_seconds=st.sampled_from([0.0, 0.0005]),
    seed=st.integers(0, 1_000),
)
async def test_a_file_holds_all_requests_that_a_client_keeps_in_flight(
    depth: int, put_seconds: float, turnaround_seconds: float, seed: int
) -> None:
    files = await _files(depth, put_seconds, turnaround_seconds, seed)
    assert sum(files) == depth * ROUNDS
    assert len(files) <= _files_max(depth)


async def test_if_small_files_wait_for_no_client_they_hold_less(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "FlushLimits", functools.partial(FlushLimits, full_bytes=0))
    files = await _files(5, 0.002, 0.0005, seed=1)
    assert len(files) > _files_max(5)
