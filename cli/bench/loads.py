"""Runs a row on a target once, and measures it.

Place: called by run.py for each row, target and round. Some rows are of Kafka's own load generator,
org.apache.kafka.tools.ProducerPerformance.
Invariant of Kafka's load generator: the generator is bounded by records, not by time, so trials before a row's first
run on a target find out how many records take the time of a run. The figures of trials are not used.
Its records have random values and no numbers: read back are how many there are, at consecutive offsets.
Source: org.apache.kafka.tools.ProducerPerformance of Kafka 4.1; heap as in bin/kafka-producer-perf-test.sh.
Invariant: clients are connected before the measured time begins, and topics are deleted after it.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from headrace.cli.bench.kafka_target import find_jars, find_java
from headrace.cli.bench.measurement import Measurement
from headrace.cli.bench.orders import (
    NOTHING,
    NUMBERS,
    OFFSETS,
    ConsumeAnswer,
    ConsumeOrder,
    ProduceAnswer,
    ProduceOrder,
)
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
from headrace.cli.bench.target_bench import READ_BACK_SECONDS, Driver, TargetBench, consumer, producer, refuse_failures
from headrace.cli.bench.window import Window, measure
from headrace.cli.children import die_with_parent
from headrace.storage.errors import UnavailableError

CLASS = "org.apache.kafka.tools.ProducerPerformance"
JVM = ("-Xmx512M",)
FIRST_RECORDS = 500
GROWTH_MAX = 20
"""Most growth from one trial to the next."""
LONG_ENOUGH = 0.5
"""The part of a run's time that the last trial takes at least, its start not counted."""
CONNECT_SECONDS = 0.4
"""About what the generator's start takes of the time that it reports."""
TOTALS = re.compile(
    r"^(?P<records>\d+) records sent, (?P<rate>[\d.]+) records/sec \([\d.]+ MB/sec\), "
    r"[\d.]+ ms avg latency, [\d.]+ ms max latency, "
    r"(?P<p50>\d+) ms 50th, \d+ ms 95th, (?P<p99>\d+) ms 99th, \d+ ms 99\.9th\.",
    re.MULTILINE,
)
"""The last line; the lines before have no percentiles."""


class PerformanceTotals(NamedTuple):
    """What the generator prints in the end."""

    records: int
    seconds: float
    p50_ms: float
    p99_ms: float


def parse_totals(printed: str) -> PerformanceTotals:
    """UnavailableError if the line with the totals is not there, or no record was sent."""
    match = TOTALS.search(printed)
    if match is None or float(match["rate"]) == 0:
        lines = [line for line in printed.splitlines() if line.strip()]
        raise UnavailableError(f"ProducerPerformance printed no totals: {lines[-1] if lines else 'nothing at all'}")
    records = int(match["records"])
    return PerformanceTotals(records, records / float(match["rate"]), float(match["p50"]), float(match["p99"]))


def next_records(totals: PerformanceTotals, seconds: float, records_max: int) -> int:
    """Return how many records take `seconds` after a trial, or how many the next trial has. Pure."""
    growth = min(seconds / max(totals.seconds - CONNECT_SECONDS, 0.001), GROWTH_MAX)
    return max(1, min(int(totals.records * growth), records_max))


def long_enough(totals: PerformanceTotals, seconds: float) -> bool:
    """Return whether a trial says how many records take `seconds`. Pure."""
    return totals.seconds - CONNECT_SECONDS >= seconds * LONG_ENOUGH


def performance_command(
    java: str, jars: Path, bootstrap: str, topic: str, records: int, load: JavaProduce
) -> list[str]:
    """The generator's command line. Pure."""
    client: Mapping[str, str] = {"bootstrap.servers": bootstrap} | load.client
    return [
        *(java, *JVM, "-cp", f"{jars}/*", CLASS, "--topic", topic, "--num-records", str(records)),
        *("--record-size", str(load.value_bytes), "--throughput", "-1", "--producer-props"),
        *(f"{name}={value}" for name, value in client.items()),
    ]


