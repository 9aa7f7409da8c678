"""One run of a row on a target: topic, clients, measured time, reading back.

Place: called by run.py for each row, target and round.
Invariant: what was produced is read back from the start and checked: nothing lost; from idempotent producers each
record once and in order. A run that fails this gives no figures: CorruptError.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass

from headrace.cli.bench.drivers import consumer, producer
from headrace.cli.bench.measurement import GIGA, MEGA, Measurement
from headrace.cli.bench.orders import NOTHING, NUMBERS, ConsumeAnswer, ConsumeOrder, ProduceAnswer, ProduceOrder
from headrace.cli.bench.rows import IDEMPOTENT, MEGABYTE_BATCHES, PARTITIONS, CatchUp, Consume, Produce, Row
from headrace.cli.bench.targets import MeasuredTarget
from headrace.cli.bench.topic_admin import create_topic, delete_topic
from headrace.cli.bench.window import Window, measure
from headrace.metastore.postgres.reports.topic_extents import count_topic_extents
from headrace.storage.clock import Clock
from headrace.storage.errors import CorruptError, UnavailableError

READ_BACK_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class Bounds:
    """Of one run: whichever comes first. `preload_bytes` are produced before rows that read."""

    seconds: float
    records: int
    preload_bytes: int


class TargetBench:
    """Runs rows on one target, one at a time."""

    def __init__(self, target: MeasuredTarget, bounds: Bounds, clock: Clock) -> None:
        self.target = target
        self._bounds = bounds
        self._clock = clock
        self._topics = 0
        self._history: tuple[str, ProduceAnswer] | None = None
        """The topic that rows of consumers share."""

    async def run(self, row: Row, round_number: int) -> Measurement:
        """One measurement; CorruptError if records are missing, UnavailableError if clients or target fail."""
        match row.load:
            case Produce():
                measurement = await self._produce(row, row.load)
            case Consume():
                measurement = await self._consume(row, row.load)
            case CatchUp():
                measurement = await self._catch_up(row, row.load)
        measurement.round = round_number
        return measurement

    async def _produce(self, row: Row, load: Produce) -> Measurement:
        topic = await self._create_topic(load.partitions)
        order = self._produce_order(topic, load)
        read: ConsumeAnswer | None = None
        async with AsyncExitStack() as stack:
            sender = await stack.enter_async_context(producer(order))
            reader = None
            if load.end_to_end:
                reader = await stack.enter_async_context(consumer(self._consume_order(topic, load, promptly=True)))
            window = await stack.enter_async_context(measure(self.target, self._clock))
            if reader:
                reader.go()
            sender.go()
            made = await sender.answer()
            if reader:
                reader.until(sum(made.numbers))
                read = await reader.answer()
        _refuse_failures(made)
        extents = await self._extents(topic)
        if read is None:
            read = await self._read_back(topic, load, sum(made.numbers))
        _refuse_losses(read, made.numbers, idempotent=load.client.get("enable.idempotence") == "true")
        await asyncio.to_thread(delete_topic, self.target.bootstrap, topic)
        measurement = self._measurement(row, window, made.records, load.value_bytes, made.seconds)
        measurement.extents = extents
        measurement.produce_p50_ms, measurement.produce_p99_ms = made.p50_ms, made.p99_ms
        measurement.end_to_end_p50_ms, measurement.end_to_end_p99_ms = read.p50_ms, read.p99_ms
        measurement.read_back = read.records
        measurement.duplicates, measurement.disordered = read.duplicates, read.disordered
        return measurement

    async def _consume(self, row: Row, load: Consume) -> Measurement:
        if self._history is None:
            self._history = await self._preload(load.value_bytes)
        topic, made = self._history
        total = sum(made.numbers)
        order = ConsumeOrder(
            bootstrap=self.target.bootstrap,
            topic=topic,
            partitions=PARTITIONS,
            seconds=self._bounds.seconds,
            until=total,
        )
        async with AsyncExitStack() as stack:
            entering = (stack.enter_async_context(consumer(order)) for _ in range(load.readers))
            readers = [await reader for reader in entering]
            window = await stack.enter_async_context(measure(self.target, self._clock))
            for reader in readers:
                reader.go()
            answers = await asyncio.gather(*(reader.answer() for reader in readers))
        seconds = max(answer.seconds for answer in answers)
        return self._measurement(row, window, sum(answer.records for answer in answers), load.value_bytes, seconds)

    async def _catch_up(self, row: Row, load: CatchUp) -> Measurement:
        topic, before = await self._preload(load.value_bytes)
        paced = Produce(load.value_bytes, IDEMPOTENT | {"linger.ms": "5"}, rate=load.rate)
        order = self._produce_order(topic, paced, before.numbers)
        following = self._consume_order(topic, paced, promptly=True, from_end=True)
        behind = ConsumeOrder(
            bootstrap=self.target.bootstrap,
            topic=topic,
            partitions=PARTITIONS,
            seconds=self._bounds.seconds,
            until=sum(before.numbers),
        )
        async with AsyncExitStack() as stack:
            follower = await stack.enter_async_context(consumer(following))
            sender = await stack.enter_async_context(producer(order))
            reader = await stack.enter_async_context(consumer(behind))
            window = await stack.enter_async_context(measure(self.target, self._clock))
            for driver in (follower, sender, reader):
                driver.go()
            made, read = await asyncio.gather(sender.answer(), reader.answer())
            follower.until(0)
            followed = await follower.answer()
        _refuse_failures(made)
        checked = await self._read_back(topic, paced, sum(made.numbers))
        _refuse_losses(checked, made.numbers, idempotent=True)
        await asyncio.to_thread(delete_topic, self.target.bootstrap, topic)
        measurement = self._measurement(row, window, read.records, load.value_bytes, read.seconds)
        measurement.produce_p50_ms, measurement.produce_p99_ms = made.p50_ms, made.p99_ms
        measurement.end_to_end_p50_ms, measurement.end_to_end_p99_ms = followed.p50_ms, followed.p99_ms
        measurement.read_back = checked.records
        return measurement

    async def _preload(self, value_bytes: int) -> tuple[str, ProduceAnswer]:
        """A topic with history, read back once."""
        load = Produce(value_bytes, IDEMPOTENT | MEGABYTE_BATCHES)
        topic = await self._create_topic(load.partitions)
        order = ProduceOrder(
            bootstrap=self.target.bootstrap,
            topic=topic,
            partitions=load.partitions,
            value_bytes=value_bytes,
            seconds=READ_BACK_SECONDS,
            records=max(1, self._bounds.preload_bytes // value_bytes),
            client=load.client,
        )
        async with producer(order) as sender:
            sender.go()
            made = await sender.answer()
        _refuse_failures(made)
        _refuse_losses(await self._read_back(topic, load, sum(made.numbers)), made.numbers, idempotent=True)
        return topic, made

    async def _read_back(self, topic: str, load: Produce, expected: int) -> ConsumeAnswer:
        order = ConsumeOrder(
            bootstrap=self.target.bootstrap,
            topic=topic,
            partitions=load.partitions,
            seconds=READ_BACK_SECONDS,
            until=expected,
            check=NUMBERS,
        )
        async with consumer(order) as reader:
            reader.go()
            return await reader.answer()

    def _produce_order(self, topic: str, load: Produce, first_numbers: Sequence[int] = ()) -> ProduceOrder:
        return ProduceOrder(
            bootstrap=self.target.bootstrap,
            topic=topic,
            partitions=load.partitions,
            value_bytes=load.value_bytes,
            seconds=self._bounds.seconds,
            records=self._bounds.records,
            client=load.client,
            rate=load.rate,
            one_at_a_time=load.one_at_a_time,
            first_numbers=list(first_numbers),
        )

    def _consume_order(self, topic: str, load: Produce, *, promptly: bool, from_end: bool = False) -> ConsumeOrder:
        return ConsumeOrder(
            bootstrap=self.target.bootstrap,
            topic=topic,
            partitions=load.partitions,
            seconds=READ_BACK_SECONDS,
            until=None,
            check=NOTHING if from_end else NUMBERS,
            from_end=from_end,
            promptly=promptly,
        )

    async def _create_topic(self, partitions: int) -> str:
        self._topics += 1
        name = f"bench-{self._topics}-{self._clock.wall_ms()}"
        await asyncio.to_thread(create_topic, self.target.bootstrap, name, partitions)
        return name

    async def _extents(self, topic: str) -> int | None:
        if self.target.metastore_url is None:
            return None
        return await asyncio.to_thread(count_topic_extents, self.target.metastore_url, topic)

    def _measurement(self, row: Row, window: Window, records: int, value_bytes: int, seconds: float) -> Measurement:
        if not records:
            raise UnavailableError("no record was handled within the time: give it more --seconds")
        size, counts = records * value_bytes, window.counts
        return Measurement(
            row=row.name,
            target=self.target.name,
            round=0,
            records=records,
            seconds=seconds,
            mb_per_s=size / MEGA / seconds,
            records_per_s=records / seconds,
            cpu_seconds=window.cpu_seconds,
            cpu_s_per_gb={name: spent / (size / GIGA) for name, spent in window.cpu_seconds.items()},
            peak_mb={name: peak / MEGA for name, peak in window.peak_bytes.items()},
            puts=counts.puts if counts else None,
            gets=counts.gets if counts else None,
            flushes=counts.flushes if counts else None,
            commits=counts.commits if counts else None,
        )


def _refuse_failures(made: ProduceAnswer) -> None:
    if made.failed:
        raise UnavailableError(f"records were not acknowledged: count={made.failed} first={made.first_error}")


def _refuse_losses(read: ConsumeAnswer, numbers: Sequence[int], *, idempotent: bool) -> None:
    """`numbers`: how many records of each partition were acknowledged."""
    lost = sum(numbers) - (read.records - read.duplicates)
    if lost or read.missing:
        raise CorruptError(f"read back other records than were acknowledged: lost={lost} missing={read.missing}")
    if idempotent and (read.duplicates or read.disordered):
        raise CorruptError(f"read back: duplicates={read.duplicates} out_of_order={read.disordered}")
