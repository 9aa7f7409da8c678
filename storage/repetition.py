"""Which of many like events get a log line.

Place: under the log's filter (cli/process/log_repetition.py), refusals of clients, denials, refused connections.
Invariant: of one key at most `lines` events per `seconds` get a line, and memory is bounded: beyond KEYS_MAX keys all
are forgotten. Every event that got no line is counted in the next line of its key.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Final

SECONDS = 60.0
LIMITED: Final = {"is_limited": True}
"""`extra` of a log line that its writer limits: the log's filter lets it pass."""
KEYS_MAX = 10_000


@dataclass(slots=True)
class _Window:
    began_at: float
    lines: int = 0
    left_out: int = 0


class Repetitions:
    """For one thread, or under a lock."""

    def __init__(self, *, lines: int = 1, seconds: float = SECONDS) -> None:
        self._lines, self._seconds = lines, seconds
        self._windows: dict[Hashable, _Window] = {}

    def left_out(self, key: Hashable, now: float) -> int | None:
        """None: this event gets no line. Else how many of its key got none since the last line. `now`: seconds."""
        window = self._windows.get(key)
        if window is None:
            if len(self._windows) >= KEYS_MAX:
                self._windows.clear()
            window = self._windows[key] = _Window(now)
        elif now - window.began_at >= self._seconds:
            window.began_at, window.lines = now, 0
        if window.lines >= self._lines:
            window.left_out += 1
            return None
        window.lines += 1
        left_out, window.left_out = window.left_out, 0
        return left_out
