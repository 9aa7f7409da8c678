"""Faust: a table in memory, which each start reads from a changelog that was cleaned."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.compat.apps.app import PythonApp, is_compacted, was_cleaned
from tests.compat.apps.counting import ROUNDS, Words
from tests.examples import EXAMPLES

pytestmark = [
    pytest.mark.requirement("L1", "L2", "L3"),
    pytest.mark.slow,
    pytest.mark.needs("faust-streaming"),
]
PROGRAM = EXAMPLES / "faust" / "table.py"
CHANGELOG = "faust-counts-changelog"


@pytest.mark.parametrize("bootstrap", ["headrace", "kafka"], indirect=True)
def test_a_table_is_restored_from_its_cleaned_changelog(bootstrap: str, tmp_path: Path) -> None:
    words = Words(bootstrap, "faust")
    for _ in range(2):
        with PythonApp("faust-streaming", PROGRAM, [bootstrap, tmp_path], tmp_path / "log") as app:
            for _ in range(ROUNDS):
                words.produce()
                app.until(lambda: words.are_counted(lambda value: (None, int(value))), "every record is counted once")
            app.until(lambda: was_cleaned(bootstrap, CHANGELOG), "the changelog was cleaned")
            app.until(lambda: words.are_committed("faust"), "every record is committed")
    assert is_compacted(bootstrap, CHANGELOG)
