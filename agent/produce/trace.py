"""The times of one segment file on the write path.

Place: begun by the buffer, completed by upload, commit and the flush queue; read by metrics and load reports.
Invariant: times are Clock.monotonic() in seconds; nan means that the step did not happen.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass, field


class FlushReason(enum.StrEnum):
    """Why a buffer was closed."""

    LINGER = "linger"
    IDLE = "idle"
    """No byte of a Produce request arrived for linger.idle.ms."""
    CLIENTS_WAIT = "clients_wait"
    """Every client that could add to it waited for an answer."""
    SIZE = "size"
    DRAIN = "drain"


EARLY_REASONS = (FlushReason.IDLE, FlushReason.CLIENTS_WAIT)
"""Reasons to close a file before its linger ends that need the budget of early flushes."""


@dataclass(slots=True)
class FileTrace:
    """The steps of one file, from its first batch to its last answer."""

    opened_at: float
    closed_at: float = math.nan
    put_started_at: float = math.nan
    stored_at: float = math.nan
    commit_started_at: float = math.nan
    committed_at: float = math.nan
    """The answer of its last commit call arrived."""
    settled_at: float = math.nan
    reason: FlushReason = FlushReason.LINGER
    batch_count: int = 0
    size_bytes: int = 0
    """Size of the batches in bytes, without the footer."""
    commit_calls: int = 0
    is_committed: bool = False
    appended_at: list[float] = field(default_factory=list)
    """One per request of the file."""
