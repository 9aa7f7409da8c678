"""The log lines of a process: their format, their length, how often they are repeated.

Place: filters and formatters of the log handler that serve.py makes: length first, then repetitions, then the
formatter, which `log.format` chooses.
Invariant of repetitions: a warning or error is written once a minute, and at most TEMPLATE_LINES times with
different values; the next line says how many were left out. What is left out is never the first of its kind. Lines
below WARNING are not limited, nor is the audit log, nor lines that their writer limits itself (LIMITED).
Invariant of lengths: each value in a line has at most VALUE_CHARACTERS, and a text without values as many; the line
says how long a value was that it cuts. Tracebacks and the audit log are not cut: the audit log limits its own
values.
Invariant of formats: only the formatter begins a line, and its time has a zone. On the console, control characters
in a message appear escaped, and each further line of a traceback is indented. In JSON each record is one line. If
several agents write to one stream, each line names its agent.
"""

from __future__ import annotations

import json
import logging
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from headrace.storage.client_text import is_control, shown
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


FORMAT = "%(asctime)s %(levelname)s %(name)s %(message)s"
_PLACE = re.compile(r"(?:(\w+)=)?%(?:%|[-#0 +,]*\d*(?:\.\d+)?[a-zA-Z])")

Writer = Callable[[], Mapping[str, int]]
"""The part of a line that says which of several agents writes: names and numbers, as far as it knows them; nothing
if it is alone.
"""


class OneLineFormatter(logging.Formatter):
    """One line per message, for people."""

    def __init__(self, writer: Writer = dict) -> None:
        super().__init__(FORMAT)
        self._writer = writer

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:
        """Local time with its offset from UTC, in milliseconds (RFC 3339)."""
        return datetime.fromtimestamp(record.created).astimezone().isoformat(" ", "milliseconds")

    def formatMessage(self, record: logging.LogRecord) -> str:
        record.message = _escaped(record.message)
        of = " ".join(f"{name}={value}" for name, value in self._writer().items())
        return f"[{of}] {super().formatMessage(record)}" if of else super().formatMessage(record)

    def formatException(self, ei: object) -> str:
        lines = super().formatException(ei).split("\n")  # type: ignore[arg-type]
        return "\n  ".join(_escaped(line) for line in lines)


class JsonFormatter(logging.Formatter):
    """One JSON object per record.

    `timestamp` (RFC 3339, UTC), `level`, `logger`, `message`; `fields`: what the message has as name=value, with its
    type; `exception`: the traceback. The names of the writer.
    """

    def __init__(self, writer: Writer = dict) -> None:
        super().__init__()
        self._writer = writer

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "timestamp": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            **self._writer(),
        }
        if fields := dict(named_fields(record)):
            line["fields"] = fields
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line)


FORMATTERS: Mapping[str, Callable[[Writer], logging.Formatter]] = {"console": OneLineFormatter, "json": JsonFormatter}
"""Formatters by the values of `log.format`."""


def named_fields(record: logging.LogRecord) -> Iterator[tuple[str, Any]]:
    """The arguments that the message's template writes as name=%s, in order."""
    if not isinstance(record.args, tuple) or not isinstance(record.msg, str):
        return
    places = [place[1] for place in _PLACE.finditer(record.msg) if not place[0].endswith("%")]
    for name, value in zip(places, record.args, strict=False):
        if name is not None:
            yield name, value if isinstance(value, _PLAIN) else str(value)


def _escaped(text: str) -> str:
    """Return the text with what one_line of client_text.py escapes, as Python escapes it in its literals."""
    if text.isprintable():
        return text
    return "".join(each.encode("unicode_escape").decode("ascii") if is_control(each) else each for each in text)
