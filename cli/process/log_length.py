"""Limits the length of log lines: a value that came from a client may have the size of a request.

Place: a filter of the process's log handler (serve.py), before the one that counts repetitions.
Invariant: each value in a line has at most VALUE_CHARACTERS, and a text without values as many; the line says how long
a value was that it cuts. Tracebacks and the audit log are not cut: the audit log limits its own values.
"""

from __future__ import annotations

import logging
from typing import Any, Final

from headrace.cli.process.log_repetition import AUDIT
from headrace.storage.client_text import shown

VALUE_CHARACTERS: Final = 4_096
_PLAIN = (bool, int, float, type(None))


class LengthFilter(logging.Filter):
    """Any thread may log."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Shorten the record's values; it is always written."""
        if record.name == AUDIT:
            return True
        if isinstance(record.args, tuple):
            record.args = tuple(_shortened(value) for value in record.args)
        if not record.args and isinstance(record.msg, str):
            record.msg = shown(record.msg, VALUE_CHARACTERS)
        return True


def _shortened(value: Any) -> Any:
    """The value, or the beginning of its text if that is too long."""
    if isinstance(value, _PLAIN):
        return value
    text = value if isinstance(value, str) else str(value)
    return value if len(text) <= VALUE_CHARACTERS else shown(text, VALUE_CHARACTERS)
