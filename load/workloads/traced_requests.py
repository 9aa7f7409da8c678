"""The requests of load/benchmarks/request.py, with the spans that the environment asks for, or without any.

Place: `python -m load.workloads.traced_requests [spans]`, a child process of load/benchmarks/tracing.py. It prints a
JSON object: KiB of a request and the CPU microseconds for it.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable, Sequence

from headrace.agent.produce.callbacks import ProduceObserver
from load.benchmarks.request import measure

SIZES_KIB = (1, 16, 64)


def main(*, with_spans: bool) -> None:
    """Measure each size, and print."""
    observer, shut_down = _spans() if with_spans else (None, lambda: None)
    rows = {kib: asyncio.run(measure(kib * 1024, observer)) for kib in SIZES_KIB}
    shut_down()
    print(json.dumps({kib: row["us taken"] + row["us answered"] for kib, row in rows.items()}))


def _spans() -> tuple[ProduceObserver, Callable[[], None]]:
    from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

    from headrace.cli.process.tracing import tracing_of
    from headrace.storage.clock import SystemClock

    class Dropped(SpanExporter):
        def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
            return SpanExportResult.SUCCESS

    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(Dropped()))
    return tracing_of(provider, SystemClock()).produce, provider.shutdown


if __name__ == "__main__":
    main(with_spans=sys.argv[1:] == ["spans"])
