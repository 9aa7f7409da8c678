"""A link on a clock that the test moves: order, answers, deadlines, losses."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from headrace.agent.peers.forwarding.links import LOST, OPEN_SECONDS, REST_SECONDS, SILENT_SECONDS, START_SECONDS
from headrace.agent.peers.forwarding.wire import ForwardOutcome
from headrace.protocol.request import CloseConnection, Request, Response
from headrace.storage.errors import TooManyElementsError
from tests.agent.peers.forwarding.link_world import LinkWorld
from tests.manual_clock import ManualClock


class Handler:
    """Answers with the request's body, when the test says so."""

    def __init__(self) -> None:
        self.started: list[Request] = []
        self.waiting: dict[int, asyncio.Future[None]] = {}
        self.waits = False
        self.raises: Exception | None = None

    async def __call__(self, request: Request) -> Response:
        self.started.append(request)
        if self.raises is not None:
            raise self.raises
        if self.waits:
            self.waiting[request.correlation_id] = asyncio.get_running_loop().create_future()
            await self.waiting[request.correlation_id]
        return Response([b"answer ", bytes(request.body)])


@pytest.fixture
def handler() -> Handler:
    return Handler()


@pytest.fixture
def world(fake_clock: ManualClock, handler: Handler) -> LinkWorld:
    return LinkWorld(fake_clock, handler)


async def test_a_request_is_served_as_its_clients_own(world: LinkWorld, handler: Handler) -> None:
    client = world.client(7)
    client.principal = "User:ann"
    pending = world.forward(client, 1, b"body")
    await world.open()
    assert not pending.done(), "the envelope is on its way"
    await world.deliver()
    assert pending.result() == (ForwardOutcome.ANSWERED, b"answer body")
    (request,) = handler.started
    assert (request.api_key, request.api_version, request.correlation_id, request.client_id) == (12, 4, 1, "c")
    there = request.connection
    assert (there.peer, there.listener, there.principal) == ("10.0.0.1:7", "PLAINTEXT", "User:ann")
    assert there.is_forwarded
    assert there is not client
    assert world.metric("headrace_forwarded_requests_total", direction="sent") == 1


async def test_answers_come_in_any_order_and_each_to_its_request(world: LinkWorld, handler: Handler) -> None:
    handler.waits = True
    clients = [world.client(number) for number in range(3)]
    pending = [world.forward(client, number) for number, client in enumerate(clients)]
    await world.open()
    await world.deliver()
    assert [request.correlation_id for request in handler.started] == [0, 1, 2]
    for number in (2, 0, 1):
        handler.waiting[number].set_result(None)
        await world.clock.settle()
        assert pending[number].result() == (ForwardOutcome.ANSWERED, b"answer " + str(number).encode())
        assert sum(each.done() for each in pending) == {2: 1, 0: 2, 1: 3}[number]


async def test_requests_that_wait_for_the_link_keep_their_order(world: LinkWorld, handler: Handler) -> None:
    client = world.client(1)
    early = [world.forward(client, number) for number in range(5)]
    await world.open()
    late = world.forward(client, 5)
    await world.deliver()
    assert [request.correlation_id for request in handler.started] == list(range(6))
    assert all(each.done() for each in (*early, late))
    assert len(world.pipes) == 1


async def test_after_a_lost_link_nothing_is_repeated(world: LinkWorld, handler: Handler) -> None:
    handler.waits = True
    client = world.client(1)
    pending = [world.forward(client, number) for number in range(3)]
    await world.open()
    await world.deliver()
    world.cut()
    await world.clock.settle()
    assert [each.result() for each in pending] == [LOST] * 3
    assert handler.started[0].connection.closed, "the other agent knows that its client is gone"
    again = world.forward(client, 9)
    await world.open()
    await world.deliver()
    assert [request.correlation_id for request in handler.started] == [0, 1, 2, 9]
    handler.waiting[9].set_result(None)
    await world.clock.settle()
    assert again.result()[0] is ForwardOutcome.ANSWERED
    assert world.metric("headrace_forwarded_lost_total") == 3


async def test_an_agent_that_refuses_is_left_alone_for_a_while(world: LinkWorld) -> None:
    world.refuses = True
    client = world.client(1)
    first = world.forward(client, 1)
    await world.clock.settle()
    assert first.result() == LOST
    world.refuses = False
    assert world.forward(client, 2).result() == LOST, "at once"
    await world.clock.advance(REST_SECONDS)
    third = world.forward(client, 3)
    await world.open()
    await world.deliver()
    assert third.result()[0] is ForwardOutcome.ANSWERED


async def test_an_agent_that_does_not_answer_the_opening_is_given_up(world: LinkWorld) -> None:
    pending = world.forward(world.client(1), 1)
    await world.clock.advance(OPEN_SECONDS)
    assert pending.result() == LOST


