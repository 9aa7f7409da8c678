"""A pytest plugin: how far the run is, in place of a dot for each test.

Place: in the process that prints. On a terminal one line is written again and again; elsewhere (a log) there is a line
for every LOG_SECONDS. A failure gets a line at once; its details follow at the end of the run. Where no test ends for
QUIET_SECONDS, a line names those that run.
The time left is estimated from what the tests that are still to come are expected to take (expected.py).
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Sequence

import pytest

from tests.house.expected import seconds_of_test

TERMINAL_SECONDS = 0.5
LOG_SECONDS = 20.0
QUIET_SECONDS = 60.0


class Progress:
    """Counts the tests that ended."""

    def __init__(self, tests: Sequence[str], started: float) -> None:
        self._seconds = {test: seconds_of_test(test) for test in tests}
        self._left = dict(self._seconds)
        self._started = started
        self._running: dict[str, float] = {}
        self.failed = 0

    def begin(self, test: str, now: float) -> None:
        """Note that a test runs from now on."""
        self._running[test] = now

    def end(self, test: str) -> None:
        """Count a test."""
        self._left.pop(test, None)
        self._running.pop(test, None)

    def running(self, now: float) -> str:
        """Return the tests that run, each with its time so far."""
        return ", ".join(f"{test} ({_clock(now - began)})" for test, began in list(self._running.items()))

    def line(self, now: float) -> str:
        """Return count, percentage, time so far and time left."""
        count, ended = len(self._seconds), len(self._seconds) - len(self._left)
        elapsed, left = now - self._started, sum(self._left.values())
        done = sum(self._seconds.values()) - left
        text = f"{ended:,} of {count:,} tests, {100 * ended // max(count, 1)} %, {_clock(elapsed)}"
        if done and self._left:
            text += f", about {_clock(elapsed * left / done)} left"
        return text + (f", {self.failed} failed" if self.failed else "")


def _clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02}"


class ProgressReporter:
    """Prints the progress through pytest's own reporter."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._started = time.monotonic()
        self._progress: Progress | None = None
        self._printed = self._started
        self._is_terminal = sys.stdout.isatty()
        self._is_over = threading.Event()
        threading.Thread(target=self._watch, name="progress", daemon=True).start()

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        if session.items:
            self._progress = Progress([item.nodeid for item in session.items], time.monotonic())

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: Sequence[str]) -> None:
        if self._progress is None:
            self._progress = Progress(ids, time.monotonic())

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        if self._progress is not None:
            self._progress.begin(nodeid, time.monotonic())

    @pytest.hookimpl(tryfirst=True)
    def pytest_report_teststatus(self, report: pytest.TestReport) -> tuple[str, str, str] | None:
        """Print no letters: a failure has a line."""
        if hasattr(report, "wasxfail"):
            return None
        if report.passed:
            return ("passed" if report.when == "call" else ""), "", ""
        if report.skipped:
            return "skipped", "", ""
        return ("failed" if report.when == "call" else "error"), "", ""

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        progress = self._progress
        if progress is None:
            return
        if report.failed:
            progress.failed += 1
            self._write(f"\nFAILED {report.nodeid} ({report.when})")
        if report.when == "teardown":
            progress.end(report.nodeid)
        now = time.monotonic()
        if now - self._printed >= (TERMINAL_SECONDS if self._is_terminal else LOG_SECONDS):
            self._printed = now
            self._write(f"\r\x1b[K{progress.line(now)}" if self._is_terminal else f"\n{progress.line(now)}")

    def _watch(self) -> None:
        while not self._is_over.wait(QUIET_SECONDS):
            now = time.monotonic()
            if self._progress is not None and now - self._printed >= QUIET_SECONDS:
                self._write(f"\nrunning: {self._progress.running(now)}")

    def pytest_sessionfinish(self) -> None:
        self._is_over.set()
        if self._progress is not None:
            self._write(f"\n{self._progress.line(time.monotonic())}\n")

    def _write(self, text: str) -> None:
        reporter = self._config.pluginmanager.get_plugin("terminalreporter")
        if reporter is not None:
            reporter.write(text, flush=True)


def pytest_configure(config: pytest.Config) -> None:
    """Report where the run is printed: not in workers, and not where names of tests are wanted (-v) or none runs."""
    if not hasattr(config, "workerinput") and config.get_verbosity() < 1 and not config.option.collectonly:
        config.pluginmanager.register(ProgressReporter(config), "progress reporter")
