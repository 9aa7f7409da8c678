"""The CPU time of a process and of every process that it started, read from /proc.

Place: under cost.py, which charges it to tests, and limits.py, which bounds it. Linux only.
Invariant: the figure never falls. A process that ended counts with its parent once the parent has waited for it; if the
parent ended first, it counts with the last value that was read.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import NamedTuple

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


class Key(NamedTuple):
    """A process: ids are used again, the pair with the start time is not."""

    pid: int
    started: int
    """Clock ticks after the boot."""


class Process(NamedTuple):
    """One reading. `ticks` counts its own threads and the children that it has waited for."""

    parent: int
    ticks: int


class ProcessTree:
    """The process `root` and its descendants, also after their parent has ended. Safe from any thread."""

    def __init__(self, root: int) -> None:
        self._root = root
        self._lock = threading.Lock()
        self._known: dict[Key, Process] = {}
        self._strangers: frozenset[int] = frozenset()
        """Processes that are no members. None becomes one, so they are not read again."""
        self._ended_ticks = 0
        self._seconds = 0.0

    def seconds(self) -> float:
        """Return the last reading, or a first one."""
        return self._seconds or self.fresh_seconds()

    def fresh_seconds(self) -> float:
        """Return the CPU seconds that the tree has used until now."""
        with self._lock:
            listed = frozenset(int(name) for name in os.listdir("/proc") if name.isdecimal())
            members = self._members(dict(_processes(listed - self._strangers)))
            self._strangers = listed - {key.pid for key in members}
            parents = {key.pid for key in self._known}
            for key, process in self._known.items():
                if key not in members and process.parent not in parents:
                    self._ended_ticks += process.ticks
            self._known = members
            ticks = self._ended_ticks + sum(process.ticks for process in members.values())
            self._seconds = max(self._seconds, ticks / _TICKS_PER_SECOND)  # some end without a parent that waits
            return self._seconds

    def _members(self, running: Mapping[Key, Process]) -> dict[Key, Process]:
        children: dict[int, list[Key]] = {}
        for key, process in running.items():
            children.setdefault(process.parent, []).append(key)
        found: dict[Key, Process] = {}
        waiting = [key for key in running if key.pid == self._root or key in self._known]
        while waiting:
            key = waiting.pop()
            if key not in found:
                found[key] = running[key]
                waiting += children.get(key.pid, ())
        return found


@cache
def process_tree() -> ProcessTree:
    """Return the tree below this process."""
    return ProcessTree(os.getpid())


def _processes(ids: Iterable[int]) -> Iterator[tuple[Key, Process]]:
    for pid in ids:
        try:
            with open(f"/proc/{pid}/stat", "rb") as file:
                # the name, in parentheses, may hold anything
                fields = file.read().rpartition(b")")[2].split()
        except OSError:  # it has ended
            continue
        yield Key(pid, int(fields[19])), Process(int(fields[1]), sum(map(int, fields[11:15])))