async def run_java(bench: TargetBench, row: Row, load: JavaProduce) -> Measurement:
    """One measurement; ConfigError without Java or jars."""
    if row.name not in bench.java_records:
        bench.java_records[row.name] = await _find_records(bench, load)
    records = bench.java_records[row.name]
    async with bench.topic(load.partitions) as topic:
        totals, window = await _send_by_java(bench, topic, records, load)
        extents = await bench.extents(topic)
        read = await bench.read_back(topic, load.partitions, records, OFFSETS)
        await bench.verify(topic, load.partitions, read, records, idempotent=True)
    measurement = bench.measurement(row, window, totals.records, load.value_bytes, totals.seconds)
    measurement.extents, measurement.read_back = extents, read.records
    measurement.produce_p50_ms, measurement.produce_p99_ms = totals.p50_ms, totals.p99_ms
    return measurement


async def _find_records(bench: TargetBench, load: JavaProduce) -> int:
    records = min(FIRST_RECORDS, bench.bounds.records)
    while True:
        async with bench.topic(load.partitions) as topic:
            totals, _ = await _send_by_java(bench, topic, records, load)
        records = next_records(totals, bench.bounds.seconds, bench.bounds.records)
        if long_enough(totals, bench.bounds.seconds) or records == totals.records:
            return records


async def _send_by_java(
    bench: TargetBench, topic: str, records: int, load: JavaProduce
) -> tuple[PerformanceTotals, Window]:
    command = performance_command(find_java(), find_jars(bench.jars), bench.target.bootstrap, topic, records, load)
    async with measure(bench.target, bench.clock) as window:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            preexec_fn=die_with_parent,
        )
        printed, _ = await process.communicate()
    totals = parse_totals(printed.decode(errors="replace"))
    if totals.records != records:
        raise UnavailableError(f"ProducerPerformance sent other records: wanted={records} sent={totals.records}")
    return totals, window


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
        answers = await _run_clients(bench, topic, load, replay)
        refuse_failures(answers.made)
        extents, sent = await bench.extents(topic), sum(answers.made.numbers)
        read = answers.read or await bench.read_back(topic, load.partitions, sent, NUMBERS)
        idempotent = load.client.get("enable.idempotence") == "true"
        await bench.verify(topic, load.partitions, read, sent, idempotent=idempotent)
    return SentAndRead(answers.made, read, answers.replayed, extents, answers.window)


def _checked(measurement: Measurement, sent: SentAndRead) -> Measurement:
    measurement.extents = sent.extents
    measurement.read_back = sent.read.records
    measurement.duplicates, measurement.disordered = sent.read.duplicates, sent.read.disordered
    return _with_latencies(measurement, sent.made, sent.read)


class ClientAnswers(NamedTuple):
    """What the clients of one run answered, and the measured time."""

    made: ProduceAnswer
    read: ConsumeAnswer | None
    """Of the consumer that followed the producer; None if the load is not end to end."""
    replayed: ConsumeAnswer | None
    """Of the consumer that read an older topic meanwhile; None if there was none."""
    window: Window


async def _run_clients(bench: TargetBench, topic: str, load: Produce, replay: ConsumeOrder | None) -> ClientAnswers:
    """Produce to the topic, and read it at the same time if the load is end to end. `replay`: what another consumer
    reads meanwhile, if any. All clients are connected before the measured time; consumers begin before the producer.
    """
    read: ConsumeAnswer | None = None
    replayed: ConsumeAnswer | None = None
    async with AsyncExitStack() as stack:
        replayer = await stack.enter_async_context(consumer(replay)) if replay else None
        sender = await stack.enter_async_context(producer(_produce_order(bench, topic, load)))
        follower: Driver[ConsumeAnswer] | None = None
        if load.end_to_end:
            follower = await stack.enter_async_context(consumer(_following_order(bench, topic, check=NUMBERS)))
        window = await stack.enter_async_context(measure(bench.target, bench.clock))
        for reader in filter(None, (follower, replayer)):
            reader.go()
        sender.go()
        made = await sender.answer()
        if replayer:
            replayed = await replayer.answer()
        if follower:
            follower.until(sum(made.numbers))
            read = await follower.answer()
    return ClientAnswers(made, read, replayed, window)


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