async def test_a_silent_link_is_lost_and_its_requests_never_start(world: LinkWorld, handler: Handler) -> None:
    client = world.client(1)
    first = world.forward(client, 1)
    await world.open()
    await world.deliver()
    assert first.done()
    stuck = world.forward(client, 2)
    waited = 0.0
    while not stuck.done():
        await world.clock.advance(0.25)
        waited += 0.25
    assert stuck.result() == LOST
    assert SILENT_SECONDS <= waited <= SILENT_SECONDS + 4
    for pipe, _ in world.pipes:
        pipe.cut = False  # the bytes were in the kernel of the other agent, which was stopped
    await world.deliver()
    assert [request.correlation_id for request in handler.started] == [1]


async def test_no_request_starts_after_its_deadline(world: LinkWorld, handler: Handler) -> None:
    client = world.client(1)
    world.forward(client, 1)
    await world.open()
    world.clock.jump(START_SECONDS + 0.1)
    await world.deliver()
    assert handler.started == []
    pending = world.forward(client, 2)
    world.clock.jump(START_SECONDS - 0.1)
    await world.deliver()
    assert pending.result()[0] is ForwardOutcome.ANSWERED


async def test_the_deadline_is_shorter_while_the_link_is_silent(world: LinkWorld, handler: Handler) -> None:
    """Else a request that follows an unanswered ping could start after it was given up."""
    client = world.client(1)
    world.forward(client, 1)
    await world.open()
    await world.clock.advance(START_SECONDS)  # a ping was sent, and is not answered
    late = world.forward(client, 2)
    await world.clock.advance(SILENT_SECONDS)
    assert late.result() == LOST
    for pipe, _ in world.pipes:
        pipe.cut = False
    await world.deliver()
    assert handler.started == []


async def test_a_waiting_request_is_kept_while_pings_are_answered(world: LinkWorld, handler: Handler) -> None:
    handler.waits = True
    pending = world.forward(world.client(1), 1)
    await world.open()
    for _ in range(200):
        await world.deliver()
        await world.clock.advance(1.0)
    assert not pending.done()
    handler.waiting[1].set_result(None)
    await world.clock.settle()
    assert pending.result()[0] is ForwardOutcome.ANSWERED


async def test_what_a_client_that_is_gone_asked_for_does_not_start(world: LinkWorld, handler: Handler) -> None:
    gone, stays = world.client(1), world.client(2)
    world.forward(gone, 1)
    world.end(gone)
    await world.open()
    world.forward(gone, 2)
    kept = world.forward(stays, 3)
    leaves = world.client(3)
    world.forward(leaves, 4)
    world.end(leaves)
    await world.deliver()
    assert [request.correlation_id for request in handler.started] == [3]
    assert kept.result()[0] is ForwardOutcome.ANSWERED


async def test_a_request_in_progress_sees_that_its_client_ended(world: LinkWorld, handler: Handler) -> None:
    handler.waits = True
    client = world.client(1)
    world.forward(client, 1)
    await world.open()
    await world.deliver()
    assert not handler.started[0].connection.closed
    world.end(client)
    await world.deliver()
    assert handler.started[0].connection.closed
    assert world.server._links[world.pipes[0][1]].clients == {}, "nothing is kept of it"


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (CloseConnection("no"), ForwardOutcome.CLOSE),
        (TooManyElementsError("many"), ForwardOutcome.TOO_MANY_ELEMENTS),
        (RuntimeError("bug"), ForwardOutcome.CLOSE),
    ],
)
async def test_an_error_ends_one_client_and_not_the_link(
    world: LinkWorld, handler: Handler, error: Exception, outcome: ForwardOutcome
) -> None:
    handler.raises = error
    first = world.forward(world.client(1), 1)
    await world.open()
    await world.deliver()
    assert first.result()[0] is outcome
    handler.raises = None
    second = world.forward(world.client(2), 2)
    await world.deliver()
    assert second.result()[0] is ForwardOutcome.ANSWERED


@pytest.mark.parametrize(
    "other",
    [
        pytest.param({"secret": b"another"}, id="another secret"),
        pytest.param({"served": ()}, id="an API not forwarded"),
    ],
)
async def test_a_request_that_the_other_agent_does_not_take_is_lost(
    fake_clock: ManualClock, handler: Handler, other: dict[str, Any]
) -> None:
    world = LinkWorld(fake_clock, handler, **other)
    pending = world.forward(world.client(1), 1)
    await world.open()
    await world.deliver()
    await world.clock.settle()
    assert pending.result() == LOST
    assert handler.started == []


async def test_closing_it_loses_what_waits(world: LinkWorld, handler: Handler) -> None:
    handler.waits = True
    pending = world.forward(world.client(1), 1)
    await world.open()
    await world.deliver()
    await world.link.close()
    await world.clock.settle()
    assert pending.result() == LOST
    queued = LinkWorld(world.clock, handler)
    waiting = queued.forward(queued.client(1), 1)
    await queued.link.close()
    assert waiting.result() == LOST
