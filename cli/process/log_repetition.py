"""Throttles warnings that repeat: in an outage, every task says again and again that Postgres does not answer.

Place: a filter of the process's log handler (serve.py); the formatters come after it.
Invariant: a warning or error is written once a minute, and at most TEMPLATE_LINES times with different values; the next
line says how many were left out. What is left out is never the first of its kind. Lines below WARNING are not limited,
nor is the audit log, nor lines that their writer limits itself (LIMITED).
"""

from __future__ import annotations

import logging
import re
import threading
from typing import Final

from headrace.storage.clock import Clock
from headrace.storage.repetition import LIMITED, Repetitions

AUDIT: Final = "headrace.audit"
TEMPLATE_LINES = 5
_DIGITS = re.compile(r"\d+")


class RepetitionFilter(logging.Filter):
    """Any thread may log."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock = clock
        self._lock = threading.Lock()
        self._texts = Repetitions()
        self._templates = Repetitions(lines=TEMPLATE_LINES)
        self._left_out: dict[tuple[str, str], int] = {}
        """By logger and template, which are in the code: their number is limited."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether it is written; a line after ones that were left out gets their number."""
        if record.levelno < logging.WARNING or record.name == AUDIT or LIMITED.items() <= vars(record).items():
            return True
        template = (record.name, str(record.msg))
        text = (record.name, _DIGITS.sub("", record.getMessage()))
        with self._lock:
            now = self._clock.monotonic()
            if self._texts.left_out(text, now) is None or self._templates.left_out(template, now) is None:
                self._left_out[template] = self._left_out.get(template, 0) + 1
                return False
            left_out = self._left_out.pop(template, 0)
        if left_out:
            if not (record.args and isinstance(record.args, tuple)):
                record.msg, record.args = record.getMessage().replace("%", "%%"), ()
            record.msg, record.args = f"{record.msg} left_out=%d", (*record.args, left_out)
        return True
