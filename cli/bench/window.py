"""The measured time of a run: CPU, memory, requests of the target's processes, CPU of the servers it uses.

Place: around the clients' work in loads.py; run.py reads CPU and memory of process trees (/proc) around each run.
Invariant of process trees: a tree's CPU never goes back while its root is running: what an ended child used is
counted by its parent, which waited for it. Shared memory is counted once for a kind of process: Postgres' processes
map the same buffers.
Invariant: what processes count is read from their /metrics, and only counters, so the difference of two readings is
what happened in between. CPU is read last before the clients begin and first after they end, so that reading the
other figures is not counted.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import msgspec

from headrace.cli.bench.targets import OPEN, HttpAccess, MeasuredTarget
from headrace.storage.clock import Clock
from headrace.storage.errors import UnavailableError

PROC = Path("/proc")
KIB = 1024
PROCESS_FIELDS_FROM = 3
"""Number of the first field after the name in /proc/PID/stat, as proc(5) counts them."""
PARENT, USER, SYSTEM, CHILDREN_USER, CHILDREN_SYSTEM = 4, 14, 15, 16, 17


class ProcessStat(NamedTuple):
    """Process stat from /proc/PID/stat; `ticks` are the process's own and those of the children that it waited for."""

    parent: int
    ticks: int


class Memory(NamedTuple):
    """Memory from /proc/PID/status, in bytes."""

    anonymous: int
    file: int
    shared: int


def parse_stat(text: str) -> ProcessStat:
    """The name is in parentheses and may contain blanks and parentheses itself."""
    fields = text.rpartition(")")[2].split()

    def field(number: int) -> int:
        return int(fields[number - PROCESS_FIELDS_FROM])

    return ProcessStat(field(PARENT), sum(map(field, (USER, SYSTEM, CHILDREN_USER, CHILDREN_SYSTEM))))


def parse_status(text: str) -> Memory:
    """All zero for a process that has ended and was not waited for yet."""
    sizes = {name: value.split() for name, _, value in (line.partition(":") for line in text.splitlines())}
    return Memory(*(int(sizes[name][0]) * KIB if name in sizes else 0 for name in ("RssAnon", "RssFile", "RssShmem")))


def trees(processes: Mapping[int, ProcessStat], roots: Iterable[int]) -> list[int]:
    """`roots` and all processes below them. UnavailableError if a root is not there."""
    found = list(roots)
    for root in found:
        if root not in processes:
            raise UnavailableError(f"a process of the target has ended: pid={root}")
    children: defaultdict[int, list[int]] = defaultdict(list)
    for pid, process in processes.items():
        children[process.parent].append(pid)
    for pid in found:
        found += children[pid]
    return found


class ProcessUsage:
    """What the process trees below `roots` (kind -> process ids) use."""

    def __init__(self, roots: Mapping[str, Iterable[int]], proc: Path = PROC) -> None:
        self._roots = {kind: tuple(pids) for kind, pids in roots.items()}
        self._proc = proc

    def cpu_seconds(self) -> dict[str, float]:
        """Used since the start of each kind's processes, user and system."""
        processes = self._read_processes()
        ticks_per_second = os.sysconf("SC_CLK_TCK")
        return {
            kind: sum(processes[pid].ticks for pid in trees(processes, roots)) / ticks_per_second
            for kind, roots in self._roots.items()
        }

    def memory_bytes(self) -> dict[str, int]:
        """Resident now. Files that several processes of a kind map count once, as do shared buffers."""
        processes = self._read_processes()
        found = {}
        for kind, roots in self._roots.items():
            each = [self._memory(pid) for pid in trees(processes, roots)]
            found[kind] = (
                sum(one.anonymous for one in each) + max(one.file for one in each) + max(one.shared for one in each)
            )
        return found

    def _memory(self, pid: int) -> Memory:
        try:
            return parse_status((self._proc / str(pid) / "status").read_text())
        except (FileNotFoundError, ProcessLookupError):  # it ended between two readings
            return Memory(0, 0, 0)

    def _read_processes(self) -> dict[int, ProcessStat]:
        if not self._roots:
            return {}
        found = {}
        for entry in self._proc.glob("[0-9]*"):
            try:
                found[int(entry.name)] = parse_stat((entry / "stat").read_text())
            except (FileNotFoundError, ProcessLookupError):
                continue
        return found


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
