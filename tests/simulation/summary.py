"""A pytest plugin: after the run, how many schedules were simulated and which faults were injected.

Also how many seeds the searches for planted bugs tried (tests/planted.py). Tests hand their counts over with
`record_property(SIMULATED, counts)`, so they survive pytest-xdist.
"""

from __future__ import annotations

from collections import Counter
from typing import cast

import pytest

from tests.planted import TRIED
from tests.simulation.faults import Fault
from tests.simulation.many import ATTEMPTS

SIMULATED = "simulated"

_total: Counter[str] = Counter()
_tried: dict[str, int] = {}
"""Seeds by planted bug: the seeds that a search tried."""


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when == "call":
        for name, counts in report.user_properties:
            if name == SIMULATED:
                _total.update(cast("dict[str, int]", counts))
            elif name == TRIED:
                bug, attempts = cast("tuple[str, int]", counts)
                _tried[bug] = attempts


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if _tried:
        terminalreporter.write_line(f"planted bugs found by search: {len(_tried)} seeds={sum(_tried.values())}")
        for bug, attempts in sorted(_tried.items(), key=lambda item: -item[1]):
            terminalreporter.write_line(f"  {attempts:>8} {bug}")
    if not _total["schedules"]:
        return
    injected = {fault.value: _total[fault.value] for fault in Fault}
    terminalreporter.write_line(
        f"simulated: schedules={_total['schedules']} batches={_total['batches sent']}"
        f" polls={_total['polls']} epoch_bumps={_total['epoch bumps']}"
        f" neighbour_answers={_total['neighbour answers']} faults={sum(injected.values())}"
    )
    tried: dict[int, int] = {
        int(name.removeprefix(ATTEMPTS)): n for name, n in _total.items() if name.startswith(ATTEMPTS)
    }
    terminalreporter.write_line(f"  batches by times sent: {dict(sorted(tried.items()))}")
    for name, times in sorted(injected.items(), key=lambda item: -item[1]):
        terminalreporter.write_line(f"  {times:>8} {name}")
