"""Early flushes on the real pipeline: who is waited for, what holds them up, and the order of what they close."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from headrace.agent.listener.host import ProduceBytes
from headrace.agent.listener.memory import MemoryBudget
from headrace.agent.produce.files import FlushReason
from headrace.agent.produce.flush_policy import COMMITS_MIN, SLOT_S, SLOW_COMMIT_S, SPAN_S, dollars_per_month
from headrace.agent.produce.flusher import EARLY_FILES_MAX
from headrace.cli.bench.slow_agent import DelayedStore
from tests.agent.produce.produce_faults import HeldStore
from tests.agent.produce.produce_world import ProduceWorld
from tests.storage.batches import plain_batch

BATCH = plain_batch(1, b"x" * 100)


def _world(**settings: Any) -> ProduceWorld:
    return ProduceWorld(**{"flush_early_per_second": None, "flush_early_burst": 100, **settings})


def _send(world: ProduceWorld, connection: Any = None, **options: Any) -> asyncio.Task[Any]:
    return asyncio.create_task(world.produce(connection or world.connect(), {"t": {0: BATCH}}, **options))


@pytest.mark.requirement("X8")
async def test_a_lone_client_is_answered_without_any_wait() -> None:
    async with _world() as world:
        world.create_topic("t")
        connection = world.connect()
        for _ in range(5):
            sent = _send(world, connection)
            await world.clock.settle()
            assert sent.done()
        assert {trace.reason for trace in world.traces} == {FlushReason.CLIENTS_WAIT}
        assert {trace.settled_at - trace.opened_at for trace in world.traces} == {0.0}


async def test_a_client_that_may_still_send_is_waited_for_while_bytes_arrive() -> None:
    async with _world() as world:
        world.create_topic("t")
        free, busy = world.connect(), world.connect()
        await world.clock.run(_send(world, free))
        sent = _send(world, busy)
        await world.clock.advance(0.002)
        assert not sent.done()
        second = _send(world, world.connect())
        await world.clock.advance(0.002)
        assert not sent.done()
        await world.clock.advance(0.0011)
        assert sent.done()
        assert second.done()
        assert [trace.reason for trace in world.traces] == [FlushReason.CLIENTS_WAIT, FlushReason.IDLE]


async def test_clients_without_acks_never_count_as_waiting() -> None:
    async with _world() as world:
        world.create_topic("t")
        sent = _send(world, acks=0)
        await world.clock.settle()
        assert not world.traces
        await world.clock.advance(0.0031)
        assert sent.done()
        assert [trace.reason for trace in world.traces] == [FlushReason.IDLE]


async def test_half_a_request_is_waited_for_but_no_longer_than_the_idle_time() -> None:
    world = _world()
    world.produce_bytes = seen = ProduceBytes()
    async with world:
        world.create_topic("t")
        seen.half_received = 1
        sent = _send(world)
        await world.clock.advance(0.002)
        seen.saw(world.clock.monotonic())
        await world.clock.advance(0.002)
        assert not sent.done()
        await world.clock.advance(0.0011)
        assert sent.done()


async def test_while_memory_is_short_the_linger_decides() -> None:
    world = _world()
    budget = MemoryBudget(1)
    for _ in range(2):
        budget.reserve(1, lambda: None)
    world.produce_bytes = ProduceBytes(budget)
    async with world:
        world.create_topic("t")
        sent = _send(world)
        await world.clock.advance(0.0999)
        assert not sent.done()
        await world.clock.advance(0.0001)
        assert sent.done()
        assert [trace.reason for trace in world.traces] == [FlushReason.LINGER]


@pytest.mark.requirement("X8", "W4")
async def test_behind_five_slow_files_the_next_one_fills_up_and_order_is_kept() -> None:
    world = _world()
    world.store = store = HeldStore(world.bucket)
    async with world:
        topic = world.create_topic("t")
        connection = world.connect()
        batches = [plain_batch(1, b"%d" % number) for number in range(EARLY_FILES_MAX + 3)]
        sent = []
        for batch in batches:
            sent.append(asyncio.create_task(world.produce(connection, {"t": {0: batch}})))
            await world.clock.advance(0.0031)
        assert len(store.puts) == EARLY_FILES_MAX
        for put in reversed(store.puts[1:]):
            await put.finish()
        await world.clock.settle()
        assert not any(task.done() for task in sent)
        await store.puts[0].finish()
        await world.clock.settle()
        assert len(store.puts) == EARLY_FILES_MAX + 1
        await store.puts[-1].finish()
        await world.clock.run(asyncio.wait(sent))
        assert [stored.data for stored in await world.log_of(topic.key(0) or 0)] == batches


@pytest.mark.requirement("X8")
async def test_a_small_file_waits_for_clients_that_were_just_answered_but_no_longer_than_the_idle_time() -> None:
    async with _world() as world:
        world.create_topic("t")
        connection = world.connect()
        await world.clock.run(asyncio.gather(*(_send(world, connection) for _ in range(5))))
        sent = [_send(world, connection) for _ in range(4)]
        await world.clock.advance(0.0029)
        assert not any(task.done() for task in sent)
        await world.clock.advance(0.0002)
        assert all(task.done() for task in sent)
        sent = [_send(world, connection) for _ in range(5)]
        await world.clock.settle()
        assert all(task.done() for task in sent)
        assert [len(trace.appended_at) for trace in world.traces] == [5, 4, 5]


async def test_a_file_of_half_a_mebibyte_waits_for_no_client() -> None:
    async with _world() as world:
        world.create_topic("t")
        connection = world.connect()
        large = plain_batch(1, b"x" * (512 << 10))
        await world.clock.run(asyncio.gather(*(_send(world, connection) for _ in range(5))))
        sent = asyncio.create_task(world.produce(connection, {"t": {0: large}}))
        await world.clock.settle()
        assert sent.done()


async def test_a_file_that_waited_for_clients_is_closed_after_the_idle_time_though_one_sent_just_before() -> None:
    """Not the idle time after that one, because by then all wait."""
    world = _world()
    world.store = HeldStore(world.bucket)
    async with world:
        world.create_topic("t")
        _send(world)
        await world.clock.settle()
        _send(world)
        await world.clock.advance(0.0029)
        _send(world)
        await world.clock.settle()
        assert len(world.store.puts) == 1
        await world.clock.advance(0.0002)
        assert len(world.store.puts) == 2
        for put in world.store.puts:
            await put.finish()


async def test_an_empty_budget_waits_for_its_next_token() -> None:
    async with _world(flush_early_per_second=20, flush_early_burst=1) as world:
        world.create_topic("t")
        connection = world.connect()
        await world.clock.run(_send(world, connection))
        sent = _send(world, connection)
        await world.clock.advance(0.049)
        assert not sent.done()
        await world.clock.advance(0.004)
        assert sent.done()


@pytest.mark.requirement("X8")
async def test_a_lone_client_waits_for_the_put_while_there_are_savings_and_then_for_what_is_earned() -> None:
    """With 20 saved, and 10 earned a second: 22 PUTs a second use them up in 36 round trips."""
    world = _world(bucket="s3://bucket/prefix", flush_early_burst=5, flush_early_saving_ms=2_000)
    world.store = DelayedStore(world.bucket, put_seconds=0.045, clock=world.clock)
    async with world:
        world.create_topic("t")
        connection = world.connect()
        await world.clock.advance(2)
        took = []
        for _ in range(60):
            started_at = world.clock.monotonic()
            await world.clock.run(_send(world, connection))
            took.append(world.clock.monotonic() - started_at)
        assert took[:35] == [pytest.approx(0.045)] * 35
        assert took[40:] == [pytest.approx(0.1, abs=0.004)] * 20


@pytest.mark.requirement("X8")
async def test_the_budget_of_early_flushes_is_shown_as_money() -> None:
    async with _world(bucket="s3://bucket/prefix", flush_early_burst=20) as world:
        world.create_topic("t")
        connection = world.connect()
        for _ in range(6):
            await world.clock.run(_send(world, connection))
        assert world.registry.get_sample_value("headrace_early_flush_dollars_per_month") == pytest.approx(
            dollars_per_month(6 / (SPAN_S + world.clock.monotonic() % SLOT_S))
        )
        assert world.registry.get_sample_value("headrace_early_flushes_saved") == pytest.approx(14)
        assert world.registry.get_sample_value("headrace_early_flush_rate_limit") == 50
    async with _world() as world:
        world.create_topic("t")
        await world.clock.run(_send(world))
        assert world.registry.get_sample_value("headrace_early_flush_dollars_per_month") == 0, "a directory"


async def test_slow_commits_lower_the_rate_of_early_flushes(monkeypatch: pytest.MonkeyPatch) -> None:
    world = _world(bucket="s3://bucket/prefix")
    commit_files = world.model.commit_files

    async def commit_late(*arguments: Any) -> Any:
        await world.clock.sleep(SLOW_COMMIT_S * 1.5)
        return await commit_files(*arguments)

    monkeypatch.setattr(world.model, "commit_files", commit_late)
    async with world:
        world.create_topic("t")
        connection = world.connect()
        for _ in range(COMMITS_MIN + 1):
            await world.clock.run(_send(world, connection))
        assert world.registry.get_sample_value("headrace_early_flush_rate_limit") == 25


async def test_a_request_that_timed_out_does_not_keep_its_client_waiting() -> None:
    world = _world()
    world.store = HeldStore(world.bucket)
    async with world:
        world.create_topic("t")
        connection = world.connect()
        late = _send(world, connection, timeout_ms=50)
        await world.clock.advance(0.2)
        assert late.done()
        assert connection.produce_unanswered == 0
