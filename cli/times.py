"""Times of records and events as text.

Place: under the commands that print times.
Invariant: any int64 of milliseconds has a text. A producer may write any time.
"""

from __future__ import annotations

import datetime


def iso_time(time_ms: int) -> str:
    """2026-01-31T12:00:00.250+00:00; `N ms` outside of the years 1 to 9999."""
    try:
        return datetime.datetime.fromtimestamp(time_ms / 1000, datetime.UTC).isoformat(timespec="milliseconds")
    except (ValueError, OverflowError, OSError):
        return f"{time_ms} ms"
