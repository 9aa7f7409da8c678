"""Requests that are answered by a callback instead of a task: same order, same bounds, same endings."""

from __future__ import annotations

import asyncio
import gc
import struct
import weakref

import pytest

from headrace.protocol.request import CloseConnection, Promise, Request, Response
from tests.agent.listener.listener_client import Client, Listening, frame, limits, listening, produce_frame, until
from tests.manual_clock import ManualClock


class Word(Promise):
    """Kept when the test says so, with `error` if there is one."""

    def __init__(self, correlation_id: int) -> None:
        super().__init__()
        self.correlation_id = correlation_id
        self.error: Exception | None = None

    def response(self) -> Response:
        if self.error is not None:
            raise self.error
        return Response([struct.pack(">i", self.correlation_id)])


class Promising:
    """A handler that promises every request, except those with the body `task`."""

    def __init__(self) -> None:
        self.given: list[Word] = []
        self.release_tasks = asyncio.Event()

    def handle(self, request: Request) -> Word | asyncio.Future[Response]:
        if bytes(request.body) == b"raise":
            raise CloseConnection("not today")
        word = Word(request.correlation_id)
        self.given.append(word)
        if bytes(request.body) == b"task":
            return self._later(word)  # type: ignore[return-value]
        if bytes(request.body) == b"at once":
            word.answer()
        return word

    async def _later(self, word: Word) -> Response:
        await self.release_tasks.wait()
        return word.response()


async def _given(promising: Promising, count: int) -> list[Word]:
    await until(lambda: len(promising.given) >= count)
    return promising.given


async def test_promises_and_tasks_are_answered_in_the_order_of_their_requests() -> None:
    promising = Promising()
    async with listening(promising.handle) as server:
        client = await server.connect()
        bodies = [b"", b"task", b"at once", b""]
        await client.send(*(frame(number, body) for number, body in enumerate(bodies)))
        words = await _given(promising, 4)
        words[3].answer()
        promising.release_tasks.set()
        first = asyncio.ensure_future(client.reply())
        await asyncio.sleep(0.01)
        assert not first.done(), "the first is not answered, so none is"
        words[0].answer()
        words[0].answer()
        assert (await first)[0] == 0
        assert [(await client.reply())[0] for _ in range(3)] == [1, 2, 3]


async def test_what_was_answered_is_gone_without_the_garbage_collector() -> None:
    """Thousands of requests a second would keep it busy."""
    promising = Promising()
    async with listening(promising.handle) as server:
        client = await server.connect()
        await client.send(frame(0, b""))
        word = (await _given(promising, 1)).pop()
        gone = weakref.ref(word)
        gc.disable()
        try:
            word.answer()
            del word
            await client.reply()
            assert gone() is None
        finally:
            gc.enable()


@pytest.mark.parametrize("error", [CloseConnection("no"), RuntimeError("a bug")])
async def test_a_broken_promise_ends_its_connection_after_the_replies_before_it(error: Exception) -> None:
    promising = Promising()
    async with listening(promising.handle) as server:
        client, other = await server.connect(), await server.connect()
        await client.send(frame(0), frame(1), frame(2))
        words = await _given(promising, 3)
        words[1].error = error
        for word in words:
            word.answer()  # the code that keeps promises does not see what happens to one
        assert (await client.reply())[0] == 0
        assert await client.ended() == b""
        await other.send(frame(5, b"at once"))
        assert (await other.reply())[0] == 5


async def test_a_handler_that_raises_before_it_promises_ends_its_connection() -> None:
    promising = Promising()
    async with listening(promising.handle) as server:
        client = await server.connect()
        await client.send(frame(0, b"at once"), frame(1, b"raise"), frame(2, b"at once"))
        assert (await client.reply())[0] == 0
        assert await client.ended() == b""


async def test_a_promised_frames_memory_is_taken_until_it_is_answered() -> None:
    promising = Promising()
    async with listening(promising.handle, limits(memory=1000)) as server:
        client = await server.connect()
        await client.send(produce_frame(0, 800), produce_frame(1, 800))
        await until(lambda: server.metric("headrace_kafka_paused_producers") == 1)
        assert len(promising.given) == 1
        promising.given[0].answer()
        await _given(promising, 2)
        promising.given[1].answer()
        assert [(await client.reply())[0] for _ in range(2)] == [0, 1]
        assert server.metric("headrace_kafka_budget_bytes") == 0


async def test_a_drain_waits_for_promises_also_of_clients_that_are_gone() -> None:
    promising = Promising()
    async with listening(promising.handle) as server:
        client, gone = await server.connect(), await server.connect()
        await gone.send(frame(0))
        await _given(promising, 1)
        await _leave(server, gone)
        await client.send(frame(1))
        words = await _given(promising, 2)
        drained = asyncio.ensure_future(server.listener.drain(30))
        await asyncio.sleep(0.01)
        words[1].answer()
        assert (await client.reply())[0] == 1
        await client.ended()
        assert not drained.done()
        words[0].answer()
        await drained


async def test_a_drain_that_runs_out_of_time_leaves_promises_behind() -> None:
    promising, clock = Promising(), ManualClock()
    async with listening(promising.handle, clock=clock) as server:
        client = await server.connect()
        await client.send(frame(0))
        (word,) = await _given(promising, 1)
        await clock.run(server.listener.drain(1.0))
        assert await client.ended() == b""
        word.answer()


async def test_a_promise_can_be_awaited_before_and_after_it_is_kept() -> None:
    word = Word(7)
    waiting = asyncio.ensure_future(_buffers(word))
    await asyncio.sleep(0)
    assert not waiting.done()
    word.answer()
    assert await waiting == await _buffers(word) == [struct.pack(">i", 7)]
    broken = Word(8)
    broken.error = CloseConnection("no")
    broken.answer()
    with pytest.raises(CloseConnection):
        await _buffers(broken)


async def test_a_promise_with_a_cancelled_waiter_is_ignored() -> None:
    word = Word(7)
    waiting = asyncio.ensure_future(_buffers(word))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    word.answer()
    assert word.is_answered


async def _buffers(word: Word) -> list[bytes | memoryview] | None:
    return (await word).buffers


async def _leave(server: Listening, client: Client) -> None:
    connections = server.metric("headrace_kafka_connections")
    await client.close()
    await until(lambda: server.metric("headrace_kafka_connections") == connections - 1)
