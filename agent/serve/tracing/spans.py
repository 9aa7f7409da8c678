"""Spans of fetch requests, of produce requests, of flushed files.

Place: the steps of agent/fetch/service.py, and the observer of agent/produce/pipeline.py, if otel.enable is true. No
other module of the agent needs OpenTelemetry.
Invariant: a step of a fetch has a span only within the task of a traced request, so the feed and background work
make none. A chunk that several requests wait for is in the trace of the request that began to load it. A span ends
with its step, also if the step fails.
All spans of a file are made when it is settled, from times that were kept: none is open before, so none
leaks, and the steps of a request cost nothing until then. A request that reaches no file has its span when it is
answered. Each request and each file is a separate trace, because the Kafka protocol has no field for a client's
trace; the file's span links to the requests in it. The sampler is asked for each.
An attribute is a number, a name of Kafka's, or at most `TEXT_MAX` characters; a span has at most 16. What a client
sends is cut, and nothing of a record is in them.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from time import time_ns
from typing import Any

from opentelemetry.context import Context
from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode, Tracer, get_current_span, set_span_in_context

from headrace.agent.fetch.deliver import Delivery, DeliveryOutcome
from headrace.agent.fetch.files.walk import Batches
from headrace.agent.fetch.index.tail import Lookup, LookupStatus
from headrace.agent.fetch.locate import Locator
from headrace.agent.fetch.service import FetchSteps
from headrace.agent.fetch.waiters import Waiter
from headrace.agent.produce.files import CommittingFile, FileTrace, FlushedFile
from headrace.agent.produce.requests import PendingRequest, Refusal, deadline_of
from headrace.metastore.api.read import ALL_BYTES, ExtentQuery
from headrace.protocol.produce_codec import ProduceRequest
from headrace.protocol.request import Request, RequestHandler, Response
from headrace.storage.clock import Clock
from headrace.storage.errors import HeadraceError
from headrace.storage.objects.store import ByteRange, ObjectStore, StoreDecorator

TEXT_MAX = 128
"""Most characters of a client id or a topic's name."""
ERRORS_MAX = 8
"""Different errors that one span names."""

AttributeValue = str | int | bool | tuple[str, ...]
Attributes = dict[str, AttributeValue]


def text(value: object) -> str:
    """Cut to a bounded length; control characters escaped."""
    cut = str(value)[:TEXT_MAX]
    return cut if cut.isprintable() else cut.encode("unicode_escape").decode("ascii")[:TEXT_MAX]


def of_request(request: Request) -> Attributes:
    """Return what every request has."""
    connection = request.connection
    return {
        "messaging.system": "kafka",
        "messaging.client.id": text(request.client_id or ""),
        "client.address": text(connection.peer.rpartition(":")[0]),
        "headrace.listener": text(connection.listener),
        "headrace.request.version": request.api_version,
        "headrace.request.bytes": len(request.body),
    }


def error_names(names: Collection[str]) -> tuple[str, ...]:
    """The first of them in order, each once."""
    return tuple(sorted(set(names))[:ERRORS_MAX])


LINKS_MAX = 128
"""Requests that a file's span links to, as the SDK's own limit is: the first sampled ones."""

Step = tuple[str, float, float]
"""Name, start and end on Clock.monotonic(); nan: it did not happen."""


class TracedRequest(PendingRequest):
    """An answer that keeps when it was given, and what its request was like."""

    __slots__ = ("answered_at", "attributes", "received_at", "spans", "validated_at")

    def __init__(self, request: Request, produce: ProduceRequest, spans: ProduceSpans) -> None:
        self.spans = spans
        self.received_at = request.received_at
        self.answered_at = self.validated_at = math.nan
        self.attributes = of_request(request) | _of_produce(produce)
        super().__init__(
            produce,
            correlation_id=request.correlation_id,
            version=request.api_version,
            appended_at=spans.now(),
            deadline=deadline_of(request, produce),
        )

    def answer(self) -> None:
        """Answer as PendingRequest does. A request that is in no file has its span now."""
        if not self.is_answered:
            self.answered_at = self.spans.now()
            super().answer()
            if math.isnan(self.validated_at):
                self.spans.refused(self)


