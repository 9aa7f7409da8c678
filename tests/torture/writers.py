"""The four idempotent clients as child processes, and what they reported.

A client that is not installed is left out, and why is said. Invariant: a writer that exits, or never
ends its report, fails the run: silence proves nothing.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from tests.tools import JAVA_CLASSES, JAVA_LIBRARIES, JAVA_LOG, KAFKAJS, why_missing
from tests.torture.checker import Name
from tests.torture.pacing import NOWHERE

HERE = Path(__file__).parent
DELIVERY_MS = 120_000
OVERTAKEN_SHARE_MAX = 0.01
"""How much of what a client heard may be answers of DUPLICATE_SEQUENCE_NUMBER: successes without an offset."""
_LOG = "-Dorg.slf4j.simpleLogger"
_LOG_FLAGS = (f"{_LOG}.showDateTime=true", f"{_LOG}.dateTimeFormat=HH:mm:ss.SSS")


def installed() -> tuple[dict[str, list[str]], dict[str, str]]:
    """Client -> the command that runs it; client -> why it cannot run here."""
    commands = {
        "confluent": [sys.executable, "-m", "tests.torture.confluent_writer"],
        "aiokafka": [sys.executable, "-m", "tests.torture.aiokafka_writer"],
    }
    missing = {}
    if reason := why_missing("kafka-clients"):
        missing["java"] = reason
    else:
        flags = ["-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", *_LOG_FLAGS]
        libraries = f"{JAVA_CLASSES}:{JAVA_LOG}/*:{JAVA_LIBRARIES}/*"
        commands["java"] = ["java", *flags, "-cp", libraries, "TortureWriter"]
    if reason := why_missing("kafkajs"):
        missing["kafkajs"] = reason
    else:
        commands["kafkajs"] = ["node", str(HERE / "kafkajs_writer.cjs")]
    return commands, missing


@dataclass
class Report:
    """What one writer said. `failed`: given up by the client, so stored or not."""

    producer: str
    sent: int = 0
    retries: int = -1
    acknowledged: dict[Name, int] = field(default_factory=dict)
    heard: dict[Name, float] = field(default_factory=dict)
    """When each was acknowledged, in seconds of time.monotonic()."""
    failed: dict[Name, str] = field(default_factory=dict)
    implied: int = 0
    """Records that the client took for stored because a later batch was: they have no offset."""
    started_over: list[str] = field(default_factory=list)
    """Why the client took a new producer epoch or id, each time, from the logs of librdkafka and Java."""
    trouble: str = ""
    """Why the report cannot be believed."""

    @property
    def placeless(self) -> int:
        """Records that were acknowledged without an offset."""
        return sum(offset == NOWHERE for offset in self.acknowledged.values())

    def why_placeless(self) -> str:
        """Return what is wrong with the number of records without an offset, "" if nothing: besides the implied ones
        only a few, of repeated batches that more than five later ones had overtaken (decision 37).
        """
        overtaken = self.placeless - self.implied
        if 0 <= overtaken <= OVERTAKEN_SHARE_MAX * len(self.acknowledged):
            return ""
        return f"{self.placeless} acknowledged without an offset, {self.implied} of them implied"

    def hear(self, line: str) -> None:
        """Take one line of the writer's output."""
        match line.split(maxsplit=3):
            case ["ack", partition, number, offset]:
                name = Name(self.producer, int(partition), int(number))
                self.acknowledged[name], self.heard[name] = int(offset), time.monotonic()
            case ["fail", partition, number, reason]:
                self.failed[Name(self.producer, int(partition), int(number))] = reason
            case ["over", *_]:
                self.started_over.append(line.removeprefix("over "))
            case ["implied", count]:
                self.implied = int(count)
            case ["end", sent, retries]:
                self.sent, self.retries = int(sent), int(retries)
            case _:
                self.trouble = f"unexpected line: {line!r}"


class Writer:
    """One client's process. `report` grows while it runs; `answered` once a record is acknowledged, or at its end."""

    def __init__(
        self,
        producer: str,
        command: list[str],
        log: Path,
        environment: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.report = Report(producer)
        self._environment = environment
        self.answered = asyncio.Event()
        self._command = command
        self._log = log
        self._process: asyncio.subprocess.Process | None = None

    async def start(self, bootstrap: str, topic: str, partitions: int, rate: int, delivery_ms: int) -> None:
        """Begin to write."""
        environment: Mapping[str, str] = os.environ | {
            "KAFKAJS": str(KAFKAJS),
            "KAFKAJS_NO_PARTITIONER_WARNING": "1",
            **self._environment,
        }
        arguments = [bootstrap, topic, str(partitions), str(rate), str(delivery_ms)]
        with self._log.open("wb") as log:
            self._process = await asyncio.create_subprocess_exec(
                *self._command, *arguments, env=environment,
                stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=log,
            )  # fmt: skip
        self._listening = asyncio.create_task(self._listen())

    async def finish(self, timeout_s: float) -> Report:
        """No more records; wait until everything sent has its answer. The report says so if that fails."""
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            await asyncio.wait_for(asyncio.shield(self._listening), timeout_s)
        except TimeoutError:
            self.report.trouble = f"no end after {timeout_s:.0f} s"
            self._process.kill()
            await self._listening
        status = await self._process.wait()
        if status and not self.report.trouble:
            self.report.trouble = f"ended with status {status}: {self._log.read_text(errors='replace')[-500:]}"
        open_records = self.report.sent - len(self.report.acknowledged) - len(self.report.failed)
        if open_records and not self.report.trouble:
            self.report.trouble = f"{open_records} of {self.report.sent} records never got an answer"
        self.report.trouble = self.report.trouble or self.report.why_placeless()
        return self.report

    async def stop(self) -> None:
        """Kill it, if it still runs: the run has failed otherwise."""
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
            await self._process.wait()

    async def _listen(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            self.report.hear(line.decode().strip())
            if self.report.acknowledged:
                self.answered.set()
        self.answered.set()
