"""Tune the C library's allocator: freed memory is kept, because an agent needs it again for the next segment file,
and kept once, not once for each thread.

Place: called once, when the process starts.
Invariant: only speed depends on it; without glibc it does nothing.
"""

from __future__ import annotations

import ctypes

KEPT_BYTES = 256 * 1024 * 1024
"""Freed memory that the process keeps, so that it is not mapped and zeroed again for each flush. What is idle for a
minute is given back (idle_heap.py)."""
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
