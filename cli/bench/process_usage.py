"""CPU and memory of process trees, from /proc.

Place: read by run.py around each run, and several times within one for the peak of memory.
Invariant: a tree's CPU never goes back while its root is running: what an ended child used is counted by its parent,
which waited for it. Shared memory is counted once for a kind of process: Postgres' processes map the same buffers.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

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
