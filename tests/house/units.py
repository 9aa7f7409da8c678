"""A pytest plugin: which tests run on one worker after each other, and in which order.

Place: replaces the scheduler of pytest-xdist by one that knows the units below.
A unit is a file, or a folder with one cluster or one Spark for all its tests. Long units come first, so that all
workers end together. Units that wait for processes most of the time are spread over the run among those that compute,
so that the cores have work all the time. Units that need a tool which is installed during the run come after the
others, and those that need Helm, which takes minutes to build, come last.
Invariant: the order is the same in each worker, because it depends only on the tests, cost.json and the run's plan.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]
from xdist.workermanage import WorkerController  # type: ignore[import-untyped]

from tests.house.expected import file_of, seconds_of_test
from tests.house.needs import tools_of
from tests.tools.deploy import DEPLOY_TOOLS
from tests.tools.plan import ToolPlan

SHARED_FOLDERS = (
    "tests/compat/apps/", "tests/compat/", "tests/cli/console/", "tests/cli/running/", "tests/spark/", "tests/deploy/",
)  # fmt: skip
"""Each is one unit."""
NEED_VERSITYGW = frozenset({"real_s3_url", "s3_url", "https_server"})
"""Fixtures of tests/fixtures_s3.py."""
SERVERS = NEED_VERSITYGW | {"postgres_server", "moto_url"}
"""Fixtures that start a server."""
WITH_PROCESSES = frozenset((
    "cli", "client", "compat", "deploy", "faults", "kubernetes", "load", "package", "pauses", "simulation", "spark",
))  # fmt: skip
"""Folders that `make test FAST=1` leaves out: they start processes, or take long."""
WAITING = frozenset(("cli", "client", "compat", "deploy", "faults", "spark"))
"""Folders with tests that wait for leases, intervals and starts more than they compute."""
FAST_SECONDS_MAX = 0.3
"""A slower test is not `fast`."""


def unit_of(test: str) -> str:
    """Return the unit of a test by its node id."""
    file = file_of(test)
    return next((folder for folder in SHARED_FOLDERS if file.startswith(folder)), file)


class UnitScheduling(LoadScopeScheduling):  # type: ignore[misc]
    """Gives a worker one unit after another, and what a worker that crashed had left to the others."""

    def _split_scope(self, nodeid: str) -> str:
        return unit_of(nodeid)

    def remove_node(self, node: WorkerController) -> str | None:
        """Return the test that ended the worker. Only what is left goes to others: a worker that is given a unit
        without a test to run asks for no other.
        """
        left = {unit: tests for unit, tests in self.assigned_work.pop(node).items() if not all(tests.values())}
        if not left:
            return None
        tests = next(iter(left.values()))
        crashed: str = next(test for test, is_done in tests.items() if not is_done)
        tests[crashed] = True
        self.workqueue.update((unit, tests) for unit, tests in left.items() if not all(tests.values()))
        for other in self.assigned_work:
            self._reschedule(other)
        return crashed

    def _reschedule(self, node: WorkerController) -> None:
        """A worker begins its last test only when it knows that no other follows."""
        super()._reschedule(node)
        while not node.shutting_down and self._pending_of(self.assigned_work[node]) < 2:
            super()._reschedule(node)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> UnitScheduling:
    """Replace the scheduler of `--dist loadgroup`."""
    return UnitScheduling(config, log)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Sort the units, and mark the tests that are fast."""
    with_slow = "not slow" not in config.getoption("markexpr")
    plan = ToolPlan.current()
    promised = plan.promised() if plan else frozenset()
    seconds: dict[str, float] = {}
    stages: dict[str, int] = {}
    for item in items:
        unit = unit_of(item.nodeid)
        if with_slow or not item.get_closest_marker("slow"):
            seconds[unit] = seconds.get(unit, 0.0) + seconds_of_test(item.nodeid)
            stages[unit] = max(stages.get(unit, 0), _stage(item, promised))
        if _is_fast(item):
            item.add_marker("fast")
    places: dict[str, tuple[int, float]] = {}
    for stage in sorted(set(stages.values())):
        among = {unit: seconds[unit] for unit in stages if stages[unit] == stage}
        places |= {unit: (stage, share) for unit, share in mixed(among).items()}
    items.sort(key=lambda item: (places.get(unit_of(item.nodeid), (0, 1.0)), unit_of(item.nodeid)))


def mixed(seconds: Mapping[str, float]) -> dict[str, float]:
    """Return the place of each unit, from 0 to 1: both kinds begin with their longest and end at the same time."""
    waiting = {unit for unit in seconds if not WAITING.isdisjoint(unit.split("/"))}
    return _shares(waiting, seconds) | _shares(seconds.keys() - waiting, seconds)


def _shares(units: Iterable[str], seconds: Mapping[str, float]) -> dict[str, float]:
    """Return the share of these units' time that is before each of them, the longest first."""
    ordered = sorted(units, key=lambda unit: (-seconds[unit], unit))
    whole = sum(seconds[unit] for unit in ordered) or 1.0
    before, shares = 0.0, {}
    for unit in ordered:
        shares[unit] = before / whole
        before += seconds[unit]
    return shares


def _stage(item: pytest.Item, promised: frozenset[str]) -> int:
    tools = {*tools_of(item), *(() if NEED_VERSITYGW.isdisjoint(_fixtures(item)) else ("versitygw",))} & promised
    return 2 if tools & DEPLOY_TOOLS.keys() else int(bool(tools))


def _is_fast(item: pytest.Item) -> bool:
    folders = file_of(item.nodeid).split("/")[:-1]
    if not WITH_PROCESSES.isdisjoint(folders) or tools_of(item) or not SERVERS.isdisjoint(_fixtures(item)):
        return False
    return seconds_of_test(item.nodeid) <= FAST_SECONDS_MAX


def _fixtures(item: pytest.Item) -> list[str]:
    return getattr(item, "fixturenames", [])