class ProduceSpans:
    """A ProduceObserver."""

    def __init__(self, tracer: Tracer, clock: Clock) -> None:
        self._tracer, self._clock = tracer, clock

    def now(self) -> float:
        """Clock.monotonic()."""
        return self._clock.monotonic()

    def pending(self, request: Request, produce: ProduceRequest) -> PendingRequest:
        """See ProduceObserver."""
        return TracedRequest(request, produce, self)

    def appended(self, pending: PendingRequest) -> None:
        """See ProduceObserver."""
        assert isinstance(pending, TracedRequest), "every answer is made here"
        pending.validated_at = self.now()

    def refused(self, request: TracedRequest) -> None:
        """It is answered, and no file has anything of it."""
        steps = (("receive", request.received_at, request.appended_at),)
        rest = ("validate", request.appended_at, request.answered_at)
        self._request_span(request, (*steps, rest), self._offset_ns())

    def settled(self, file: FlushedFile) -> None:
        """The spans of the file and of its requests."""
        offset_ns, trace = self._offset_ns(), file.trace
        links: list[Link] = []
        for request in file.waiting.requests:
            assert isinstance(request, TracedRequest), "every answer is made here"
            span = self._request_span(request, _steps_of_request(request, trace), offset_ns)
            if span.get_span_context().trace_flags.sampled and len(links) < LINKS_MAX:
                links.append(Link(span.get_span_context()))
        span = self._tracer.start_span(
            "flush",
            Context(),
            attributes=_of_file(file),
            links=links,
            start_time=_ns(trace.opened_at, offset_ns),
        )
        if not trace.is_committed:
            span.set_status(Status(StatusCode.ERROR))
        self._add_steps(span, (("buffer", trace.opened_at, trace.closed_at), *_steps_of_file(trace)), offset_ns)
        span.end(_ns(trace.settled_at, offset_ns))

    def _request_span(self, request: TracedRequest, steps: Iterable[Step], offset_ns: int) -> Span:
        span = self._tracer.start_span(
            "produce",
            Context(),
            kind=SpanKind.SERVER,
            attributes=request.attributes,
            start_time=_ns(request.received_at, offset_ns),
        )
        if span.is_recording():
            if errors := _errors(request):
                span.set_attribute("headrace.errors", errors)
                span.set_status(Status(StatusCode.ERROR))
            ended = request.answered_at
            self._add_steps(span, ((name, start, min(end, ended)) for name, start, end in steps), offset_ns)
        span.end(_ns(request.answered_at, offset_ns))
        return span

    def _add_steps(self, parent: Span, steps: Iterable[Step], offset_ns: int) -> None:
        if parent.is_recording():
            context = set_span_in_context(parent, Context())
            for name, start, end in steps:
                if start <= end:  # also leaves out nan
                    step = self._tracer.start_span(name, context, start_time=_ns(start, offset_ns))
                    step.end(_ns(end, offset_ns))

    def _offset_ns(self) -> int:
        """Return the difference of Unix time and the clock's monotonic time, in ns."""
        return self._clock.wall_ms() * 1_000_000 - int(self._clock.monotonic() * 1e9)


def _steps_of_request(request: TracedRequest, trace: FileTrace) -> list[Step]:
    return [
        ("receive", request.received_at, request.appended_at),
        ("validate", request.appended_at, request.validated_at),
        ("wait for flush", request.validated_at, trace.closed_at),
        *_steps_of_file(trace),
        ("acknowledge", trace.committed_at, request.answered_at),
    ]


def _steps_of_file(trace: FileTrace) -> list[Step]:
    return [
        ("put", trace.put_started_at, trace.stored_at),
        ("commit", trace.commit_started_at, trace.committed_at),
    ]


def _of_produce(produce: ProduceRequest) -> Attributes:
    first = produce.topics[0] if produce.topics else None
    return {
        "messaging.operation.name": "produce",
        "messaging.destination.name": "" if first is None else text(first.name or first.topic_id),
        "headrace.topics": len(produce.topics),
        "headrace.batches": sum(len(topic.partitions) for topic in produce.topics),
        "headrace.acks": produce.acks,
    }


def _of_file(file: FlushedFile) -> Attributes:
    trace, stage = file.trace, file.stage
    attributes: Attributes = {
        "headrace.flush.reason": trace.reason.value,
        "headrace.requests": len(file.waiting.requests),
        "headrace.batches": trace.batch_count,
        "headrace.bytes": trace.size_bytes,
        "headrace.commit.calls": trace.commit_calls,
        "headrace.committed": trace.is_committed,
    }
    if isinstance(stage, CommittingFile):
        attributes["headrace.file_id"] = str(stage.commit.file_id)
    return attributes


def _errors(request: TracedRequest) -> tuple[str, ...]:
    codes = {partition.error_code for topic in request.reply.topics for partition in topic.partitions}
    return error_names([Refusal(code, "").name for code in codes if code])


def _ns(seconds: float, offset_ns: int) -> int:
    return int(seconds * 1e9) + offset_ns


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
