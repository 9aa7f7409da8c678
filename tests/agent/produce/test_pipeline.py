"""The write path as a whole: what it promises to the agent that composes it."""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
from typing import Any

import pytest

from headrace.agent.produce import requests
from headrace.agent.produce.files import FileTrace, FlushReason
from headrace.protocol.request import CloseConnection
from headrace.storage.errors import UnavailableError
from tests.agent.produce.produce_faults import HeldMetastore, HeldStore
from tests.agent.produce.produce_world import ProduceWorld
from tests.patch import Patch
from tests.storage.batches import plain_batch

BATCH = plain_batch(1)


@pytest.mark.requirement("W2")
async def test_a_buffer_is_flushed_100_ms_after_its_first_batch() -> None:
    async with ProduceWorld() as world:
        world.create_topic("t")
        first = asyncio.create_task(world.produce(world.connect(), {"t": {0: BATCH}}))
        await world.clock.advance(0.09)
        second = asyncio.create_task(world.produce(world.connect(), {"t": {0: BATCH}}))
        await world.clock.advance(0.009)
        assert not first.done()
        await world.clock.advance(0.001)
        assert first.done()
        assert second.done()
        assert [trace.batch_count for trace in world.traces] == [2]


async def test_a_connection_keeps_its_order_with_many_requests_in_flight() -> None:
    async with ProduceWorld(flush_bytes=65_536) as world:
        topic = world.create_topic("t")
        connection = world.connect()
        batches = [plain_batch(2, b"%d" % n * 3000) for n in range(64)]
        sent = [asyncio.create_task(world.produce(connection, {"t": {0: batch}})) for batch in batches]
        await world.clock.run(asyncio.wait(sent))
        assert [stored.data for stored in await world.log_of(topic.key(0) or 0)] == batches
        assert len(world.traces) > 3
        offsets = [task.result()["t", 0].base_offset for task in sent]  # type: ignore[index]
        assert offsets == list(range(0, 128, 2))


async def test_traces_tell_the_floor_of_each_request() -> None:
    world = ProduceWorld()
    world.store, world.metastore = HeldStore(world.bucket), HeldMetastore(world.model)
    async with world:
        world.create_topic("t")
        sent = [asyncio.create_task(world.produce(world.connect(), {"t": {0: BATCH}}))]
        await world.clock.advance(0.04)
        sent.append(asyncio.create_task(world.produce(world.connect(), {"t": {0: BATCH}})))
        await world.clock.advance(0.26)
        await world.store.puts[0].finish()
        await world.clock.advance(0.01)
        await world.metastore.commits[0].finish()
        await world.clock.settle()
        start = 1000.0
        (trace,) = world.traces
        assert trace.appended_at == pytest.approx([start, start + 0.04])
        times = (trace.opened_at, trace.closed_at, trace.put_started_at, trace.stored_at, trace.commit_started_at)
        assert times == pytest.approx((start, start + 0.1, start + 0.1, start + 0.3, start + 0.3))
        assert trace.settled_at == pytest.approx(start + 0.31)
        assert (trace.is_committed, trace.commit_calls, trace.size_bytes) == (True, 1, 2 * len(BATCH))
        assert world.registry.get_sample_value("headrace_produce_put_seconds_sum") == pytest.approx(0.2)
        assert world.registry.get_sample_value("headrace_produce_commit_seconds_sum") == pytest.approx(0.01)
        assert world.registry.get_sample_value("headrace_produce_buffer_seconds_sum") == pytest.approx(0.1)
        assert world.metric("bytes_total") == 2 * len(BATCH)


async def test_drain_flushes_at_once_and_waits_for_every_answer() -> None:
    world = ProduceWorld()
    world.metastore = HeldMetastore(world.model)
    async with world:
        world.create_topic("t")
        sent = asyncio.create_task(world.produce(world.connect(), {"t": {0: BATCH}}))
        await world.clock.settle()
        draining = asyncio.create_task(world.pipeline.drain())
        await world.clock.settle()
        assert len(world.metastore.commits) == 1
        assert not draining.done()
        world.metastore.commits[0].fail(UnavailableError("down"))
        late = asyncio.create_task(world.produce(world.connect(), {"t": {0: BATCH}}))
        await world.clock.advance(0.2)
        await world.metastore.commits[1].finish()
        await world.clock.settle()
        if len(world.metastore.commits) > 2:
            await world.metastore.commits[2].finish()
        await world.clock.settle()
        assert draining.done()
        assert sent.done()
        assert late.done()
        assert world.traces[0].reason is FlushReason.DRAIN
        await world.pipeline.drain()


async def test_close_ends_waiting_requests_with_their_connections() -> None:
    world = ProduceWorld()
    world.metastore = HeldMetastore(world.model)
    async with world:
        world.create_topic("t", 2)
        connection = world.connect()
        committing = asyncio.create_task(world.produce(connection, {"t": {0: BATCH}}))
        await world.clock.advance(0.1)
        buffered = asyncio.create_task(world.produce(connection, {"t": {1: BATCH}}))
        await world.clock.settle()
        await world.pipeline.close()
        for task in (committing, buffered):
            with pytest.raises(CloseConnection):
                await task
        with pytest.raises(CloseConnection, match="closed"):
            await world.produce(connection, {"t": {0: BATCH}})


