"""At the end of a test run: what was skipped, why, and the command that would enable it.

A pytest plugin, loaded by tests/conftest.py. A test may be skipped only for a reason of REASONS. The run fails
when a test was skipped although its tool is there, or for a reason that is not in the list.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from tests.ipv6 import has_ipv6, has_namespaces
from tests.tools import every_tool
from tests.tools.plan import ToolPlan
from tests.tools.tool import Tool

PYENV = Path.home() / ".pyenv" / "versions"


@dataclass(frozen=True, slots=True)
class SkipReason:
    """`is_present` says whether what is needed is there after all; None where that cannot be asked."""

    enable: str
    is_present: Callable[[], bool] | None = None


def _enable(tool: Tool) -> str:
    """Return what a person does to have the tool."""
    missing = ", ".join(tool.missing_programs)
    return f"install {missing}, then {tool.enable}" if missing and tool.install else tool.enable


def _has(tool: str) -> bool:
    """Say whether the run has the tool, as it was decided when the run began."""
    plan = ToolPlan.current()
    return plan is not None and plan.has(tool)


def _has_python(version: str) -> bool:
    return shutil.which(f"python{version}") is not None or any(PYENV.glob(f"{version}.*/bin/python"))


REASONS: dict[str, SkipReason] = {
    **{f"needs {tool.name}": SkipReason(_enable(tool), partial(_has, tool.name)) for tool in every_tool().values()},
    **{
        f"needs python{version}": SkipReason(
            f"install Python {version} with venv",
            lambda version=version: _has_python(version),  # type: ignore[misc]
        )
        for version in ("3.11", "3.12", "3.13")
    },
    "needs mkfs.ext4 and a loop device": SkipReason("apt-get install e2fsprogs, and allow loop devices"),
    "needs systemd-analyze": SkipReason("apt-get install systemd", lambda: shutil.which("systemd-analyze") is not None),
    "needs IPv6": SkipReason("allow IPv6, so that the machine has the address ::1", has_ipv6),
    "needs network namespaces": SkipReason("apt-get install iproute2 util-linux, and run as root", has_namespaces),
    "needs root": SkipReason("run the tests as root", lambda: os.geteuid() == 0),
    "needs another account": SkipReason("check out to a folder that the account nobody can read, with its Python"),
    "needs HEADRACE_TEST_SEED": SkipReason(
        "HEADRACE_TEST_SEED=n pytest -s ...", lambda: "HEADRACE_TEST_SEED" in os.environ
    ),
    "needs HEADRACE_TEST_IMAGE_TREE": SkipReason(
        "make image, then mount it (docs/operate/KUBERNETES.md)", lambda: "HEADRACE_TEST_IMAGE_TREE" in os.environ
    ),
    "needs the commit of the previous release": SkipReason("run the tests in a checkout with its history"),
    "needs PySpark 4.2": SkipReason(
        "pip install 'pyspark>=4.2'",
        lambda: importlib.util.find_spec("pyspark.sql.streaming.datasource") is not None,
    ),
    "needs a Postgres with TLS": SkipReason("install Postgres 15 of the distribution"),
    "needs a package index": SkipReason("make a package index reachable for pip"),
    "not offered by moto": SkipReason("the same test runs against versitygw"),
}

_skipped: Counter[str] = Counter()


def reason_of(report: pytest.TestReport | pytest.CollectReport) -> str:
    """The key of REASONS, or the whole reason where it is not one of them."""
    text = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    text = text.removeprefix("Skipped: ")
    return max((known for known in REASONS if text == known or text.startswith(f"{known} ")), key=len, default=text)


def problems(skipped: Counter[str]) -> list[str]:
    """Return why a run with these skips fails."""
    found = [f"not a reason of tests/house/skip_table.py: {reason!r}" for reason in skipped if reason not in REASONS]
    for reason in skipped:
        known = REASONS.get(reason)
        if known is not None and known.is_present is not None and known.is_present():
            found.append(f"skipped although it is there: {reason} ({skipped[reason]} tests)")
    return found


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.skipped and not hasattr(report, "wasxfail"):
        _skipped[reason_of(report)] += 1


def pytest_collectreport(report: pytest.CollectReport) -> None:
    if report.skipped:
        _skipped[reason_of(report)] += 1


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    is_worker = hasattr(session.config, "workerinput")
    if not is_worker and problems(_skipped) and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if not _skipped:
        return
    terminalreporter.section("skipped")
    for reason, count in sorted(_skipped.items()):
        enable = REASONS[reason].enable if reason in REASONS else "-"
        terminalreporter.write_line(f"{count:5}  {reason:28} enable: {enable}")
    for problem in problems(_skipped):
        terminalreporter.write_line(f"error: {problem}", red=True)
