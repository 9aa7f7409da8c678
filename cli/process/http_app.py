"""The HTTP endpoints: health for the load balancer, metrics for Prometheus, status for people.

Place: separate from the Kafka listener, on another thread and loop (http_server.py), so that it cannot delay a
produce request. Whether this process should get connections is known before it is asked: it is kept up to date on
the main loop, and read on the HTTP thread for each GET /readyz.
Invariant of readiness: `parts` never waits and calls nothing remote. A process that reaches metastore or bucket no
longer is not ready only if another agent reports that it reaches it: in an outage that all agents share, every agent
stays ready, because clients find nothing better elsewhere and reads from caches still work. A lease that ran out in
such an outage is no reason either; it is one if no other agent answers, because then this agent may be the one that
is cut off (docs/decisions/0079).
Invariant: read-only. /healthz says that the process is running, /readyz whether it should get connections; both
answer from known state, also while the main loop is blocked. To a client that may not read the other pages
(http_security.py) they say nothing else. A page of metrics is made after its request arrived, never before, once for
all requests that wait for it: many requests for this page, which takes some milliseconds, do not keep a health probe
waiting.
"""

from __future__ import annotations

import asyncio
import logging
import math
import platform
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, Protocol

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Gauge,
    disable_created_metrics,
    generate_latest,
)
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from headrace import __version__
from headrace.cli.process.http_security import MAY_READ
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


class MetricsPage:
    """The page of metrics, for one event loop."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self._turn = asyncio.Lock()
        self._begun = 0
        """How many pages were begun."""
        self._page = b""

    async def read(self) -> bytes:
        """The page."""
        begun = self._begun
        async with self._turn:
            if self._begun == begun:
                await asyncio.sleep(0)  # requests that have arrived meanwhile wait for this page
                self._begun += 1
                self._page = generate_latest(self._registry)
            return self._page


class Probe(Protocol):
    """State of the process; called on the HTTP loop, answered from the agent's loop."""

    def parts(self) -> Sequence[Part]:
        """Return what readiness depends on; never waits."""

    def warnings(self) -> Sequence[str]:
        """Return what an operator should change although the process is ready; called on the HTTP loop."""

    async def status(self) -> dict[str, Any]:
        """The page /v1/status: identity, image, buffers, feed."""


def make_app(probe: Probe, registry: CollectorRegistry) -> Starlette:
    """The application; `registry` holds every metric of the process.

    Starlette without FastAPI: four pages need no models, which take a fifth of the CPU of a process's start.
    """
    disable_created_metrics()  # type: ignore[no-untyped-call]  # a second family for each counter and histogram without use
    page = MetricsPage(registry)
    build = Gauge("headrace_build_info", "What runs; always 1", ["version", "python"], registry=registry)
    build.labels(__version__, platform.python_version()).set(1)

    async def healthz(request: Request) -> Response:
        return JSONResponse({"status": "alive"})

    async def readyz(request: Request) -> Response:
        code, body = _readiness(probe.parts(), probe.warnings(), "verbose" in request.query_params)
        return JSONResponse(body if getattr(request.state, MAY_READ, True) else {"status": body["status"]}, code)

    async def metrics(request: Request) -> Response:
        return Response(await page.read(), media_type=CONTENT_TYPE_LATEST)

    async def status(request: Request) -> Response:
        return JSONResponse(await probe.status())

    pages = {"/healthz": healthz, "/readyz": readyz, "/metrics": metrics, "/v1/status": status}
    return Starlette(routes=[Route(path, answer) for path, answer in pages.items()])


def _readiness(parts: Sequence[Part], warnings: Sequence[str], verbose: bool) -> tuple[int, dict[str, Any]]:
    """The status code and the page: `reason` is the first part that is not ok; `details` what a ready process lacks;
    `parts` all of them.
    """
    code = 200
    body: dict[str, Any] = {"status": "ready"}
    if broken := [part for part in parts if not part.ok]:
        code, body = 503, {"status": "not ready", "reason": f"{broken[0].name}: {broken[0].detail}"}
    if details := [f"{part.name}: {part.detail}" for part in parts if part.ok and part.detail]:
        body["details"] = details
    if warnings:
        body["warnings"] = list(warnings)
    if verbose:
        body["parts"] = [{"name": part.name, "ok": part.ok, "detail": part.detail} for part in parts]
    return code, body
