"""Quix Streams: counts in windows lose their local state, and are restored from a changelog that was cleaned."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.compat.apps.app import PythonApp, is_compacted, was_cleaned
from tests.compat.apps.counting import ROUNDS, Words
from tests.examples import EXAMPLES

pytestmark = [
    pytest.mark.requirement("L1", "L2", "L3"),
    pytest.mark.slow,
    pytest.mark.needs("quixstreams"),
]
PROGRAM = EXAMPLES / "quix" / "windows.py"
CHANGELOG = "changelog__quix--quix-words--tumbling_window_2000_count"


def _window_and_count(value: bytes) -> tuple[object, int]:
    window, count = value.split()
    return window, int(count)


@pytest.mark.parametrize("bootstrap", ["headrace", "kafka"], indirect=True)
def test_lost_windows_are_restored_from_their_cleaned_changelog(bootstrap: str, tmp_path: Path) -> None:
    words, state = Words(bootstrap, "quix"), tmp_path / "state"
    for _ in range(2):
        with PythonApp("quixstreams", PROGRAM, [bootstrap, state, "at-least-once", "quix"], tmp_path / "log") as app:
            for _ in range(ROUNDS):
                words.produce()
                app.until(lambda: words.are_counted(_window_and_count), "every record is counted once")
            app.until(lambda: was_cleaned(bootstrap, CHANGELOG), "the changelog was cleaned")
        shutil.rmtree(state)
    assert is_compacted(bootstrap, CHANGELOG)
