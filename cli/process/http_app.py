"""The HTTP endpoints: health for the load balancer, metrics for Prometheus, status for people.

Place: separate from the Kafka listener, on another thread and loop (http_server.py), so that it
cannot delay a produce request.
Invariant: read-only. /healthz says that the process is running, /readyz whether it should get connections
(readiness.py); both answer from known state, also while the main loop is blocked. To a client that may not read the
other pages (http_security.py) they say nothing else. A page
of metrics is made after its request arrived, never before, once for all requests that wait for it: many requests for
this page, which takes some milliseconds, do not keep a health probe waiting.
"""

from __future__ import annotations

import asyncio
import platform
from collections.abc import Sequence
from typing import Any, Protocol

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
from headrace.cli.process.readiness import Part


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
