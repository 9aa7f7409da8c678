"""OpenTelemetry's part of a process: a provider of spans, by the standard OTEL_* variables, and what hands spans to it.

Place: under open_process.py, if otel.enable is true. Only here and in agent/serve/tracing/ OpenTelemetry's SDK is used.
Invariant: a collector that is away loses spans and nothing else: they are sent by a thread, from a bounded queue. The
provider is closed after the broker, and sends what is left within the grace period.
"""

from __future__ import annotations

import asyncio
import logging
import os
from importlib.metadata import version
from typing import TYPE_CHECKING

from headrace.agent.fetch.service import FetchSteps
from headrace.agent.produce.callbacks import ProduceObserver
from headrace.config.addresses import shown_address
from headrace.config.errors import ConfigError
from headrace.config.extras import not_installed
from headrace.config.settings import Settings
from headrace.storage.clock import Clock

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

logger = logging.getLogger(__name__)

SERVICE_NAME = "headrace"
"""Name of the service, unless OTEL_SERVICE_NAME or OTEL_RESOURCE_ATTRIBUTES has another."""
DEFAULT_ENDPOINT = "http://localhost:4318"
"""OpenTelemetry's own."""


class Tracing:
    """A Role: it starts before the broker of its process and closes after it."""

    title = "tracing"
    needs_bucket = False

    def __init__(self, provider: TracerProvider, produce: ProduceObserver, fetch: FetchSteps) -> None:
        self._provider = provider
        self.produce = produce
        self.fetch = fetch

    async def start(self) -> None:
        """Say where spans go."""
        names = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"
        endpoint = next(filter(None, map(os.environ.get, names)), DEFAULT_ENDPOINT)
        shown = shown_address(endpoint)
        logger.info("sending spans: endpoint=%s sampler=%s", shown, self._provider.sampler.get_description())

    async def drain(self, grace_seconds: float) -> None:
        """The broker still makes spans."""

    async def close(self, grace_seconds: float) -> None:
        """Send what is left."""
        try:
            async with asyncio.timeout(grace_seconds):
                await asyncio.to_thread(self._provider.force_flush, int(grace_seconds * 1000))
        except TimeoutError:
            logger.warning("spans are lost: the collector did not take them in time: seconds=%g", grace_seconds)
        await asyncio.to_thread(self._provider.shutdown)

    def not_ready(self) -> None:
        """Spans are never a reason."""
        return None


def open_tracing(settings: Settings, clock: Clock) -> Tracing:
    """Open tracing with a provider that sends spans. ConfigError without the extra `otel`, or for what
    OpenTelemetry refuses.
    """
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import OTELResourceDetector, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ModuleNotFoundError as error:
        raise ConfigError(f"otel.enable is true, but {not_installed(str(error.name), 'otel')}") from error
    own = {"service.name": SERVICE_NAME, "service.version": version("headrace")}
    if settings.broker_rack:
        own["cloud.availability_zone"] = settings.broker_rack
    try:
        given = OTELResourceDetector().detect().attributes
        provider = TracerProvider(resource=Resource.create(own | dict(given)))
        provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    except ValueError as error:
        raise ConfigError(f"otel.enable is true, but a variable OTEL_* is invalid: {error}") from error
    return tracing_of(provider, clock)


def tracing_of(provider: TracerProvider, clock: Clock) -> Tracing:
    """Spans of both paths, to this provider."""
    from headrace.agent.serve.tracing.spans import ProduceSpans, traced_steps

    tracer = provider.get_tracer("headrace")
    return Tracing(provider, ProduceSpans(tracer, clock), traced_steps(tracer, clock))
