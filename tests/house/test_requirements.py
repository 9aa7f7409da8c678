"""Each mark names a promise, and the report believes only results of this very tree."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.house.last_run import ROOT
from tests.house.requirements_report import load_rows, report, why_refused
from tests.house.skip_table import REASONS, problems

STATE: dict[str, Any] = {"commit": "a" * 40, "is_dirty": False}
MARK = re.compile(r"mark\.requirement\(([^)]*)\)")


def test_every_mark_names_a_promise() -> None:
    known = {mark for _, marks in load_rows().values() for mark in marks}
    for path in sorted(Path(ROOT / "tests").rglob("test_*.py")):
        for arguments in MARK.findall(path.read_text(encoding="utf-8")):
            assert set(re.findall(r'"([^"]+)"', arguments)) <= known, path


def test_a_row_is_passed_by_passed_tests_of_all_its_parts() -> None:
    tests = {
        "a": {"outcome": "passed", "numbers": ["W1", "W2"]},
        "b": {"outcome": "skipped", "numbers": ["W2"]},
        **{f"r{n}": {"outcome": "passed", "numbers": [f"R4.{n}"]} for n in range(1, 5)},
    }
    lines = {line.split()[0]: line for line in report(tests)}
    assert "passed" in lines["W1"]
    assert "open" in lines["W2"]
    assert "open" in lines["R4"], "one of its five parts has no test"
    assert report(tests)[-1].startswith("1 of ")


@pytest.mark.parametrize(
    ("changes", "now", "reason"),
    [
        ({}, {}, None),
        ({"commit": "b" * 40}, {}, "another commit"),
        ({"is_dirty": True}, {}, "differs"),
        ({}, {"is_dirty": True}, "differs"),
        ({"arguments": ["tests/cli"]}, {}, "a part"),
    ],
)
def test_results_of_another_tree_are_refused(changes: dict[str, Any], now: dict[str, Any], reason: str | None) -> None:
    refused = why_refused({**STATE, "arguments": [], **changes}, {**STATE, **now})
    assert refused is None if reason is None else reason in str(refused)


def test_a_run_fails_for_a_skip_without_a_good_reason() -> None:
    assert problems(Counter({"not offered by moto": 3})) == []
    assert "not a reason" in problems(Counter({"does not work today": 1}))[0]
    assert "although it is there" in problems(Counter({"needs python3.11": 2}))[0]
    assert all(reason.enable for reason in REASONS.values())
