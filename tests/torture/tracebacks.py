"""Tracebacks in the logs of agents: a fault that an agent knows is one line, so each traceback is a bug.

Pure. asyncio writes one, too, for a task or future that failed and that no code looked at.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

_BEGIN = "Traceback (most recent call last):"
_ERROR = re.compile(r"(  )?[A-Za-z_][\w.]*(:|$)")
"""The last line of a traceback: the exception's name, and what it says. An agent's log indents it by two, and all
others by more."""
_BAR = re.compile(r"\s*\| ")
"""Before each line of an exception group and of its parts."""
_NEVER_LOOKED_AT = re.compile(r"(Task|Future) exception was never retrieved")


def find_tracebacks(logs: Iterable[Path]) -> list[str]:
    """One line for each different traceback of each log, with how often it is there."""
    return [line for log in logs for line in tracebacks_of(log.name, log.read_text(errors="replace"))]


def tracebacks_of(name: str, text: str) -> list[str]:
    """The same for one log's text."""
    found = Counter(_errors(text.splitlines()))
    return [f"traceback in {name}: {error} ({times} times)" for error, times in found.items()]


def _errors(lines: list[str]) -> list[str]:
    found = []
    is_open, last = False, ""
    for number, whole in enumerate(lines):
        line = _BAR.sub("", whole, count=1)
        last = whole if is_open else last
        if _BEGIN in line:
            is_open = True
        elif _NEVER_LOOKED_AT.search(line) and not any(_BEGIN in later for later in lines[number + 1 : number + 3]):
            found.append(line)
        elif is_open and _ERROR.match(line):
            found.append(line.strip())
            is_open = False
    return found + [f"a traceback without an end, last line: {last}"] * is_open
