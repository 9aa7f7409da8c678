"""A pytest plugin: which tests run on one worker after each other, and in which order.

Place: replaces the scheduler of pytest-xdist by one that knows the units below.
A unit is a file, or a folder with one cluster or one Spark for all its tests. Long units come first, so that all
workers end together; units that need a tool come after the others, so that it can be installed meanwhile, and those
that need Helm, which takes minutes to build, come last.
Invariant: the order is the same in each worker, because it depends only on the tests and on cost.json.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]

from load.tools.deploy import DEPLOY_TOOLS
from tests.house.expected import file_of, seconds_of_test
from tests.house.needs import tools_of

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
FAST_SECONDS_MAX = 0.3
"""A slower test is not `fast`."""


def unit_of(test: str) -> str:
    """Return the unit of a test by its node id."""
    file = file_of(test)
    return next((folder for folder in SHARED_FOLDERS if file.startswith(folder)), file)


class UnitScheduling(LoadScopeScheduling):  # type: ignore[misc]
    """Gives a worker one unit after another."""

    def _split_scope(self, nodeid: str) -> str:
        return unit_of(nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> UnitScheduling:
    """Replace the scheduler of `--dist loadgroup`."""
    return UnitScheduling(config, log)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sort the units, and mark the tests that are fast."""
    seconds: dict[str, float] = {}
    stages: dict[str, int] = {}
    for item in items:
        unit = unit_of(item.nodeid)
        if not item.get_closest_marker("slow"):
            seconds[unit] = seconds.get(unit, 0.0) + seconds_of_test(item.nodeid)
            stages[unit] = max(stages.get(unit, 0), _stage(item))
        if _is_fast(item):
            item.add_marker("fast")
    items.sort(key=_place(stages, seconds))


def _place(stages: dict[str, int], seconds: dict[str, float]) -> Callable[[pytest.Item], tuple[int, float, str]]:
    def place(item: pytest.Item) -> tuple[int, float, str]:
        unit = unit_of(item.nodeid)
        return stages.get(unit, 0), -seconds.get(unit, 0.0), unit

    return place


def _stage(item: pytest.Item) -> int:
    tools = tools_of(item)
    if any(tool in DEPLOY_TOOLS for tool in tools):
        return 2
    return int(bool(tools) or not NEED_VERSITYGW.isdisjoint(_fixtures(item)))


def _is_fast(item: pytest.Item) -> bool:
    folders = file_of(item.nodeid).split("/")[:-1]
    if not WITH_PROCESSES.isdisjoint(folders) or tools_of(item) or not SERVERS.isdisjoint(_fixtures(item)):
        return False
    return seconds_of_test(item.nodeid) <= FAST_SECONDS_MAX


def _fixtures(item: pytest.Item) -> list[str]:
    return getattr(item, "fixturenames", [])
