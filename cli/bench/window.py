"""The measured time of a run: CPU, memory and requests of the target's processes, and CPU of the servers it uses.

Place: around the clients' work in loads.py.
Invariant: what processes count is read from their /metrics, and only counters, so the difference of two readings is
what happened in between. CPU is read last before the clients begin and first after they end, so that reading the other
figures is not counted.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

import msgspec

from headrace.cli.bench.http_access import OPEN, HttpAccess
from headrace.cli.bench.process_usage import ProcessUsage
from headrace.cli.bench.targets import MeasuredTarget
from headrace.storage.clock import Clock

SAMPLE_SECONDS = 0.25
SAMPLE = re.compile(r"^(?P<name>[a-z_]+)(?:\{(?P<labels>[^}]*)\})? (?P<value>\S+)$", re.MULTILINE)
FLUSHES, COMMITS = "headrace_produce_flushes_total", "headrace_produce_commit_seconds_count"


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


class StoreCounts(msgspec.Struct, frozen=True):
    """Requests to the object store (agents and compactors), buffers flushed, commit calls answered."""

    puts: int = 0
    gets: int = 0
    flushes: int = 0
    commits: int = 0

    def since(self, before: StoreCounts) -> StoreCounts:
        """Return what happened between two readings."""
        return StoreCounts(*(getattr(self, name) - getattr(before, name) for name in self.__struct_fields__))


def parse_counts(pages: Iterable[str]) -> StoreCounts:
    """Parse the counts from the text of /metrics of several processes."""
    sums: Counter[str] = Counter()
    for page in pages:
        for sample in SAMPLE.finditer(page):
            name, labels, value = sample["name"], sample["labels"] or "", float(sample["value"])
            if name == "headrace_store_requests_total":
                for operation in ("put", "get"):
                    if f'operation="{operation}"' in labels:
                        sums[operation] += round(value)
            elif name in (FLUSHES, COMMITS):
                sums[name] += round(value)
    return StoreCounts(sums["put"], sums["get"], sums[FLUSHES], sums[COMMITS])


def read_counts(addresses: Iterable[str], access: HttpAccess = OPEN) -> StoreCounts:
    """Read the counts from each process at host:port; UnavailableError if one does not answer."""
    return parse_counts(access.page(address, "/metrics") for address in addresses)
