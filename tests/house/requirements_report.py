"""`make requirements`: one line per numbered promise, its tests, passed or open.

A pytest plugin (`-p tests.house.requirements_report`): it collects the outcome of every test that
carries `@pytest.mark.requirement(...)`. A row is passed when each of its parts has at least one
test and all of its tests passed; a skipped test leaves its row open.
"""

from __future__ import annotations

import tomllib
from collections import defaultdict
from pathlib import Path

import pytest

ROWS = Path(__file__).resolve().parents[2] / "docs" / "requirements.toml"


def load_rows() -> dict[str, tuple[str, list[str]]]:
    """Number -> (title, the marks that it needs)."""
    rows: dict[str, tuple[str, list[str]]] = {}
    for section in tomllib.loads(ROWS.read_text(encoding="utf-8")).values():
        for number, row in section.items():
            if isinstance(row, str):
                rows[number] = (row, [number])
            else:
                rows[number] = (row["title"], [f"{number}.{part}" for part in range(1, row["parts"] + 1)])
    return rows


_marks: dict[str, list[str]] = {}
_outcomes: dict[str, str] = {}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    known = {mark for _, marks in load_rows().values() for mark in marks}
    for item in items:
        numbers = [str(n) for mark in item.iter_markers("requirement") for n in mark.args]
        if unknown := set(numbers) - known:
            raise pytest.UsageError(f"{item.nodeid}: no such requirement: {', '.join(sorted(unknown))}")
        _marks[item.nodeid] = numbers


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    worst = {"passed": 0, "skipped": 1, "failed": 2}
    before = _outcomes.get(report.nodeid, "passed")
    _outcomes[report.nodeid] = max(before, report.outcome, key=lambda outcome: worst[outcome])


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    tests: dict[str, list[str]] = defaultdict(list)
    for nodeid, numbers in _marks.items():
        for number in numbers:
            tests[number].append(_outcomes.get(nodeid, "skipped"))
    passed = 0
    for number, (title, marks) in load_rows().items():
        done = all(tests[mark] and set(tests[mark]) == {"passed"} for mark in marks)
        passed += done
        count = sum(len(tests[mark]) for mark in marks)
        terminalreporter.write_line(f"{number:<4} {count:>3} tests  {'passed' if done else 'open  '}  {title}")
    terminalreporter.write_line(f"{passed} of {len(load_rows())} promises passed")
