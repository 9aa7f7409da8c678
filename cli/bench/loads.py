"""One run of a row on a target: topic, clients, measured time, reading back.

Place: called by run.py for each row, target and round; java_load.py has the rows of Kafka's load generator.
Invariant: clients are connected before the measured time begins, and topics are deleted after it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import NamedTuple

from msgspec.structs import replace

from headrace.cli.bench.drivers import Driver, consumer, producer
from headrace.cli.bench.java_load import run_java
from headrace.cli.bench.measurement import Measurement
from headrace.cli.bench.orders import NOTHING, NUMBERS, ConsumeAnswer, ConsumeOrder, ProduceAnswer, ProduceOrder
from headrace.cli.bench.rows import (
    IDEMPOTENT,
    MEGABYTE_BATCHES,
    PARTITIONS,
    BesideReplay,
    CatchUp,
    Consume,
    JavaProduce,
    Produce,
    Row,
)
from headrace.cli.bench.target_bench import READ_BACK_SECONDS, TargetBench, refuse_failures
from headrace.cli.bench.window import Window, measure


async def run_row(bench: TargetBench, row: Row, round_number: int) -> Measurement:
    """One measurement; CorruptError if records are missing, UnavailableError if clients or target fail."""
    match row.load:
        case Produce():
            measurement = await _produce(bench, row, row.load)
        case JavaProduce():
            measurement = await run_java(bench, row, row.load)
        case Consume():
            measurement = await _consume(bench, row, row.load)
        case CatchUp():
            measurement = await _catch_up(bench, row, row.load)
        case BesideReplay():
            measurement = await _beside_replay(bench, row, row.load)
    measurement.round = round_number
    return measurement


async def _produce(bench: TargetBench, row: Row, load: Produce) -> Measurement:
    sent = await _send(bench, load)
    measurement = bench.measurement(row, sent.window, sent.made.records, load.value_bytes, sent.made.seconds)
    return _checked(measurement, sent)


async def _beside_replay(bench: TargetBench, row: Row, load: BesideReplay) -> Measurement:
    """The reader's throughput, and the producer's latencies."""
    value_bytes = load.produce.value_bytes
    replay = replace(_reading_order(bench, *await _history(bench, value_bytes)), again=True)
    sent = await _send(bench, load.produce, replay)
    assert sent.replayed is not None
    measurement = bench.measurement(row, sent.window, sent.replayed.records, value_bytes, sent.replayed.seconds)
    return _checked(measurement, sent)


class SentAndRead(NamedTuple):
    """What was produced and read back, and what another reader read at the same time."""

    made: ProduceAnswer
    read: ConsumeAnswer
    replayed: ConsumeAnswer | None
    extents: int | None
    window: Window


async def _send(bench: TargetBench, load: Produce, replay: ConsumeOrder | None = None) -> SentAndRead:
    """Produce to a new topic and read that back; CorruptError if it is not the same."""
    async with bench.topic(load.partitions) as topic:
        made, read, replayed, window = await _run_clients(bench, topic, load, replay)
        refuse_failures(made)
        extents = await bench.extents(topic)
        if read is None:
            read = await bench.read_back(topic, load.partitions, sum(made.numbers), NUMBERS)
        idempotent = load.client.get("enable.idempotence") == "true"
        await bench.verify(topic, load.partitions, read, sum(made.numbers), idempotent=idempotent)
    return SentAndRead(made, read, replayed, extents, window)


def _checked(measurement: Measurement, sent: SentAndRead) -> Measurement:
    measurement.extents = sent.extents
    measurement.read_back = sent.read.records
    measurement.duplicates, measurement.disordered = sent.read.duplicates, sent.read.disordered
    return _with_latencies(measurement, sent.made, sent.read)


async def _run_clients(
    bench: TargetBench, topic: str, load: Produce, replay: ConsumeOrder | None
) -> tuple[ProduceAnswer, ConsumeAnswer | None, ConsumeAnswer | None, Window]:
    read: ConsumeAnswer | None = None
    replayed: ConsumeAnswer | None = None
    async with AsyncExitStack() as stack:
        replayer = await stack.enter_async_context(consumer(replay)) if replay else None
        sender = await stack.enter_async_context(producer(_produce_order(bench, topic, load)))
        reader: Driver[ConsumeAnswer] | None = None
        if load.end_to_end:
            reader = await stack.enter_async_context(consumer(_following_order(bench, topic, check=NUMBERS)))
        window = await stack.enter_async_context(measure(bench.target, bench.clock))
        for other in filter(None, (reader, replayer)):
            other.go()
        sender.go()
        made = await sender.answer()
        if replayer:
            replayed = await replayer.answer()
        if reader:
            reader.until(sum(made.numbers))
            read = await reader.answer()
    return made, read, replayed, window


async def _consume(bench: TargetBench, row: Row, load: Consume) -> Measurement:
    order = _reading_order(bench, *await _history(bench, load.value_bytes))
    async with AsyncExitStack() as stack:
        readers = [await stack.enter_async_context(consumer(order)) for _ in range(load.readers)]
        window = await stack.enter_async_context(measure(bench.target, bench.clock))
        for reader in readers:
            reader.go()
        answers = await asyncio.gather(*(reader.answer() for reader in readers))
    seconds = max(answer.seconds for answer in answers)
    return bench.measurement(row, window, sum(answer.records for answer in answers), load.value_bytes, seconds)


async def _catch_up(bench: TargetBench, row: Row, load: CatchUp) -> Measurement:
    topic, before = await _preload(bench, load.value_bytes)
    paced = Produce(load.value_bytes, IDEMPOTENT | {"linger.ms": "5"}, rate=load.rate)
    async with AsyncExitStack() as stack:
        follower = await stack.enter_async_context(consumer(_following_order(bench, topic, from_end=True)))
        sender = await stack.enter_async_context(producer(_produce_order(bench, topic, paced, before.numbers)))
        reader = await stack.enter_async_context(consumer(_reading_order(bench, topic, before)))
        window = await stack.enter_async_context(measure(bench.target, bench.clock))
        follower.go()
        sender.go()
        reader.go()
        made, read = await asyncio.gather(sender.answer(), reader.answer())
        follower.until(0)
        followed = await follower.answer()
    refuse_failures(made)
    checked = await bench.read_back(topic, paced.partitions, sum(made.numbers), NUMBERS)
    await bench.verify(topic, paced.partitions, checked, sum(made.numbers), idempotent=True)
    await bench.delete_topic(topic)
    measurement = bench.measurement(row, window, read.records, load.value_bytes, read.seconds)
    measurement.read_back = checked.records
    return _with_latencies(measurement, made, followed)


async def _history(bench: TargetBench, value_bytes: int) -> tuple[str, ProduceAnswer]:
    """The topic that all rows of readers share."""
    if bench.history is None:
        bench.history = await _preload(bench, value_bytes)
    return bench.history


async def _preload(bench: TargetBench, value_bytes: int) -> tuple[str, ProduceAnswer]:
    """A topic with history, read back once."""
    load = Produce(value_bytes, IDEMPOTENT | MEGABYTE_BATCHES)
    topic = await bench.create_topic(load.partitions)
    order = ProduceOrder(
        bootstrap=bench.target.bootstrap,
        topic=topic,
        partitions=load.partitions,
        value_bytes=value_bytes,
        seconds=READ_BACK_SECONDS,
        records=max(1, bench.bounds.preload_bytes // value_bytes),
        client=load.client,
    )
    async with producer(order) as sender:
        sender.go()
        made = await sender.answer()
    refuse_failures(made)
    read = await bench.read_back(topic, load.partitions, sum(made.numbers), NUMBERS)
    await bench.verify(topic, load.partitions, read, sum(made.numbers), idempotent=True)
    return topic, made


def _produce_order(bench: TargetBench, topic: str, load: Produce, first_numbers: Sequence[int] = ()) -> ProduceOrder:
    return ProduceOrder(
        bootstrap=bench.target.bootstrap,
        topic=topic,
        partitions=load.partitions,
        value_bytes=load.value_bytes,
        seconds=bench.bounds.seconds,
        records=bench.bounds.records,
        client=load.client,
        rate=load.rate,
        one_at_a_time=load.one_at_a_time,
        first_numbers=list(first_numbers),
        producers=load.producers,
    )


def _reading_order(bench: TargetBench, topic: str, made: ProduceAnswer) -> ConsumeOrder:
    """Many records at once, from the start to what was there."""
    return ConsumeOrder(
        bootstrap=bench.target.bootstrap,
        topic=topic,
        partitions=PARTITIONS,
        seconds=bench.bounds.seconds,
        until=sum(made.numbers),
    )


def _following_order(bench: TargetBench, topic: str, *, from_end: bool = False, check: str = NOTHING) -> ConsumeOrder:
    """Each record as it arrives, until the bench says how many there are."""
    return ConsumeOrder(
        bootstrap=bench.target.bootstrap,
        topic=topic,
        partitions=PARTITIONS,
        seconds=bench.bounds.seconds + READ_BACK_SECONDS,
        until=None,
        check=check,
        from_end=from_end,
        promptly=True,
    )


def _with_latencies(measurement: Measurement, made: ProduceAnswer, read: ConsumeAnswer) -> Measurement:
    measurement.produce_p50_ms, measurement.produce_p99_ms = made.p50_ms, made.p99_ms
    measurement.end_to_end_p50_ms, measurement.end_to_end_p99_ms = read.p50_ms, read.p99_ms
    return measurement
