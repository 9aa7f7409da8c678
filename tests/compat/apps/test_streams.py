"""Kafka Streams: a count by key loses its local state, and restores it from a changelog that was cleaned."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.compat.apps.app import JavaApp, is_compacted, was_cleaned
from tests.compat.apps.counting import ROUNDS, Words
from tests.examples import EXAMPLES
from tests.tools import KAFKA_APPS

pytestmark = [
    pytest.mark.requirement("L1", "L2", "L3"),
    pytest.mark.slow,
    pytest.mark.needs("kafka-apps"),
]
PROGRAM = EXAMPLES / "streams" / "StatefulCount.java"
CHANGELOG = "counting-streams-counts-changelog"


@pytest.mark.parametrize("bootstrap", ["headrace", "kafka"], indirect=True)
def test_a_lost_store_is_restored_from_its_cleaned_changelog(bootstrap: str, tmp_path: Path) -> None:
    subprocess.run(["javac", "-d", str(tmp_path), "-cp", f"{KAFKA_APPS}/*", str(PROGRAM)], check=True, timeout=300)
    words, state = Words(bootstrap, "streams"), tmp_path / "state"
    command = ["StatefulCount", bootstrap, str(state), "at_least_once", "streams"]
    for _ in range(2):
        with JavaApp([tmp_path, f"{KAFKA_APPS}/*"], command, tmp_path / "log") as app:
            for _ in range(ROUNDS):
                words.produce()
                app.until(lambda: words.are_counted(lambda value: (None, int(value))), "every record is counted once")
            app.until(lambda: was_cleaned(bootstrap, CHANGELOG), "the changelog was cleaned")
        shutil.rmtree(state)
    assert is_compacted(bootstrap, CHANGELOG)
