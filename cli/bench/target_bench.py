"""What every run on a target shares: topics, driver processes, reading back, the figures of a measured time.

Place: under loads.py; the driver processes are produce_driver.py and consume_driver.py.
Invariant of a driver: a driver ends with the bench: its standard input closes.
Invariant: what was produced is read back from the start and compared with what was acknowledged: nothing is lost,
and idempotent producers' records are there once and in order. A run that fails this gives no figures: CorruptError.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Generic, TypeVar

import msgspec

from headrace.cli.bench.measurement import GIGA, MEGA, Measurement
from headrace.cli.bench.orders import ConsumeAnswer, ConsumeOrder, ProduceAnswer, ProduceOrder
from headrace.cli.bench.rows import Row
from headrace.cli.bench.targets import MeasuredTarget
from headrace.cli.bench.topic_admin import count_records, create_topic, delete_topic
from headrace.cli.bench.window import Window
from headrace.cli.children import die_with_parent
from headrace.metastore.postgres.reports.reports import count_topic_extents
from headrace.storage.clock import Clock
from headrace.storage.errors import CorruptError, UnavailableError

Answer = TypeVar("Answer", ProduceAnswer, ConsumeAnswer)
LINE_BYTES_MAX = 1024 * 1024
END_SECONDS = 5


class Driver(Generic[Answer]):
    """Use it with `async with`: on entry it is connected and waits for `go`."""

    def __init__(self, module: str, order: msgspec.Struct, answer: type[Answer]) -> None:
        self._command = [sys.executable, "-m", f"headrace.cli.bench.{module}", msgspec.json.encode(order).decode()]
        self._answer: type[Answer] = answer

    async def __aenter__(self) -> Driver[Answer]:
        pipe = asyncio.subprocess.PIPE
        self._process = await asyncio.create_subprocess_exec(
            *self._command, stdin=pipe, stdout=pipe, stderr=pipe, preexec_fn=die_with_parent, limit=LINE_BYTES_MAX
        )
        self._complaints = asyncio.create_task(self._read_complaints())
        if await self._line() != "ready":
            raise await self._failure()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            async with asyncio.timeout(END_SECONDS):
                await self._process.wait()
        except TimeoutError:
            self._process.kill()
            await self._process.wait()
        await self._complaints

    def go(self) -> None:
        """Begin."""
        self._tell("go")

    def until(self, records: int) -> None:
        """End once so many records are read."""
        self._tell(f"until {records}")

    async def answer(self) -> Answer:
        """Return what it measured; UnavailableError with its last line on stderr if it failed."""
        line = await self._line()
        if not line.startswith("{"):
            raise await self._failure()
        answer: Answer = msgspec.json.decode(line, type=self._answer)
        return answer

    def _tell(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n".encode())

    async def _line(self) -> str:
        assert self._process.stdout is not None
        return (await self._process.stdout.readline()).decode().strip()

    async def _read_complaints(self) -> list[str]:
        assert self._process.stderr is not None
        return [line.decode(errors="replace").rstrip() async for line in self._process.stderr]

    async def _failure(self) -> UnavailableError:
        lines = await self._complaints
        return UnavailableError(f"a client process failed: {lines[-1] if lines else 'without a message'}")


def producer(order: ProduceOrder) -> Driver[ProduceAnswer]:
    """A process with one librdkafka producer."""
    return Driver("produce_driver", order, ProduceAnswer)


def consumer(order: ConsumeOrder) -> Driver[ConsumeAnswer]:
    """A process with one librdkafka consumer."""
    return Driver("consume_driver", order, ConsumeAnswer)


READ_BACK_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class Bounds:
    """Bounds of one run: whichever comes first. `preload_bytes` are produced before rows that read."""

    seconds: float
    records: int
    preload_bytes: int


class TargetBench:
    """One target, with what later runs use again."""

    def __init__(self, target: MeasuredTarget, bounds: Bounds, clock: Clock, jars: Path | None) -> None:
        self.target = target
        self.bounds = bounds
        self.clock = clock
        self.jars = jars
        """Apache Kafka's, for its load generator."""
        self.history: tuple[str, ProduceAnswer] | None = None
        """The topic that rows of consumers share, and what is in it."""
        self.java_records: dict[str, int] = {}
        """How many records Kafka's load generator sends in about `bounds.seconds`, by row."""
        self._topics = 0

    async def create_topic(self, partitions: int) -> str:
        """A new topic; its name."""
        self._topics += 1
        name = f"bench-{self.clock.wall_ms()}-{self._topics}"
        factor = self.target.replication_factor
        await asyncio.to_thread(create_topic, self.target.bootstrap, name, partitions, factor)
        return name

    @asynccontextmanager
    async def topic(self, partitions: int) -> AsyncIterator[str]:
        """A new topic, deleted at the end if the body succeeds."""
        name = await self.create_topic(partitions)
        yield name
        await self.delete_topic(name)

    async def delete_topic(self, name: str) -> None:
        """Delete the topic with its records."""
        await asyncio.to_thread(delete_topic, self.target.bootstrap, name)

    async def extents(self, topic: str) -> int | None:
        """Return how many the topic has now; None for what is no Headrace."""
        if self.target.metastore_url is None:
            return None
        return await asyncio.to_thread(count_topic_extents, self.target.metastore_url, topic)

    async def read_back(self, topic: str, partitions: int, expected: int, check: str) -> ConsumeAnswer:
        """Read the topic from the start."""
        order = ConsumeOrder(
            bootstrap=self.target.bootstrap,
            topic=topic,
            partitions=partitions,
            seconds=READ_BACK_SECONDS,
            until=expected,
            check=check,
        )
        async with consumer(order) as reader:
            reader.go()
            return await reader.answer()

    async def verify(
        self, topic: str, partitions: int, read: ConsumeAnswer, expected: int, *, idempotent: bool
    ) -> None:
        """CorruptError unless `read`, and what the topic has, are the `expected` records that were acknowledged."""
        refuse_losses(read, expected, idempotent=idempotent)
        stored = await asyncio.to_thread(count_records, self.target.bootstrap, topic, partitions)
        if stored != expected and (idempotent or stored < expected):
            raise CorruptError(f"other records than were acknowledged: acknowledged={expected} stored={stored}")

    def measurement(self, row: Row, window: Window, records: int, value_bytes: int, seconds: float) -> Measurement:
        """The figures that all rows have; UnavailableError if there was nothing to measure."""
        if not records:
            raise UnavailableError("no record was handled within the time: give it more --seconds")
        size, counts = records * value_bytes, window.counts
        per_gb = {kind: spent / (size / GIGA) for kind, spent in window.cpu_seconds.items()}
        return Measurement(
            row=row.name,
            target=self.target.name,
            round=0,
            records=records,
            seconds=seconds,
            mb_per_s=size / MEGA / seconds,
            records_per_s=records / seconds,
            cpu_seconds=window.cpu_seconds,
            cpu_s_per_gb={kind: per_gb[kind] for kind in per_gb if kind not in self.target.rig_roots},
            rig_cpu_s_per_gb={kind: per_gb[kind] for kind in per_gb if kind in self.target.rig_roots},
            peak_mb={kind: peak / MEGA for kind, peak in window.peak_bytes.items()},
            puts=counts.puts if counts else None,
            gets=counts.gets if counts else None,
            flushes=counts.flushes if counts else None,
            commits=counts.commits if counts else None,
        )


def refuse_failures(made: ProduceAnswer) -> None:
    """UnavailableError if records were refused: the figures would be of something else."""
    if made.failed:
        raise UnavailableError(f"records were not acknowledged: count={made.failed} first={made.first_error}")


def refuse_losses(read: ConsumeAnswer, expected: int, *, idempotent: bool) -> None:
    """CorruptError if a record is missing, or if an idempotent producer's is there twice or out of order. Pure."""
    lost = expected - (read.records - read.duplicates)
    if lost > 0 or read.missing:
        raise CorruptError(f"records are lost: acknowledged={expected} lost={lost} missing={read.missing}")
    if idempotent and (read.duplicates or read.disordered):
        raise CorruptError(f"read back: duplicates={read.duplicates} out_of_order={read.disordered}")
