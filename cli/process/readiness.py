"""Whether this process should get connections, from state that is known already.

Place: read by http_app.py on the HTTP thread for each GET /readyz; kept up to date on the main loop.
Invariant: `parts` never waits and calls nothing remote. A process that reaches metastore or bucket no longer is not
ready only if another agent reports that it reaches it: in an outage that all agents share, every agent stays ready,
because clients find nothing better elsewhere and reads from caches still work. A lease that ran out in such an outage
is no reason either; it is one if no other agent answers, because then this agent may be the one that is cut off
(docs/decisions/0079).
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, Protocol

from prometheus_client import CollectorRegistry, Gauge

from headrace.storage.clock import Clock
from headrace.storage.dependency import BUCKET, METASTORE, DependencyWatch, Reported
from headrace.storage.repetition import LIMITED, Repetitions
from headrace.storage.supervision import Supervisor

logger = logging.getLogger(__name__)

ROUND_SECONDS = 1.0
"""Pause between rounds: each proves that the event loop runs, and asks the other agents if something fails here."""
LOOP_SILENCE_SECONDS = 5.0
"""The event loop counts as blocked if no round came for this long."""
CONFIRM_SECONDS = 4.0
"""An agent is alone in a failure once another one has reported for this long that it reaches what fails here: an outage
that begins for all is not noticed by all at once (dependency.RETRY_SECONDS and PATIENCE_SECONDS).
"""
RETURN_SECONDS = 15.0
"""After an outage that all agents shared, each has this long to connect and to renew its lease: it does not end for all
at once either, and the metastore fences no agent within a session timeout of its return.
"""


class Part(NamedTuple):
    """One thing that readiness depends on. `detail`: the reason if it is not ok; what to know if it is."""

    name: str
    ok: bool
    detail: str = ""
    waits_for: str = ""
    """The dependency without which it cannot be ok; empty if it fails by itself."""


class PeerReports(Protocol):
    """What the other agents report."""

    async def reported(self) -> Reported:
        """The dependencies that at least one other agent reaches now, and whether any answered."""


class NoPeers:
    """Readiness of a process that no client connects to: a dependency that fails makes it not ready."""

    async def reported(self) -> Reported:
        return Reported(frozenset({METASTORE, BUCKET}), True)


class Readiness:
    """`start`, then `parts` from any thread, finally `stop`."""

    def __init__(
        self,
        watches: Sequence[DependencyWatch],
        own_parts: Callable[[], Iterable[Part]],
        peers: PeerReports,
        clock: Clock,
        registry: CollectorRegistry,
        supervisor: Supervisor,
    ) -> None:
        """`own_parts`: what the roles know of themselves, without waiting."""
        self._watches = watches
        self._supervisor = supervisor
        self._own_parts = own_parts
        self._peers = peers
        self._clock = clock
        self._round_at = clock.monotonic()
        self._alone_since: dict[str, float] = {}
        """By dependency that fails here: since when another agent reports without a break that it reaches it."""
        self._lines = Repetitions()
        self._excused_until: dict[str, float] = {}
        """By dependency: until when its outage, which all agents share, excuses what waits for it."""
        self._tasks: list[asyncio.Task[None]] = []
        self._failing = Gauge(
            "headrace_dependency_failing",
            "1 while this process's probes, heartbeats or PUTs fail, or the metastore does not write: it refuses, or"
            " commits wait for a synchronous standby",
            ["dependency"],
            registry=registry,
        )
        for watch in watches:
            self._failing.labels(watch.name).set(0)

    def start(self) -> None:
        """Probe and ask from now on."""
        self._round_at = self._clock.monotonic()
        self._tasks = [self._supervisor.keep(f"watch {watch.name}", watch.run) for watch in self._watches]
        self._tasks.append(self._supervisor.keep("readiness", self._run))

    async def stop(self) -> None:
        """No probe after this."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def parts(self) -> list[Part]:
        """All parts, the event loop first: while it is blocked, the others are as it left them."""
        silent = self._clock.monotonic() - self._round_at
        blocked = silent >= LOOP_SILENCE_SECONDS
        loop = Part("event loop", not blocked, f"blocked for {silent:.0f} s" if blocked else "")
        return [loop, *map(self._excused, self._own_parts()), *map(self._dependency, self._watches)]

    def _excused(self, part: Part) -> Part:
        if part.ok or not self._is_excused(part.waits_for):
            return part
        return Part(part.name, True, f"{part.detail}, in an outage of the {part.waits_for} that all agents share")

    def _dependency(self, watch: DependencyWatch) -> Part:
        failure = watch.failure()
        if failure is None:
            refused = watch.refused
            return Part(watch.name, True, "" if refused is None else f"does not write, for all processes: {refused}")
        since = self._alone_since.get(watch.name)
        if since is None:
            return Part(watch.name, True, f"fails here, and no other agent reports that it reaches it: {failure}")
        if self._clock.monotonic() - since < CONFIRM_SECONDS or self._is_excused(watch.name):
            return Part(watch.name, True, f"fails here, and another agent has just reached it: {failure}")
        return Part(watch.name, False, failure)

    def _is_excused(self, name: str) -> bool:
        return self._clock.monotonic() < self._excused_until.get(name, -math.inf)

    async def _run(self) -> None:
        while True:
            self._round_at = self._clock.monotonic()
            for watch in self._watches:
                watch.look()
                self._show(watch)
            await self._ask_about({watch.name for watch in self._watches if watch.failure() is not None})
            refused = [watch.name for watch in self._watches if watch.refused is not None]
            self._excused_until |= dict.fromkeys(refused, self._clock.monotonic() + RETURN_SECONDS)
            await self._clock.sleep(ROUND_SECONDS)

    def _show(self, watch: DependencyWatch) -> None:
        """In the metric, and once a minute in the log."""
        why = watch.failure() or watch.refused
        self._failing.labels(watch.name).set(why is not None)
        if why is not None and self._lines.left_out((watch.name, why), self._clock.monotonic()) is not None:
            logger.warning("%s fails here: %s", watch.name, why, extra=LIMITED)

    async def _ask_about(self, failing: set[str]) -> None:
        """Find out who shares the failures."""
        reached, is_heard = await self._asked() if failing else Reported(frozenset(), False)
        now = self._clock.monotonic()
        self._alone_since = {name: self._alone_since.get(name, now) for name in failing & reached}
        if is_heard:
            self._excused_until |= dict.fromkeys(failing - reached, now + RETURN_SECONDS)

    async def _asked(self) -> Reported:
        try:
            return await self._peers.reported()
        except Exception:  # a bug: without rounds this process would count as blocked
            logger.exception("cannot ask the other agents what they reach")
            return Reported(frozenset(), False)
