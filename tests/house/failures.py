"""A pytest plugin: a failure shows what failed, then the end of the logs of the test's processes.

Place: it shortens the reports of tests that failed: stack frames of libraries go, and of each output the last lines
stay. Invariant: frames go only if frames of this repository remain, and the frame that raised stays.
"""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from _pytest._code.code import Traceback, TracebackEntry

ROOT = Path(__file__).resolve().parents[2]
LINES_KEPT = 60
"""Lines kept of each output of a test."""


def pytest_itemcollected(item: pytest.Item) -> None:
    """Filter the stacks of a test's errors after pytest has: it has no hook for this."""
    pytest_own = item._traceback_filter
    item._traceback_filter = lambda error: own_frames(pytest_own(error))  # type: ignore[method-assign, assignment]


def own_frames(stack: Traceback) -> Traceback:
    """Return a stack without frames of libraries, but with the frame that raised."""
    if not any(map(_is_own, stack)):
        return stack
    return stack.filter(lambda entry: entry is stack[-1] or _is_own(entry))


def _is_own(entry: TracebackEntry) -> bool:
    path = Path(entry.path)
    return path.is_relative_to(ROOT) and ".venv" not in path.parts


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, Any, Any]:
    """Keep the last lines of each output."""
    report = yield
    if report.failed:
        report.sections = [(title, last_lines(text)) for title, text in report.sections]
    return report


def last_lines(text: str) -> str:
    """Return the end of an output, with the count of the lines that are left out."""
    lines = text.splitlines()
    if len(lines) <= LINES_KEPT:
        return text
    return "\n".join([f"[{len(lines) - LINES_KEPT} lines before these]", *lines[-LINES_KEPT:]])
