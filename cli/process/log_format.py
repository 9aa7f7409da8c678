"""Log lines that clients' values cannot forge, for people or for programs.

Place: the formatters of every process that serve.py runs; `log.format` chooses one.
Invariant: only the formatter begins a line, and its time has a zone. On the console, control characters in a message
appear escaped, and each further line of a traceback is indented. In JSON each record is one line. If several agents
write to one stream, each line names its agent.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from headrace.storage.client_text import is_control

FORMAT = "%(asctime)s %(levelname)s %(name)s %(message)s"
_PLACE = re.compile(r"(?:(\w+)=)?%(?:%|[-#0 +,]*\d*(?:\.\d+)?[a-zA-Z])")
_PLAIN = (bool, int, float, type(None))


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
