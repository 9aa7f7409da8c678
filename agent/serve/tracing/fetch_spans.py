"""Spans of fetch requests: one for each, and one for each of its steps.

Place: the steps of agent/fetch/service.py if otel.enable is true.
Invariant: a step has a span only within the task of a traced request, so the feed and background work make none. A
chunk that several requests wait for is in the trace of the request that began to load it. A span ends with its step,
also if the step fails.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from time import time_ns
from typing import Any

from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer, get_current_span

from headrace.agent.fetch.deliver import Delivery, DeliveryOutcome
from headrace.agent.fetch.files.assemble import Batches
from headrace.agent.fetch.locate import Locator
from headrace.agent.fetch.lookup import Lookup, LookupStatus
from headrace.agent.fetch.steps import FetchSteps
from headrace.agent.fetch.waiters import Waiter
from headrace.agent.serve.tracing.attributes import Attributes, error_names, of_request
from headrace.metastore.api.read import ALL_BYTES, ExtentQuery
from headrace.protocol.request import Request, RequestHandler, Response
from headrace.storage.clock import Clock
from headrace.storage.errors import HeadraceError
from headrace.storage.objects.store import ByteRange, ObjectStore, StoreDecorator


@dataclass(slots=True)
class _Progress:
    """Progress of the request that the current task serves."""

    read_ended_ns: int = 0


_progress: ContextVar[_Progress] = ContextVar("progress of a traced fetch")


def traced_steps(tracer: Tracer, clock: Clock) -> FetchSteps:
    """The read path's parts, with spans."""
    return FetchSteps(
        handle=lambda handle: TracedFetch(tracer, clock, handle).handle,
        locator=partial(TracedLocator, tracer),
        waiter=partial(TracedWaiter, tracer),
        delivery=partial(TracedDelivery, tracer),
        store=lambda store: TracedGets(tracer, store),
    )


class TracedFetch:
    """The span of a whole request, from its last byte to its reply."""

    def __init__(self, tracer: Tracer, clock: Clock, handle: RequestHandler) -> None:
        self._tracer, self._clock, self._inner = tracer, clock, handle

    async def handle(self, request: Request) -> Response:
        """Handle as the plain handler does."""
        waited_ns = int((self._clock.monotonic() - request.received_at) * 1e9)
        progress = _Progress()
        with self._tracer.start_as_current_span(
            "fetch",
            Context(),
            kind=SpanKind.SERVER,
            attributes=of_request(request) | {"messaging.operation.name": "fetch"},
            start_time=time_ns() - waited_ns,
            record_exception=False,
        ) as span:
            token = _progress.set(progress)
            try:
                response = await self._inner(request)
            finally:
                _progress.reset(token)
            if progress.read_ended_ns:
                self._tracer.start_span("reply", start_time=progress.read_ended_ns).end()
            span.set_attribute("headrace.response.bytes", sum(map(len, response.buffers or ())))
        return response


class TracedLocator(Locator):
    """`locate`: look-ups in the index; in it `find extents`, if Postgres is asked."""

    def __init__(self, tracer: Tracer, *parts: Any) -> None:
        super().__init__(*parts)
        self._tracer = tracer

    async def locate(self, queries: Sequence[ExtentQuery], max_bytes: int = ALL_BYTES) -> list[Lookup]:
        """Locate as Locator does."""
        with _step(self._tracer, "locate", {"headrace.partitions": len(queries)}):
            return await super().locate(queries, max_bytes)

    async def locate_at_primary(self, queries: Sequence[ExtentQuery], max_bytes: int = ALL_BYTES) -> list[Lookup]:
        """Locate as Locator does."""
        with _step(self._tracer, "find extents", {"headrace.partitions": len(queries)}) as span:
            found = await super().locate_at_primary(queries, max_bytes)
            if span is not None and any(lookup.status is LookupStatus.UNAVAILABLE for lookup in found):
                span.set_status(Status(StatusCode.ERROR, "the metastore did not answer"))
            return found


class TracedWaiter(Waiter):
    """`wait`: the long poll."""

    __slots__ = ("_tracer",)

    def __init__(self, tracer: Tracer) -> None:
        super().__init__()
        self._tracer = tracer

    async def wait(self, needed_bytes: int, clock: Clock, seconds: float) -> None:
        """Wait as Waiter does."""
        with _step(self._tracer, "wait", {"headrace.needed.bytes": needed_bytes}):
            await super().wait(needed_bytes, clock, seconds)


class TracedDelivery(Delivery):
    """`read`: from memory, other agents of the zone and the bucket."""

    def __init__(self, tracer: Tracer, *parts: Any) -> None:
        super().__init__(*parts)
        self._tracer = tracer

    async def deliver(
        self,
        queries: Sequence[ExtentQuery],
        found: Sequence[Lookup],
        max_bytes: int,
        epochs: Sequence[int] = (),
        *,
        committed: bool = False,
    ) -> list[tuple[Lookup, DeliveryOutcome]]:
        """Deliver as Delivery does."""
        with _step(self._tracer, "read", {"headrace.partitions": len(queries)}) as span:
            outcomes = await super().deliver(queries, found, max_bytes, epochs, committed=committed)
            if span is not None:
                _describe(span, [outcome for _, outcome in outcomes])
        if (progress := _progress.get(None)) is not None:
            progress.read_ended_ns = time_ns()
        return outcomes


class TracedGets(StoreDecorator):
    """`GET`: of bytes that are in no cache. `GET at once`: the same without a wait."""

    def __init__(self, tracer: Tracer, inner: ObjectStore) -> None:
        super().__init__(inner)
        self._tracer = tracer

    async def get(self, key: str, byte_range: ByteRange | None = None) -> bytes:
        with _step(self._tracer, "GET", {"headrace.object_key": key, "headrace.ranges": 1}):
            return await super().get(key, byte_range)

    def get_at_once(self, key: str, byte_range: ByteRange) -> memoryview | None:
        """A span only if there is a body: else the caller's `get` has one."""
        began_ns = time_ns()
        body = super().get_at_once(key, byte_range)
        if body is not None and get_current_span().is_recording():
            attributes: Attributes = {"headrace.object_key": key, "headrace.ranges": 1}
            self._tracer.start_span("GET at once", start_time=began_ns, attributes=attributes).end()
        return body

    async def get_many(self, key: str, ranges: Sequence[ByteRange]) -> list[bytes]:
        with _step(self._tracer, "GET", {"headrace.object_key": key, "headrace.ranges": len(ranges)}):
            return await self._inner.get_many(key, ranges)


def _step(tracer: Tracer, name: str, attributes: Attributes) -> AbstractContextManager[Span | None]:
    """A span in the current one; None where no sampled request is served."""
    if not get_current_span().is_recording():
        return nullcontext()
    return tracer.start_as_current_span(name, attributes=attributes, record_exception=False)


def _describe(span: Span, outcomes: Sequence[DeliveryOutcome]) -> None:
    span.set_attribute("headrace.bytes", sum(one.size_bytes for one in outcomes if isinstance(one, Batches)))
    if errors := error_names([type(one).__name__ for one in outcomes if isinstance(one, HeadraceError)]):
        span.set_attribute("headrace.errors", errors)
        span.set_status(Status(StatusCode.ERROR))
