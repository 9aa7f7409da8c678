"""A pytest plugin: after the run, how many schedules were simulated and which faults were injected.

Tests hand their counts over with `record_property(SIMULATED, counts)`, so they survive pytest-xdist.
"""

from __future__ import annotations

from collections import Counter
from typing import cast

import pytest

from tests.simulation.faults import Fault
from tests.simulation.many import ATTEMPTS

SIMULATED = "simulated"

_total: Counter[str] = Counter()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when == "call":
        for name, counts in report.user_properties:
            if name == SIMULATED:
                _total.update(cast("dict[str, int]", counts))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if not _total["schedules"]:
        return
    injected = {fault.value: _total[fault.value] for fault in Fault}
    terminalreporter.write_line(
        f"simulated: schedules={_total['schedules']} batches={_total['batches sent']}"
        f" polls={_total['polls']} neighbour_answers={_total['neighbour answers']} faults={sum(injected.values())}"
    )
    attempts = {int(name.removeprefix(ATTEMPTS)): n for name, n in _total.items() if name.startswith(ATTEMPTS)}
    terminalreporter.write_line(f"  batches by times sent: {dict(sorted(attempts.items()))}")
    for name, times in sorted(injected.items(), key=lambda item: -item[1]):
        terminalreporter.write_line(f"  {times:>8} {name}")
