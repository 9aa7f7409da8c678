"""The outcomes of the last test run, kept for `make requirements`.

A pytest plugin, loaded by tests/conftest.py. It writes tests' outcomes and their requirement numbers to
.test-results/last.json, together with the commit and whether the tree had changes.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / ".test-results" / "last.json"
PROPERTY = "requirement"
IS_PART_OF_A_TEST = "PYTEST_CURRENT_TEST" in os.environ
"""Whether a test started this run: it keeps no results."""
_WORST = {"passed": 0, "skipped": 1, "failed": 2}

_tests: dict[str, dict[str, Any]] = {}


def tree_state() -> dict[str, Any]:
    """The commit that is checked out, and whether files differ from it."""
    return {
        "commit": _git("rev-parse", "HEAD"),
        "is_dirty": bool(_git("status", "--porcelain", "--untracked-files=no")),
    }


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The numbers travel with each report: with xdist, only the workers know a test's marks."""
    for item in items:
        for mark in item.iter_markers("requirement"):
            item.user_properties += [(PROPERTY, str(number)) for number in mark.args]


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    found = _tests.setdefault(report.nodeid, {"outcome": "passed", "numbers": []})
    found["outcome"] = max(found["outcome"], report.outcome, key=lambda outcome: _WORST[outcome])
    found["numbers"] = sorted({value for name, value in report.user_properties if name == PROPERTY})


def pytest_sessionfinish(session: pytest.Session) -> None:
    if hasattr(session.config, "workerinput") or not _tests or IS_PART_OF_A_TEST:
        return
    arguments = [argument for argument in session.config.invocation_params.args if not argument.startswith("-")]
    result = {**tree_state(), "arguments": arguments, "tests": _tests}
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(result), encoding="utf-8")
