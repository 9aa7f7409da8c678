"""docs/operate/DOCTOR.md: each state has a test (tests/data/doctor_states.toml), and each test of a state a row."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "operate" / "DOCTOR.md").read_text(encoding="utf-8")
STATES: dict[str, list[str]] = tomllib.loads(
    (ROOT / "tests" / "data" / "doctor_states.toml").read_text(encoding="utf-8")
)["states"]
TABLES = re.compile(r"^\| state \| the doctor says \|\n\| --- \| --- \|\n((?:\|.*\n)+)", re.MULTILINE)
TEST = re.compile(r"^(?:async )?def (test_\w+)", re.MULTILINE)
HERE = Path(__file__).parent
OF_STATES = [*HERE.parent.rglob("test_states_of_*.py"), HERE / "test_broken_set_ups.py"]
ELSEWHERE = [ROOT / "tests" / "metastore" / "test_secure_connections.py"]
OF_THE_PROGRAM = {
    "test_a_check_ends_at_its_deadline_and_is_not_known",
    "test_the_client_of_s3_is_loaded_on_another_thread",
}
"""Tests of how the doctor works, in no state of a cluster."""


def names_in(paths: list[Path]) -> set[str]:
    return {name for path in paths for name in TEST.findall(path.read_text(encoding="utf-8"))}


def test_each_state_of_the_page_has_a_test_and_each_test_of_a_state_a_row() -> None:
    rows = [row.split(" | ")[0].removeprefix("| ") for table in TABLES.findall(PAGE) for row in table.splitlines()]
    assert rows == list(STATES)
    named = {name for names in STATES.values() for name in names}
    assert named - names_in([*OF_STATES, *ELSEWHERE]) == set(), "rows of tests that are not there"
    assert names_in(OF_STATES) - named == OF_THE_PROGRAM, "tests of states without a row"


def test_each_line_that_the_page_names_is_one_of_the_doctors() -> None:
    sources = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "cli" / "doctor").glob("*.py"))
    named = set(re.findall(r"`(postgres|bucket|cluster) ([\w ]+)`", PAGE))
    assert len(named) > 30
    assert [check for _, check in sorted(named) if f'"{check}"' not in sources] == []
