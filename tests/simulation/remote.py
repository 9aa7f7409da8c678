"""A request of an agent's process to a server outside of it, and everything that can happen on the way.

Fault model: the request is lost (UnavailableError, nothing happened); its reply is lost after it
worked, or the connection is cut before it did, or it works long after its caller got no answer, or
the agent is fenced meanwhile (OutcomeUnknownError, all four); either way is slow; the process is killed
or paused just before or just after the server did the work. What a killed process had sent still arrives.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from headrace.storage.errors import HeadraceError, OutcomeUnknownError, ThrottledError, UnavailableError
from tests.simulation.faults import Fault

if TYPE_CHECKING:
    from tests.simulation.agents import Process
    from tests.simulation.world import World

T = TypeVar("T")

STEPS = (Fault.KILLED_AT_STEP, Fault.FROZEN_AT_STEP)
READS = (Fault.REQUEST_LOST, Fault.REPLY_LOST, Fault.SLOW, *STEPS)
WRITES = (Fault.REQUEST_LOST, Fault.REPLY_LOST, Fault.CUT, Fault.LATE, Fault.SLOW, *STEPS)
LATE = (Fault.LATE, Fault.FENCED_IN_DOUBT)
FENCED = (Fault.FENCED_IN_DOUBT, Fault.UNREGISTERED_IN_DOUBT)
UNHEARD = (Fault.REPLY_LOST, Fault.CUT, *LATE, Fault.UNREGISTERED_IN_DOUBT)

SLOW_SECONDS = (0.2, 2.0)
LATE_SECONDS = (0.05, 3.0)
GIVES_UP_SECONDS = (0.01, 0.4)


class Remote:
    """One process's way to one server. `latency`: seconds for each direction, from and to."""

    def __init__(
        self, world: World, process: Process, name: str, latency: tuple[float, float], rng: random.Random
    ) -> None:
        self._world = world
        self._process = process
        self._name = name
        self._latency = latency
        self._rng = rng

    async def call(self, work: Callable[[], T], menu: tuple[Fault, ...]) -> T:
        """Return what `work` returns or raises when the server does it, or one of the errors above."""
        fault = self._world.faults.draw(menu)
        answer: asyncio.Future[T] = self._world.loop.create_future()
        there, back = self._rng.uniform(*self._latency), self._rng.uniform(*self._latency)
        if fault is Fault.SLOW and self._rng.random() < 0.5:
            there += self._rng.uniform(*SLOW_SECONDS)
        elif fault in (Fault.SLOW, Fault.LAGGING_FEED):
            back += self._rng.uniform(*SLOW_SECONDS)
        if fault is Fault.REQUEST_LOST:
            self._fail(there + back, answer, UnavailableError(f"simulated: {self._name} unreachable"))
        elif fault is Fault.THROTTLED:
            self._fail(there + back, answer, ThrottledError(f"simulated: {self._name} says slow down"))
        elif fault in UNHEARD:
            if fault is not Fault.CUT:
                delay = self._rng.uniform(*LATE_SECONDS) if fault in LATE else there
                self._world.happens_late(delay, _do_unheard, work)
            if fault in FENCED:
                unregister = fault is Fault.UNREGISTERED_IN_DOUBT
                self._world.later(there, functools.partial(self._process.agent.fence, unregister=unregister))
            patience = (GIVES_UP_SECONDS[0],) * 2 if fault in FENCED else GIVES_UP_SECONDS
            gives_up = there + self._rng.uniform(*patience)
            self._fail(gives_up, answer, OutcomeUnknownError(f"simulated: answer of {self._name} lost"))
        else:
            self._world.happens_late(there, self._arrive, work, answer, back, fault)
        return await answer

    def _arrive(self, work: Callable[[], Any], answer: asyncio.Future[Any], back: float, fault: Fault | None) -> None:
        before = fault in STEPS and self._rng.random() < 0.3
        if before:
            self._strike(fault)
        try:
            result, error = work(), None
        except HeadraceError as raised:
            result, error = None, raised
        if not before:
            self._strike(fault)
        self._world.later(back, _give, answer, result, error)

    def _strike(self, fault: Fault | None) -> None:
        if self._world.is_calm:
            return
        if fault is Fault.KILLED_AT_STEP:
            self._process.agent.kill(self._process)
        elif fault is Fault.FROZEN_AT_STEP:
            self._process.agent.freeze(self._process)

    def _fail(self, delay: float, answer: asyncio.Future[Any], error: HeadraceError) -> None:
        self._world.later(delay, _give, answer, None, error)


def _give(answer: asyncio.Future[Any], result: Any, error: HeadraceError | None) -> None:
    if answer.done():  # its caller gave up
        return
    if error is not None:
        answer.set_exception(error)
    else:
        answer.set_result(result)


def _do_unheard(work: Callable[[], Any]) -> None:
    """No caller gets the result, or the reason of a refusal."""
    with contextlib.suppress(HeadraceError):
        work()


def run_at_once(call: Any) -> Any:
    """The result of a coroutine that never waits: how the model and the memory store are called."""
    try:
        call.send(None)
    except StopIteration as done:
        return done.value
    raise AssertionError(f"waited where nothing waits: {call}")