async def test_nothing_is_served_before_start() -> None:
    world = ProduceWorld()
    world.create_topic("t")
    world.compose()
    with pytest.raises(CloseConnection, match="not started"):
        await world.produce(world.connect(), {"t": {0: BATCH}})


async def test_a_broken_loop_stops_the_path_instead_of_letting_clients_hang() -> None:
    world = ProduceWorld()
    world.traces = Exploding()
    async with world:
        world.create_topic("t")
        with pytest.raises(CloseConnection, match="produce-commit"):
            await world.clock.run(_produce_until_refused(world))
        await world.pipeline.drain()


class Exploding(list[FileTrace]):
    def append(self, trace: FileTrace) -> None:
        raise RuntimeError("a bug in a callback")


async def _produce_until_refused(world: ProduceWorld) -> None:
    for _ in range(3):
        await world.produce(world.connect(), {"t": {0: BATCH}})
        await world.clock.sleep(1)


async def test_a_deadline_counts_from_the_requests_arrival() -> None:
    world = ProduceWorld()
    world.store = HeldStore(world.bucket)
    async with world:
        world.create_topic("t")
        sent = [
            asyncio.create_task(world.produce(world.connect(), {"t": {0: BATCH}}, timeout_ms=ms))
            for ms in (500, 1500, 0, -5)
        ]
        await world.clock.advance(0.45)
        assert [task.done() for task in sent] == [False, False, True, True]
        await world.clock.advance(0.25)
        assert [task.done() for task in sent] == [True, False, True, True]
        assert sent[0].result() == sent[2].result()
        assert sent[0].result()["t", 0].error == "request_timed_out"  # type: ignore[index]
        await world.store.puts[0].finish()
        await world.clock.settle()
        assert sent[1].result()["t", 0].error == "none"  # type: ignore[index]


async def _copies(rng: random.Random) -> int:
    """Return how often a batch is in the log if its producer has no id and sends it again after each timeout.

    Another client's request waits for the same files, so they are committed in any case.
    """
    world = ProduceWorld()
    store = world.store = HeldStore(world.bucket)
    async with world:
        key = world.create_topic("t", 2).key(0)
        assert key is not None
        timeout_ms = rng.choice((-1, 0, 1, 400, 20_000, 60_000))
        for _ in range(3):
            sent = asyncio.create_task(
                world.produce(world.connect(), {"t": {0: BATCH}}, timeout_ms=timeout_ms, acks=rng.choice((0, 1)))
            )
            other = asyncio.create_task(world.produce(world.connect(), {"t": {1: BATCH}}, timeout_ms=60_000))
            await world.clock.advance(rng.uniform(0.2, 29))
            while store.puts:
                await store.puts.pop().finish()
            await world.clock.settle()
            await other
            with contextlib.suppress(CloseConnection):
                answers = await sent
                if answers is None or answers["t", 0].error != "request_timed_out":
                    break
        return len(await world.log_of(key))


async def test_without_acks_all_a_record_is_stored_once_with_any_timeout() -> None:
    assert [await _copies(random.Random(seed)) for seed in range(12)] == [1] * 12


async def test_a_client_that_hears_too_early_of_a_timeout_writes_twice(patch: Patch) -> None:
    """A planted bug: the client's timeout applies to acks=0 and acks=1 too."""
    patch.replace(requests, "LEADER_ONLY_TIMEOUT_MS", 100)
    assert max([await _copies(random.Random(seed)) for seed in range(3)]) > 1


@pytest.mark.parametrize("acks", [0, 1])
async def test_without_acks_all_a_request_waits_for_half_a_minute(acks: int) -> None:
    world = ProduceWorld()
    world.store = HeldStore(world.bucket)
    async with world:
        world.create_topic("t")
        sent = asyncio.create_task(world.produce(world.connect(), {"t": {0: BATCH}}, timeout_ms=60_000, acks=acks))
        await world.clock.advance(30.2)
        if acks == 0:
            with pytest.raises(CloseConnection):
                await sent
        else:
            assert (await sent)["t", 0].error == "request_timed_out"  # type: ignore[index]
        await world.store.puts[0].finish()


async def test_a_client_that_went_away_does_not_take_its_batches_along(world: ProduceWorld) -> None:
    topic = world.create_topic("t")
    gone = asyncio.create_task(world.produce(world.connect(), {"t": {0: BATCH}}))
    stays = asyncio.create_task(world.produce(world.connect(), {"t": {0: BATCH}}))
    await world.clock.settle()
    gone.cancel()
    await world.clock.advance(0.1)
    assert stays.done()
    assert len(await world.log_of(topic.key(0) or 0)) == 2


def test_a_trace_of_what_never_happened_is_nan() -> None:
    trace: Any = FileTrace(1.0)
    assert math.isnan(trace.stored_at)
    assert not trace.is_committed
