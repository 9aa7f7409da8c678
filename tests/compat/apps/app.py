"""An application as a child process, and what tests ask the cluster that it uses."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType

from tests.kafka_clients import KafkaClients
from tests.tools.python_apps import python_of

SECONDS_MAX = 180.0
"""Most seconds for anything that is waited for, far beyond what it takes."""


class App:
    """Started on entry; ended by SIGTERM on exit, and killed if it does not end."""

    def __init__(self, command: Sequence[Path | str], log: Path, environment: Mapping[str, str] | None = None) -> None:
        """`environment`: variables in addition to ours."""
        self._command, self._log = command, log
        self._environment = os.environ | (environment or {})

    def __enter__(self) -> Self:
        with self._log.open("a") as output:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, env=self._environment
            )
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._process.terminate()
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if error is not None:
            error.add_note(f"the end of {self._log}:\n{self._log.read_text(errors='replace')[-4000:]}")

    def kill(self) -> None:
        """SIGKILL, as a crash."""
        self._process.kill()
        self._process.wait()

    def until(self, is_true: Callable[[], object], what: str) -> None:
        """Wait for it; fails early if the application ended."""
        deadline = time.monotonic() + SECONDS_MAX
        while not is_true():
            assert self._process.poll() is None, f"the application ended before {what}"
            assert time.monotonic() < deadline, f"not in {SECONDS_MAX:.0f} s: {what}"
            time.sleep(0.2)


class JavaApp(App):
    """A main class with its arguments. `flags`: of the JVM."""

    def __init__(
        self, classpath: Sequence[Path | str], command: Sequence[str], log: Path, flags: Sequence[str] = ()
    ) -> None:
        super().__init__(["java", "-Xmx512M", *flags, "-cp", ":".join(map(str, classpath)), *command], log)


class PythonApp(App):
    """A program of examples/, run by the Python of a tool's venv, without our packages."""

    def __init__(self, tool: str, program: Path, arguments: Sequence[Path | str], log: Path) -> None:
        super().__init__([python_of(tool), program, *arguments], log, {"PYTHONPATH": "", "PYTHONUNBUFFERED": "1"})


def kept_records(bootstrap: str, topic: str) -> tuple[int, int]:
    """(records that a reader gets from the start, records that were ever appended), over all partitions."""
    clients = KafkaClients(bootstrap)
    with clients.consumer({}) as consumer:
        partitions = list(consumer.list_topics(topic, timeout=30).topics[topic].partitions)
        appended = sum(consumer.get_watermark_offsets(TopicPartition(topic, p), 30)[1] for p in partitions)
    return len(clients.read_to_end(topic, len(partitions))), appended


def was_cleaned(bootstrap: str, topic: str, share: float = 0.5) -> bool:
    """Return whether at least this share of all records is gone."""
    kept, appended = kept_records(bootstrap, topic)
    return appended > 0 and kept <= (1 - share) * appended


def is_compacted(bootstrap: str, topic: str) -> bool:
    """Return whether its cleanup.policy is compact."""
    resource = ConfigResource(ResourceType.TOPIC, topic)
    admin = AdminClient({"bootstrap.servers": bootstrap})  # a variable: without one, it ends before its answer
    described = admin.describe_configs([resource])[resource].result(30)
    return bool(described["cleanup.policy"].value == "compact")
