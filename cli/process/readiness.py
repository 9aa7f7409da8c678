"""Whether this process should get connections, from state that is known already.

Place: read by http_app.py on the HTTP thread for each GET /readyz; kept up to date on the main loop.
Invariant: `parts` never waits and calls nothing remote. A process that reaches metastore or bucket no longer is not
ready only if another agent reports that it reaches it: in an outage that all agents share, every agent stays ready,
because clients find nothing better elsewhere and reads from caches still work.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, Protocol

from prometheus_client import CollectorRegistry, Gauge

from headrace.storage.clock import Clock
from headrace.storage.dependency import DependencyWatch
from headrace.storage.supervision import Supervisor

logger = logging.getLogger(__name__)

ROUND_SECONDS = 1.0
"""Pause between rounds: each proves that the event loop runs, and asks the other agents if something fails here."""
LOOP_SILENCE_SECONDS = 5.0
"""The event loop counts as blocked if no round came for this long."""


class Part(NamedTuple):
    """One thing that readiness depends on. `detail`: the reason if it is not ok; what to know if it is."""

    name: str
    ok: bool
    detail: str = ""


class PeerReports(Protocol):
    """What the other agents report."""

    async def reached(self) -> frozenset[str]:
        """The dependencies that at least one other agent reaches now."""


class NoPeers:
    """Readiness of a process that no client connects to: a dependency that fails makes it not ready."""

    async def reached(self) -> frozenset[str]:
        return frozenset({"metastore", "bucket"})


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
        self._reached_by_peers: frozenset[str] = frozenset()
        self._tasks: list[asyncio.Task[None]] = []
        self._failing = Gauge(
            "headrace_dependency_failing",
            "1 while this process's own probes of the metastore or the bucket fail",
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
        return [loop, *self._own_parts(), *map(self._dependency, self._watches)]

    def _dependency(self, watch: DependencyWatch) -> Part:
        failure = watch.failure()
        if failure is None:
            return Part(watch.name, True)
        if watch.name in self._reached_by_peers:
            return Part(watch.name, False, failure)
        return Part(watch.name, True, f"fails here, and no other agent reports that it reaches it: {failure}")

    async def _run(self) -> None:
        while True:
            self._round_at = self._clock.monotonic()
            failing = {watch.name for watch in self._watches if watch.failure() is not None}
            for watch in self._watches:
                self._failing.labels(watch.name).set(watch.name in failing)
            self._reached_by_peers = await self._asked() if failing else frozenset()
            await self._clock.sleep(ROUND_SECONDS)

    async def _asked(self) -> frozenset[str]:
        try:
            return await self._peers.reached()
        except Exception:  # a bug: without rounds this process would count as blocked
            logger.exception("cannot ask the other agents what they reach")
            return frozenset()
