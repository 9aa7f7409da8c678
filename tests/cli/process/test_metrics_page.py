"""/metrics: what is there from the start, and what is not there at all."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any
from unittest.mock import MagicMock

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.core import GaugeMetricFamily

from headrace import __version__
from headrace.agent.fetch.metrics import FetchMetrics
from headrace.agent.produce.metrics import ProduceMetrics
from headrace.cli.process.http_app import MetricsPage, make_app


async def test_labelled_counters_start_at_zero_and_have_no_second_family() -> None:
    """PromQL's increase() does not see a step from nothing to one: an alert on the first error would never fire."""
    registry = CollectorRegistry()
    FetchMetrics(registry)
    ProduceMetrics(registry)
    probe: Any = MagicMock()
    page = next(route for route in make_app(probe, registry).routes if getattr(route, "path", "") == "/metrics")
    lines = (await page.endpoint(MagicMock())).body.decode().splitlines()  # type: ignore[attr-defined]
    for series in (
        'headrace_fetch_storage_errors_total{reason="missing"} 0.0',
        'headrace_fetch_storage_errors_total{reason="corrupt"} 0.0',
        'headrace_produce_commit_failures_total{error="OutcomeUnknownError"} 0.0',
        'headrace_produce_flushes_total{reason="linger"} 0.0',
        'headrace_produce_files_total{result="failed"} 0.0',
    ):
        assert series in lines
    assert not [line for line in lines if "_created" in line]
    assert any(line.startswith("headrace_build_info{") and f'version="{__version__}"' in line for line in lines)


class _Counting:
    """A metric that says how often it was read."""

    def __init__(self) -> None:
        self.reads = 0

    def collect(self) -> Iterator[Metric]:
        self.reads += 1
        yield GaugeMetricFamily("reads", "Of this metric", value=self.reads)


async def test_requests_that_wait_for_the_page_share_it_and_no_other_sees_it() -> None:
    """64 requests in a turn of the loop held up the health probe for a second."""
    registry, counting = CollectorRegistry(auto_describe=False), _Counting()
    registry.register(counting)  # type: ignore[arg-type]
    page, counting.reads = MetricsPage(registry), 0
    for round_number in (1, 2):
        pages = await asyncio.gather(*(page.read() for _ in range(64)))
        assert counting.reads == round_number
        assert all(f"reads {round_number}.0".encode() in each for each in pages)
