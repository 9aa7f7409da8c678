"""The C library's allocator, told that an agent frees segment bodies only to need them again.

Place: once, as the process starts.
Invariant: nothing depends on it; where there is no glibc, nothing happens. If the process dies nothing is lost.
"""

from __future__ import annotations

import ctypes

KEPT_BYTES = 256 * 1024 * 1024
"""Freed memory that stays with the process, instead of being mapped and zeroed anew with each flush."""
_M_TRIM_THRESHOLD = -1  # malloc.h


def tune_allocator() -> None:
    """Keep what is freed: 17 to 20 % of an agent's CPU at 64 KiB requests (docs/PERFORMANCE.md)."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_TRIM_THRESHOLD, KEPT_BYTES)
