"""An agent with spans in memory, and calls of a real client.

Place: used by the tests of this folder. The agent runs in the test's process, so that its exporter can be asked.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager

import confluent_kafka
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_ON, Sampler

from headrace.cli.process.open_process import compose_agent
from headrace.cli.process.tracing import tracing_of
from headrace.config.settings import Settings
from headrace.metastore.api.topics import NewTopic
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.storage.clock import SystemClock
from headrace.storage.objects.memory import MemoryStore
from load.contexts import a_context
from tests.confluent_records import consume

TOPIC = "traced"
Records = Sequence[tuple[bytes, bytes]]


class TracedAgent:
    """Its address, and its spans so far."""

    def __init__(self, kafka: str, exporter: InMemorySpanExporter) -> None:
        self.kafka, self._exporter = kafka, exporter

    @property
    def spans(self) -> list[ReadableSpan]:
        """All that ended."""
        return list(self._exporter.get_finished_spans())

    def named(self, name: str) -> list[ReadableSpan]:
        """Those of this name."""
        return [span for span in self.spans if span.name == name]

    def steps(self, parent: ReadableSpan) -> list[str]:
        """The names of a span's own children, by their start; the tree's order where starts are equal."""
        return [span.name for span in sorted(self.children(parent), key=lambda span: span.start_time or 0)]

    def children(self, parent: ReadableSpan) -> list[ReadableSpan]:
        """A span's own children."""
        assert parent.context is not None
        return [span for span in self.spans if span.parent and span.parent.span_id == parent.context.span_id]

    async def produce(self, records: Records, more: Mapping[str, object] | None = None) -> list[str | None]:
        """Each record's error, if it has one."""
        return await asyncio.to_thread(_produce, self.kafka, records, dict(more or {}))

    async def consume(self, count: int) -> list[bytes | None]:
        """The values of the first records of the topic."""
        return await asyncio.to_thread(_consume, self.kafka, count)


@asynccontextmanager
async def traced_agent(
    metastore_url: str,
    sampler: Sampler = ALWAYS_ON,
    configs: Mapping[str, str] | None = None,
    cache_bytes: int = 1 << 24,
) -> AsyncIterator[TracedAgent]:
    """Serving, with one topic of one partition."""
    settings = Settings(
        listeners="PLAINTEXT://127.0.0.1:0",
        http_port=0,
        cache_bytes=cache_bytes,
        linger_ms=20,
        metastore_url=metastore_url,
    )
    clock, exporter = SystemClock(), InMemorySpanExporter()
    metastore = await PostgresMetastore.open(metastore_url, settings)
    await metastore.topics.create_topics(
        await metastore.cluster.metadata_head(), [NewTopic(TOPIC, uuid.uuid4(), 1, dict(configs or {}))]
    )
    provider = TracerProvider(sampler=sampler)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    context = a_context(metastore, clock, store=MemoryStore(clock), settings=settings)
    process, broker = compose_agent(context, tracing=tracing_of(provider, clock))
    await process.start()
    try:
        yield TracedAgent(f"127.0.0.1:{broker.kafka_port}", exporter)
    finally:
        await process.stop()


def _produce(kafka: str, records: Records, more: dict[str, object]) -> list[str | None]:
    producer = confluent_kafka.Producer({"bootstrap.servers": kafka, "linger.ms": 0, **more})
    errors: list[str | None] = []
    for key, value in records:
        producer.produce(
            TOPIC,
            key=key,
            value=value,
            headers={"header-name-of-a-record": value},
            on_delivery=lambda error, _: errors.append(None if error is None else error.name()),
        )
    producer.flush()
    return errors


def _consume(kafka: str, count: int) -> list[bytes | None]:
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": kafka, "group.id": "none", "client.id": "reader", "fetch.wait.max.ms": 100}
    )
    consumer.assign([confluent_kafka.TopicPartition(TOPIC, 0, 0)])
    values: list[bytes | None] = []
    while len(values) < count:
        values += [record.value() for record in consume(consumer, count - len(values), 1.0)]
    consumer.close()
    return values
