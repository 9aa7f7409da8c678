"""Exactly-once applications that are killed while they work: each record counts once, and each count is written once.

The transactions are those of the applications' own clients: Java's for Kafka Streams and Connect, librdkafka for Quix
Streams.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.compat.apps.app import App, JavaApp, PythonApp
from tests.compat.apps.counting import ROUNDS, Words, all_records
from tests.compat.apps.test_connect import Worker
from tests.examples import EXAMPLES
from tests.house.needs import require
from tests.tools import KAFKA_APPS

pytestmark = [
    pytest.mark.requirement("X1"),
    pytest.mark.slow,
]
KILLS = 3


def _run_and_kill(words: Words, start: Callable[[], App], parse: Callable[[bytes], tuple[object, int]]) -> None:
    """Rounds of words; the application is killed once it counts some of them, while its transaction is open."""
    for life in range(KILLS + 1):
        before = _number_of_counts(words)
        with start() as app:
            for _ in range(ROUNDS // KILLS):
                words.produce()
            if life < KILLS:
                app.until(lambda before=before: _number_of_counts(words) > before, "this life counts something")
                words.produce()  # is being counted when it is killed
                app.kill()
            else:
                app.until(lambda: words.are_counted(parse), "every record is counted once")


def _number_of_counts(words: Words) -> int:
    return sum(map(len, words.counts().values()))


def _assert_each_count_once(words: Words, parse: Callable[[bytes], tuple[object, int]]) -> None:
    for key, values in words.counts().items():
        by_window: dict[object, list[int]] = {}
        for value in values:
            window, count = parse(value)
            by_window.setdefault(window, []).append(count)
        for window, counts in by_window.items():
            assert counts == list(range(1, len(counts) + 1)), (key, window)


def _skip_without(tool: str) -> None:
    require(tool)


@pytest.mark.parametrize("bootstrap", ["headrace", "kafka"], indirect=True)
def test_kafka_streams(bootstrap: str, tmp_path: Path) -> None:
    _skip_without("kafka-apps")
    program = EXAMPLES / "streams" / "StatefulCount.java"
    subprocess.run(["javac", "-d", str(tmp_path), "-cp", f"{KAFKA_APPS}/*", str(program)], check=True, timeout=300)
    words = Words(bootstrap, "streams-once")
    command: Sequence[str] = ["StatefulCount", bootstrap, str(tmp_path / "state"), "exactly_once_v2", "streams-once"]

    def parse(value: bytes) -> tuple[object, int]:
        return None, int(value)

    _run_and_kill(words, lambda: JavaApp([tmp_path, f"{KAFKA_APPS}/*"], command, tmp_path / "log"), parse)
    _assert_each_count_once(words, parse)


@pytest.mark.parametrize("bootstrap", ["headrace", "kafka"], indirect=True)
def test_quix_streams(bootstrap: str, tmp_path: Path) -> None:
    _skip_without("quixstreams")
    program = EXAMPLES / "quix" / "windows.py"
    words = Words(bootstrap, "quix-once")
    arguments = [bootstrap, tmp_path / "state", "exactly-once", "quix-once"]

    def parse(value: bytes) -> tuple[object, int]:
        window, count = value.split()
        return window, int(count)

    _run_and_kill(words, lambda: PythonApp("quixstreams", program, arguments, tmp_path / "log"), parse)
    _assert_each_count_once(words, parse)


@pytest.mark.parametrize("bootstrap", ["headrace", "kafka"], indirect=True)
def test_connect_source(bootstrap: str, tmp_path: Path) -> None:
    _skip_without("kafka-apps")
    names = {f"{kind}.storage.topic": f"once-{kind}" for kind in ("offset", "config", "status")}
    worker = Worker(bootstrap, tmp_path, {**names, "group.id": "once"})

    def lines() -> list[str]:
        return [value.decode() for _, value in all_records(bootstrap, "lines-once", 1)]

    for life in range(KILLS + 1):
        with worker.started() as app:
            app.until(worker.is_up, "connect is up")
            if life == 0:
                worker.connect("reader-once", "source", {"file": str(worker.source), "topic": "lines-once"})
            worker.write()
            app.until(lambda: len(lines()) >= len(worker.written), "the topic has every line")
            worker.write()  # is being read when it is killed
            if life < KILLS:
                app.kill()
            else:
                app.until(lambda: len(lines()) >= len(worker.written), "the topic has every line")
    assert lines() == worker.written
