"""A pytest plugin: tests that need a tool wait until it is installed, or are skipped by its name.

`@pytest.mark.needs("kafkajs", "kafka")` names tools of tests/tools. The run's plan (tests/tools/plan.py) says which of
them it has; pytest by itself, without `make test`, decides when it starts, and installs nothing. Invariant: no test
looks for a tool while tests are collected, so each process of a run collects the same tests.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import pytest

from tests.tools import why_missing, write_plan
from tests.tools.plan import VARIABLE, ToolPlan

_own_folder: list[Path] = []


def pytest_configure(config: pytest.Config) -> None:
    """Decide on the tools, before the workers start and inherit the decision."""
    if ToolPlan.current() is None:
        folder = Path(tempfile.mkdtemp(prefix="headrace-plan-"))
        _own_folder.append(folder)
        os.environ[VARIABLE] = str(write_plan(folder / "plan").folder)


def pytest_unconfigure() -> None:
    """Forget a decision that was only for this run."""
    for folder in _own_folder:
        shutil.rmtree(folder, ignore_errors=True)
        del os.environ[VARIABLE]
    _own_folder.clear()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    for name in tools_of(item):
        require(name)


def tools_of(item: pytest.Item) -> list[str]:
    """Return the names of the tools that the test's marks name."""
    return [name for mark in item.iter_markers("needs") for name in mark.args]


def require(name: str) -> None:
    """Wait for a tool, or skip the test that runs."""
    if reason := why_missing(name):
        pytest.skip(reason)
