"""A pytest plugin: in a fresh clone, each worker of a run compiles a share of the test modules, and reads the others.

Place: before the collection of all tests, in the workers of pytest-xdist. Each of them imports every test module in the
same order. Where nothing is compiled yet, they would all compile each module, at the same time: pytest rewrites
assertions for that, which takes as long as the rest of the collection.
Invariant: it decides nothing. A module that cannot be imported here fails when it is collected.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Generator
from contextlib import suppress
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def share(worker: str, workers: int) -> list[str]:
    """Return the test modules that the worker `gw<number>` imports first."""
    files = sorted((ROOT / "tests").rglob("test_*.py"))
    return [".".join(file.relative_to(ROOT).with_suffix("").parts) for file in files[int(worker[2:]) :: workers]]


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """Import this worker's share."""
    worker = os.environ.get("PYTEST_XDIST_WORKER")
    if worker and session.config.args == session.config.getini("testpaths"):
        for module in share(worker, int(os.environ["PYTEST_XDIST_WORKER_COUNT"])):
            with suppress(Exception, pytest.skip.Exception):
                importlib.import_module(module)
    return (yield)
