"""The HTTP endpoints: health for the load balancer, metrics for Prometheus, status for people.

Place: separate from the Kafka listener, on another thread and loop (http_server.py), so that it
cannot delay a produce request.
Invariant: read-only. /healthz says that the process is running, /readyz that it should get traffic:
metastore and bucket answered recently, and it is not draining.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

from fastapi import FastAPI, Response
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest


class Probe(Protocol):
    """State of the process; called on the HTTP loop, answered from the agent's loop."""

    async def not_ready_reason(self) -> str | None:
        """None if ready for traffic, else the reason."""

    def warnings(self) -> Sequence[str]:
        """What an operator should change although the process is ready; called on the HTTP loop."""

    async def status(self) -> dict[str, Any]:
        """The page /v1/status: identity, image, buffers, feed."""


def make_app(probe: Probe, registry: CollectorRegistry) -> FastAPI:
    """The FastAPI application; `registry` holds every metric of the process."""
    app = FastAPI(title="Headrace agent", docs_url=None, redoc_url=None)

    @app.get("/healthz")
    async def healthz() -> dict[str, str]:
        return {"status": "alive"}

    @app.get("/readyz")
    async def readyz(response: Response) -> dict[str, Any]:
        reason = await _answer(probe.not_ready_reason)
        details = {"warnings": list(probe.warnings())} if probe.warnings() else {}
        if reason is None:
            return {"status": "ready", **details}
        response.status_code = 503
        return {"status": "not ready", "reason": reason, **details}

    @app.get("/metrics")
    async def metrics() -> Response:
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)

    @app.get("/v1/status")
    async def status() -> dict[str, Any]:
        return await probe.status()

    return app


async def _answer(question: Callable[[], Awaitable[str | None]]) -> str | None:
    try:
        return await question()
    except TimeoutError:
        return "the agent's event loop did not answer in time"
