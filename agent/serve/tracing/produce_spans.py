"""Spans of produce requests and of flushed files.

Place: the observer of agent/produce/pipeline.py if otel.enable is true.
Invariant: all spans of a file are made when it is settled, from times that were kept: none is open before, so none
leaks, and the steps of a request cost nothing until then. A request that reaches no file has its span when it is
answered. Each request and each file is a separate trace, because the Kafka protocol has no field for a client's
trace; the file's span links to the requests in it. The sampler is asked for each.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from opentelemetry.context import Context
from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode, Tracer, set_span_in_context

from headrace.agent.produce.flush_queue import FlushedFile
from headrace.agent.produce.pending import PendingRequest, Refusal, deadline_of
from headrace.agent.produce.stages import CommittingFile
from headrace.agent.produce.trace import FileTrace
from headrace.agent.serve.tracing.attributes import Attributes, error_names, of_request, text
from headrace.protocol.produce_codec import ProduceRequest
from headrace.protocol.request import Request
from headrace.storage.clock import Clock

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
