"""Requests that a client sends without waiting for answers: order, and what they may hold of loop and memory."""

from __future__ import annotations

import asyncio
import random
import struct
import tracemalloc
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from headrace.agent.listener import connection as connection_module
from headrace.agent.listener.memory import MemoryBudget, ReplyMemory
from headrace.agent.listener.replies import ReplyQueue, Slot
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.request import Promise, Request, Response
from headrace.storage.clock import SystemClock
from tests.agent.listener.listener_client import (
    METADATA,
    MIB,
    PRODUCE,
    Client,
    Gate,
    Listening,
    answer,
    frame,
    limits,
    listening,
    produce_frame,
    until,
)
from tests.patch import Patch

pytestmark = pytest.mark.requirement("X7")
Handle = Callable[[Request], Awaitable[Response]]
OTHERS_MAX = 64
"""Requests of one connection that are not Produce."""


class FirstWaits:
    """Answers each request at once, but for number 0, which the test answers."""

    def __init__(self) -> None:
        self.started: list[int] = []
        self._first = asyncio.Event()

    async def handle(self, request: Request) -> Response:
        self.started.append(request.correlation_id)
        if request.correlation_id == 0:
            await self._first.wait()
        return answer(request)

    def open(self) -> None:
        self._first.set()


async def _turns(server: Listening) -> None:
    """The agent has served another client some times."""
    client = await server.connect()
    for number in range(1_000_000, 1_000_003):
        await client.send(frame(number))
        await client.reply()
    await client.close()


async def _in_order(client: Client, count: int) -> None:
    assert [(await client.reply())[0] for _ in range(count)] == list(range(count))


# -- order


