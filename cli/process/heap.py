"""The C library's heap: kept for the next segment file, given back to the system when idle.

Place: the allocator is tuned once, when the process starts; shell.py keeps the look at idle memory in every process.
Words: *unused* memory of the heap is resident and free now; *idle* memory is the least that was unused in any look
of the last minute.
Invariant of the tuning: only speed depends on it; without glibc it does nothing.
Invariant: memory is given back only if it was idle, so what flushes, replies and merges take and free again within
the minute stays mapped. A merge leaves its peak in pieces between memory that stays in use; without this, each
larger merge would add to what the process keeps. Only speed depends on it: without glibc 2.33 or Linux' /proc,
nothing is counted and nothing is given back.
"""

from __future__ import annotations

import asyncio
import ctypes
import logging
from collections import deque
from collections.abc import Callable

from headrace.config.memory_budget import ALLOCATOR_BYTES
from headrace.storage.clock import Clock

KEPT_BYTES = 256 * 1024 * 1024
"""Freed memory that the process keeps, so that it is not mapped and zeroed again for each flush. What is idle for a
minute is given back (IdleHeap)."""
MAPPED_BYTES = 32 * 1024 * 1024
"""Size from which on memory is mapped for one use: larger than frames, segment files and chunks of the
usual size. This is the most that glibc allows; its own 128 KiB would grow with use, but not once the trim threshold
is set.
"""
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8  # malloc.h


def tune_allocator() -> None:
    """Keep freed memory: saves a fifth of an agent's CPU and more (docs/understand/PERFORMANCE.md).

    In one arena: with one for each thread, what worker threads freed stays with them, and is of no use to the others.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_TRIM_THRESHOLD, KEPT_BYTES)
        mallopt(_M_MMAP_THRESHOLD, MAPPED_BYTES)
        mallopt(_M_ARENA_MAX, 1)


logger = logging.getLogger(__name__)

LOOK_SECONDS = 10.0
LOOKS = 6
"""Number of looks that make a minute."""
GIVEN_BACK_BYTES = ALLOCATOR_BYTES // 2
"""Idle memory from which on it is given back: that takes 0.2 to 0.8 ms for each MiB, in which other threads wait for
memory."""


class IdleHeap:
    """`run` in the background. `idle_bytes` is the part `allocator` of headrace_memory_bytes."""

    def __init__(
        self,
        clock: Clock,
        unused_bytes: Callable[[], int | None] | None = None,
        give_back: Callable[[], object] | None = None,
    ) -> None:
        """`unused_bytes`, `give_back`: of this process's heap, unless a test has others."""
        self._clock = clock
        self._unused_bytes, self._give_back = unused_bytes or unused_heap_bytes, give_back or give_heap_back
        self._looks: deque[int] = deque(maxlen=LOOKS)
        self._floor = 0
        """What was unused right after memory was given back: in pieces smaller than a page of the system."""

    @property
    def idle_bytes(self) -> int:
        """Least unused bytes of the last minute; 0 if they are not known."""
        return min(self._looks, default=0)

    async def run(self) -> None:
        """Never returns. It looks on a thread, because the kernel counts pages meanwhile."""
        while True:
            await asyncio.to_thread(self.look)
            await self._clock.sleep(LOOK_SECONDS)

    def look(self) -> None:
        """Count once, and give back what was idle."""
        unused = self._unused_bytes()
        if unused is None:
            return
        self._floor = min(self._floor, unused)
        self._looks.append(unused)
        idle = self.idle_bytes
        if len(self._looks) < LOOKS or idle - self._floor < GIVEN_BACK_BYTES:
            return
        self._give_back()
        self._floor = self._unused_bytes() or 0
        self._looks.clear()
        self._looks.append(self._floor)
        logger.debug("gave idle memory back: idle=%d left=%d", idle, self._floor)


class _MallInfo2(ctypes.Structure):
    """glibc's struct mallinfo2 (malloc.h)."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"
        )
    )  # fmt: skip


def unused_heap_bytes() -> int | None:
    """Return what of the heap is resident and free. None: this C library or system does not say."""
    mallinfo2, resident = getattr(ctypes.CDLL(None), "mallinfo2", None), _resident_heap_bytes()
    if mallinfo2 is None or resident is None:
        return None
    mallinfo2.restype = _MallInfo2
    return max(resident - int(mallinfo2().uordblks), 0)


def give_heap_back() -> None:
    """Return the whole free pages of the heap to the system, also those between used ones."""
    malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if malloc_trim is not None:
        malloc_trim(ctypes.c_size_t(0))


def _resident_heap_bytes() -> int | None:
    """Rss of the mapping [heap], which is among the first of the file."""
    try:
        with open("/proc/self/smaps") as mappings:
            in_heap = False
            for line in mappings:
                in_heap = in_heap or line.endswith("[heap]\n")
                if in_heap and line.startswith("Rss:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        return None
    return None
