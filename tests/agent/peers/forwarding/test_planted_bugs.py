"""Many clients on one link, in seeded orders, with losses; and planted bugs, which the same run must find.

Fault model: clients disconnect, the connection is cut, the other agent answers in any order, deliveries are late.
"""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict

import pytest

from headrace.agent.peers.forwarding.links import LOST, Answer, ForwardLink
from headrace.agent.peers.forwarding.service import ForwardServer
from headrace.agent.peers.forwarding.wire import ForwardOutcome
from headrace.protocol.request import ClientConnection, Request, Response
from tests.agent.peers.forwarding.link_world import LinkWorld
from tests.manual_clock import ManualClock
from tests.planted import PlantedBugs, Trial

SEEDS = range(12)
STEPS = 250
CLIENTS = 6


class Violation(AssertionError):
    """A rule of forwarding is broken."""


class Run:
    """One seed."""

    def __init__(
        self,
        clock: ManualClock,
        seed: int,
        link: type[ForwardLink] = ForwardLink,
        server: type[ForwardServer] = ForwardServer,
        *,
        proves: bool = True,
    ) -> None:
        """`proves`: whether the agent that opens links is known to prove them."""
        self._rng = random.Random(seed)
        self._world = LinkWorld(clock, self._handle, link=link, server=server, proves=lambda node_id: proves)
        self._clients = {number: self._world.client(number) for number in range(CLIENTS)}
        self._sent: dict[int, tuple[int, asyncio.Future[Answer]]] = {}
        self._started: dict[int, list[int]] = defaultdict(list)
        self._waiting: dict[int, asyncio.Future[None]] = {}

    async def run(self) -> None:
        """Raises Violation."""
        try:
            await self._run()
        finally:
            await self._world.link.close()
            await self._world.clock.settle()

    async def _run(self) -> None:
        for _ in range(STEPS):
            step = self._rng.choice([self._send] * 8 + [self._answer] * 5 + [self._end, self._deliver, self._pass_time])
            await step()
            if self._rng.random() < 0.02:
                self._world.cut()
                await self._world.clock.settle()
            self._check_answers()
        for _ in range(20):
            await self._deliver()
            await self._answer()
        await self._world.link.close()
        await self._world.clock.settle()
        self._check_answers()
        if any(not pending.done() for _, pending in self._sent.values()):
            raise Violation("a request without an answer")

    async def _send(self) -> None:
        number = len(self._sent)
        client = self._rng.choice(list(self._clients.values()))
        self._sent[number] = client.connection_id, self._world.forward(client, number)

    async def _answer(self) -> None:
        for number in self._rng.sample(sorted(self._waiting), min(2, len(self._waiting))):
            self._waiting.pop(number).set_result(None)
        await self._world.clock.settle()

    async def _end(self) -> None:
        slot = self._rng.choice(list(self._clients))
        gone = self._clients[slot]
        self._clients[slot] = self._world.client(gone.connection_id + CLIENTS)
        self._world.end(gone)

    async def _deliver(self) -> None:
        await self._world.open()

    async def _pass_time(self) -> None:
        await self._world.clock.advance(self._rng.choice([0.01, 0.5, 3.0]))

    async def _handle(self, request: Request) -> Response:
        number, client = int(bytes(request.body)), request.connection.connection_id
        if client != self._sent[number][0]:
            raise Violation("a request of another client")
        if client in self._gone:
            raise Violation("a request started although its client was gone")
        if number in self._started[client]:
            raise Violation("a request started twice")
        if self._started[client] and self._started[client][-1] > number:
            raise Violation("requests of a client started in another order")
        self._started[client].append(number)
        self._waiting[number] = asyncio.get_running_loop().create_future()
        await self._waiting[number]
        return Response([str(number).encode()])

    def _check_answers(self) -> None:
        if self._world.server_error is not None:
            raise self._world.server_error
        for number, (_, pending) in self._sent.items():
            if pending.done() and pending.result() != LOST:
                outcome, rest = pending.result()
                if outcome is ForwardOutcome.ANSWERED and bytes(rest) != str(number).encode():
                    raise Violation("the answer of another request")

    @property
    def _gone(self) -> set[int]:
        return self._world.gone