@pytest.mark.parametrize("seed", range(4))
async def test_answers_of_apis_with_different_limits_come_in_order(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Produce requests and others have different limits, and end in any order."""
    monkeypatch.setattr(connection_module, "_OTHERS_INFLIGHT_MAX", 4)
    rng, gate, count, most = random.Random(seed), Gate(), 60, 12
    apis = [rng.choice([PRODUCE, PRODUCE, METADATA, ApiKey.FETCH, ApiKey.OFFSET_COMMIT]) for _ in range(count)]
    opened: set[int] = set()

    async def handle(request: Request) -> Response:
        first_unsent = min(set(range(count)) - opened)
        unsent = [number for number in (*gate.started, request.correlation_id) if number >= first_unsent]
        assert len(unsent) <= most
        assert sum(apis[number] != PRODUCE for number in unsent) <= 4
        return await gate.handle(request)

    async with listening(handle, limits(inflight=most)) as server:
        client = await server.connect()
        await client.send(*(frame(number, b"", api, version=7) for number, api in enumerate(apis)))
        for number in range(count):
            while number not in opened:
                await until(lambda: bool(set(gate.started) - opened))
                chosen = rng.choice(sorted(set(gate.started) - opened))
                opened.add(chosen)
                gate.open(chosen)
            assert (await client.reply())[0] == number
    assert gate.started == list(range(count))


# -- what is started


async def _started_behind_a_produce(count: int = 100) -> int:
    """Return how many requests of another API start behind a Produce without an answer; all are answered in the end."""
    handler = FirstWaits()
    async with listening(handler.handle, limits(inflight=512)) as server:
        client = await server.connect()
        await client.send(produce_frame(0, 100), *(frame(number) for number in range(1, count + 1)))
        await until(lambda: len(handler.started) > OTHERS_MAX)
        await _turns(server)
        started = sum(number <= count for number in handler.started) - 1
        handler.open()
        await _in_order(client, count + 1)
    return started


async def test_answers_that_wait_behind_a_produce_are_as_many_as_other_requests_may_be(
    patch: Patch,
) -> None:
    assert await _started_behind_a_produce() == OTHERS_MAX
    made = ReplyQueue.made

    def made_and_forgotten(self: ReplyQueue, slot: Slot, now: float) -> None:
        made(self, slot, now)
        self.others -= slot.header.api_key != PRODUCE

    patch.replace(ReplyQueue, "made", made_and_forgotten)
    assert await _started_behind_a_produce() == 100, "planted: only requests without an answer count"


async def _most_in_a_turn(handle: Handle, clock: SystemClock, count: int) -> int:
    """Return how many of `count` requests, which come in one read, one turn of the event loop starts at most."""
    in_turn: Counter[int] = Counter()
    turn = 0

    def begin(request: Request) -> Awaitable[Response]:
        in_turn[turn] += 1
        return handle(request)

    async def count_turns() -> None:
        nonlocal turn
        while True:
            turn += 1
            await asyncio.sleep(0)

    async with listening(begin, limits(inflight=512), clock) as server:
        client = await server.connect()
        counting = asyncio.create_task(count_turns())
        await client.send(*(produce_frame(number, 10) for number in range(count)))
        await _in_order(client, count)
        counting.cancel()
    assert sum(in_turn.values()) == count
    return max(in_turn.values())


async def _at_once(request: Request) -> Response:
    return answer(request)


async def test_one_turn_of_the_loop_starts_some_requests_only(patch: Patch) -> None:
    """512 may be in progress, and a read may bring all of them."""
    assert await _most_in_a_turn(_at_once, SystemClock(), 400) <= 64
    patch.replace(connection_module, "_TURN_REQUESTS", 512)
    patch.replace(connection_module, "_TURN_SECONDS", 3_600)
    assert await _most_in_a_turn(_at_once, SystemClock(), 400) > 64, "planted: all that was read"


class SlowClock(SystemClock):
    """Time passes only where a handler works."""

    at = 0.0

    def monotonic(self) -> float:
        return self.at


async def test_one_turn_of_the_loop_starts_few_requests_that_take_long(patch: Patch) -> None:
    clock = SlowClock()

    def begin(request: Request) -> Awaitable[Response]:
        clock.at += 0.004
        return _at_once(request)

    assert await _most_in_a_turn(begin, clock, 100) <= 4
    patch.replace(connection_module, "_TURN_SECONDS", 3_600)
    assert await _most_in_a_turn(begin, clock, 100) > 4, "planted: no limit of time"


# -- what is held


def test_what_belongs_to_a_frame_counts_in_its_class() -> None:
    """Else frames that are small and decode to a lot use the reserve of small ones without an end."""
    budget = MemoryBudget(100, small_bytes=10, small_reserve=30)
    assert budget.reserve(10, lambda: None)
    budget.charge(50, of=10)
    assert budget.in_use_bytes == 60
    assert budget.reserve(20, lambda: None)
    assert not budget.reserve(25, lambda: None)
    assert not budget.reserve(10, lambda: None), "the reserve is used up, and a large frame waits"
    budget.release(60, of=10)
    assert budget.in_use_bytes == 20 + 25 + 10


async def _started_with_large_decodings() -> int:
    """Return how many of 50 small requests start that take 30 KB each besides their frames, of 100 KB in all."""
    gate = Gate()

    def begin(request: Request) -> Awaitable[Response]:
        if request.api_key != PRODUCE:
            return _at_once(request)
        request.kept_bytes = 30_000
        return gate.handle(request)

    async with listening(begin, limits(memory=100_000)) as server:
        client = await server.connect()
        await client.send(*(produce_frame(number, 10) for number in range(50)))
        await until(lambda: len(gate.started) >= 3)
        await _turns(server)
        started = len(gate.started)
        gate.open(*range(50))
        await _in_order(client, 50)
        await until(lambda: server.metric("headrace_kafka_budget_bytes") == 0)
    return started


async def test_what_a_request_takes_besides_its_frame_is_counted(patch: Patch) -> None:
    assert await _started_with_large_decodings() == 4, "the fourth frame has room, and then nothing has"
    patch.replace(Slot, "keep", lambda self, size_bytes: None)
    assert await _started_with_large_decodings() == 50, "planted: frames alone are counted"


class Long(Promise):
    """Answered at once, with 256 KiB."""

    def __init__(self, request: Request) -> None:
        super().__init__()
        self._answer = answer(request, bytes(256 * 1024))
        self.answer()

    def response(self) -> Response:
        return self._answer


async def _held_behind_a_produce() -> float:
    """Return the bytes of replies that wait behind the first one, of which 1 MiB has room in all."""
    handler = FirstWaits()

    def begin(request: Request) -> Awaitable[Response]:
        is_long = 0 < request.correlation_id < 100
        return Long(request) if is_long else handler.handle(request)

    async with listening(begin, replace(limits(inflight=512), reply_memory_bytes=MIB)) as server:
        client = await server.connect()
        await client.send(*(produce_frame(number, 10) for number in range(100)))
        await until(lambda: server.metric("headrace_kafka_memory_bytes", share="replies") >= MIB)
        other = await server.connect()
        for number in range(1_000_000, 1_000_003):
            await other.send(frame(number, api_key=ApiKey.HEARTBEAT))
            assert (await other.reply())[0] == number, "another connection is served"
        held = server.metric("headrace_kafka_memory_bytes", share="replies")
        handler.open()
        await _in_order(client, 100)
        for each in (client, other):
            await each.close()
        return held


async def test_no_request_starts_while_replies_of_its_connection_fill_their_memory(
    patch: Patch,
) -> None:
    """Answers of Produce are made without a reservation: one with an error for each partition is long."""
    assert await _held_behind_a_produce() < 1.5 * MIB
    patch.replace(ReplyMemory, "is_full", False)
    assert await _held_behind_a_produce() > 8 * MIB, "planted: replies are made without an end"


async def _held_with_long_client_ids() -> int:
    """Return the bytes that 400 answered requests with client ids of 32 KB keep behind one without an answer."""
    handler = FirstWaits()
    async with listening(handler.handle, limits(inflight=512)) as server:
        client = await server.connect()
        await client.send(produce_frame(0, 100))
        tracemalloc.start()
        try:
            for start in range(1, 401, 40):
                await client.send(*(_named("n" * 32_767, number) for number in range(start, start + 40)))
                await until(lambda start=start: len(handler.started) >= start + 40)
            await until(lambda: server.metric("headrace_kafka_budget_bytes") < 2_000)
            held = tracemalloc.get_traced_memory()[0]
        finally:
            tracemalloc.stop()
        handler.open()
        await _in_order(client, 401)
    return held


def _named(client_id: str, number: int) -> bytes:
    """A Produce request with this client id."""
    head = struct.pack(f">hhih{len(client_id)}s", PRODUCE, 7, number, len(client_id), client_id.encode())
    return struct.pack(">i", len(head)) + head


async def test_an_answered_request_does_not_keep_its_client_id(patch: Patch) -> None:
    """It waits for the answer before it, and a client id may have 32,767 bytes."""
    assert await _held_with_long_client_ids() < 2 * MIB
    patch.replace(connection_module, "SHOWN_CHARACTERS", MIB)
    assert await _held_with_long_client_ids() > 8 * MIB, "planted: they are kept as they came"
