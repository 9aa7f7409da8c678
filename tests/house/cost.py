"""A pytest plugin: what each test cost, in CPU seconds of its whole process tree and in wall seconds.

Place: at the end of a run it prints the CPU seconds of each folder and of the costliest files, and the longest tests,
and keeps all in .test-results/cost.json.
A test that took less than BRIEF_SECONDS is charged the time of the worker alone; what its servers used is charged to
the next longer test of the worker, because a reading of all processes takes about a millisecond.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Generator
from typing import Any

import pytest

from tests.house.expected import LAST, file_of
from tests.house.last_run import IS_PART_OF_A_TEST
from tests.house.process_cpu import process_tree

BRIEF_SECONDS = 0.05
LONGEST_SHOWN = 10
FILES_SHOWN = 25
_KEY = "cost"
COLLECTING = "collecting"
"""The name under which a worker's start counts."""

_costs: dict[str, dict[str, float]] = {}
_read: list[float] = []
"""The last reading of this worker, in CPU seconds."""


def pytest_collection_finish() -> None:
    """Charge the worker's start."""
    _read[:] = [process_tree().fresh_seconds()]
    _charge(COLLECTING, _read[0], 0.0)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Charge a test, its fixtures too."""
    began, own_began = time.monotonic(), time.process_time()
    result = yield
    seconds = time.monotonic() - began
    cpu_seconds = time.process_time() - own_began
    if seconds > BRIEF_SECONDS and _read:
        now = process_tree().fresh_seconds()
        cpu_seconds, _read[0] = now - _read[0], now
    elif _read:
        _read[0] += cpu_seconds
    _charge(item.nodeid, cpu_seconds, seconds)
    if item.get_closest_marker("slow"):
        _costs[item.nodeid]["is_slow"] = 1.0
    return result


def _charge(test: str, cpu_seconds: float, seconds: float) -> None:
    _costs[test] = {"cpu_seconds": round(cpu_seconds, 3), "seconds": round(seconds, 3)}


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Hand a worker's figures over."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput[_KEY] = _costs


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Take a worker's figures; a worker that crashed has none."""
    for test, cost in getattr(node, "workeroutput", {}).get(_KEY, {}).items():
        name = f"{COLLECTING} ({node.gateway.id})" if test == COLLECTING else test
        _costs[name] = cost


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the table, and keep the figures."""
    tests = {test: cost for test, cost in _costs.items() if not test.startswith(COLLECTING)}
    if not tests or terminalreporter.verbosity < -1 or IS_PART_OF_A_TEST:
        return
    LAST.parent.mkdir(exist_ok=True)
    LAST.write_text(json.dumps(tests, indent=0), encoding="utf-8")
    terminalreporter.section("CPU seconds")
    folders: Counter[str] = Counter()
    for test, cost in _costs.items():
        folders["/".join(file_of(test).split("/")[:2])] += cost["cpu_seconds"]  # type: ignore[assignment]
    for folder, cpu_seconds in folders.most_common():
        terminalreporter.write_line(f"{cpu_seconds:8.1f}  {folder}")
    terminalreporter.write_line(f"{sum(folders.values()):8.1f}  in all")
    files: Counter[str] = Counter()
    for test, cost in tests.items():
        files[file_of(test)] += cost["cpu_seconds"]  # type: ignore[assignment]
    terminalreporter.write_line("the files with the most of them:")
    for file, cpu_seconds in files.most_common(FILES_SHOWN):
        terminalreporter.write_line(f"{cpu_seconds:8.1f}  {file}")
    longest = sorted(tests.items(), key=lambda test: -test[1]["seconds"])[:LONGEST_SHOWN]
    terminalreporter.write_line("the longest tests (wall seconds, CPU seconds):")
    for test, cost in longest:
        terminalreporter.write_line(f"{cost['seconds']:8.1f} {cost['cpu_seconds']:8.1f}  {test}")
