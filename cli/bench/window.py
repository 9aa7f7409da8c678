"""The measured time of a run: CPU, memory and requests of the target's processes, and CPU of the servers it uses.

Place: around the clients' work in loads.py.
Invariant: CPU is read last before the clients begin and first after they end, so that reading the other figures is not
counted.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

from headrace.cli.bench.process_usage import ProcessUsage
from headrace.cli.bench.store_counts import StoreCounts, read_counts
from headrace.cli.bench.targets import MeasuredTarget
from headrace.storage.clock import Clock

SAMPLE_SECONDS = 0.25


@dataclass
class Window:
    """Filled when the measured time is over."""

    cpu_seconds: dict[str, float] = field(default_factory=dict)
    peak_bytes: dict[str, int] = field(default_factory=dict)
    counts: StoreCounts | None = None

    def _see(self, memory: dict[str, int]) -> None:
        for name, size in memory.items():
            self.peak_bytes[name] = max(size, self.peak_bytes.get(name, 0))


@asynccontextmanager
async def measure(target: MeasuredTarget, clock: Clock) -> AsyncIterator[Window]:
    """Everything that the target's processes do while the body runs."""
    window, usage = Window(), ProcessUsage(target.roots)
    processes = ProcessUsage(target.roots | target.rig_roots)
    counts = await asyncio.to_thread(read_counts, target.metrics, target.access)
    sampler = asyncio.create_task(_sample(window, usage, clock))
    try:
        before = processes.cpu_seconds()
        yield window
        after = processes.cpu_seconds()
    finally:
        sampler.cancel()
        with suppress(asyncio.CancelledError):
            await sampler
    window._see(usage.memory_bytes())
    window.cpu_seconds = {name: after[name] - before[name] for name in before}
    if target.metrics:
        window.counts = (await asyncio.to_thread(read_counts, target.metrics, target.access)).since(counts)


async def _sample(window: Window, usage: ProcessUsage, clock: Clock) -> None:
    while True:
        window._see(usage.memory_bytes())
        await clock.sleep(SAMPLE_SECONDS)