@pytest.mark.parametrize("seed", SEEDS)
async def test_every_request_starts_once_in_order_and_gets_its_own_answer(fake_clock: ManualClock, seed: int) -> None:
    await Run(fake_clock, seed).run()


class _AnswersTheWrongRequest(ForwardLink):
    """Hands an answer to the oldest request that waits."""

    def forward(self, request: Request) -> asyncio.Future[Answer]:
        answer = super().forward(request)
        self.__dict__.setdefault("_all", []).append(answer)
        return answer

    def _answered(self, connection, key, number, answer, frame):  # type: ignore[no-untyped-def]
        oldest = next((each for each in self.__dict__["_all"] if not each.done()), answer)
        super()._answered(connection, key, number, oldest, frame)


class _ReordersWhatWaitsForTheLink(ForwardLink):
    """Sends the queue backwards."""

    async def _open(self):  # type: ignore[no-untyped-def]
        connection = await super()._open()
        self._queue.reverse()
        return connection


class _SendsAgain(ForwardLink):
    """Repeats a request that was on a link that is lost."""

    def _answered(self, connection, key, number, answer, frame):  # type: ignore[no-untyped-def]
        request = self._requests.pop(answer, None)
        if request is not None and not frame.cancelled() and frame.exception() is not None:
            super().forward(request)
        super()._answered(connection, key, number, answer, frame)

    def forward(self, request: Request) -> asyncio.Future[Answer]:
        answer = super().forward(request)
        self.__dict__.setdefault("_requests", {})[answer] = request
        return answer


class _SendsForTheGone(ForwardLink):
    """Does not look whether the client is still there, and does not say when it ends."""

    def ended(self, connection_id: int) -> None:
        pass


class _StartsForTheGone(ForwardServer):
    """Starts what arrived together with the end of its client's connection."""

    def serve(self, request: Request):  # type: ignore[no-untyped-def]
        serving = super().serve(request)
        for client in self._links[request.connection].clients.values():
            client.closed = False
        self._links[request.connection].clients = _Forever(self._links[request.connection].clients)
        return serving


class _Forever(dict[int, ClientConnection]):
    """Never forgets a client."""

    def pop(self, key: int, default: object = None) -> object:  # type: ignore[override]
        return default


class _RepeatsEnvelopes(ForwardServer):
    """Serves the same envelope twice."""

    async def _serve(self, request, link, client, envelope):  # type: ignore[no-untyped-def]
        if envelope.correlation_id % 7 == 3:
            asyncio.get_running_loop().create_task(super()._serve(request, link, client, envelope))
        return await super()._serve(request, link, client, envelope)


BUGS: dict[str, tuple[type[ForwardLink], type[ForwardServer], str]] = {
    "an answer goes to the wrong request": (
        *(_AnswersTheWrongRequest, ForwardServer),
        "the answer of another request|without an answer",
    ),
    "what waits for the link is reordered": (_ReordersWhatWaitsForTheLink, ForwardServer, "in another order"),
    "a request is sent again": (_SendsAgain, ForwardServer, "started twice|in another order"),
    "a request is sent for a client that is gone": (_SendsForTheGone, ForwardServer, "its client was gone"),
    "a request starts for a client that is gone": (ForwardLink, _StartsForTheGone, "its client was gone"),
    "envelopes are repeated": (ForwardLink, _RepeatsEnvelopes, "started twice"),
}
"""What is wrong -> (link, server, what a run must show)."""
PLANTED = PlantedBugs("forwarding", most=500)


@PLANTED.cases(BUGS)
async def test_a_planted_bug_is_found(bug: str, trial: Trial, fake_clock: ManualClock) -> None:
    link, server, told = BUGS[bug]
    for seed in trial.seeds():
        with trial.shown_by(Violation, told=told):
            await Run(fake_clock, seed, link, server).run()
