"""Spans of reads of the bucket: one for each that brought bytes."""

from __future__ import annotations

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from headrace.agent.serve.tracing.spans import TracedGets
from headrace.storage.objects.memory import MemoryStore
from headrace.storage.objects.store import ByteRange


class Resident(MemoryStore):
    """Some keys are in the memory of the machine."""

    def __init__(self, *keys: str) -> None:
        super().__init__()
        self._resident = keys

    def get_at_once(self, key: str, byte_range: ByteRange) -> memoryview | None:
        return memoryview(b"body") if key in self._resident else None


@pytest.mark.parametrize("is_traced", [True, False])
async def test_a_read_at_once_has_a_span_if_it_read_something(is_traced: bool) -> None:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracer = provider.get_tracer("test")
    store = TracedGets(tracer, Resident("in memory"))
    await store.put("elsewhere", b"body")

    async def read() -> None:
        for key in ("in memory", "elsewhere"):
            body = store.get_at_once(key, ByteRange(0, 4)) or await store.get(key)
            assert body == b"body"

    if is_traced:
        with tracer.start_as_current_span("fetch"):
            await read()
    else:
        await read()
    *gets, fetch = exporter.get_finished_spans() or [None]
    described = [(get.name, get.attributes["headrace.object_key"]) for get in gets]
    assert described == ([("GET at once", "in memory"), ("GET", "elsewhere")] if is_traced else [])
    assert all(get.parent.span_id == fetch.context.span_id for get in gets)
