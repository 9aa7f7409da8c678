"""Kafka Streams with group.protocol=streams while agents, links, Postgres and its own instances suffer faults.

A producer writes lines, the application counts their words, exactly once: by way of a repartition topic, with state, a
changelog and standbys. Checked (X16): the counts are those of the acknowledged lines, and stay so once all instances
stopped. A task with two owners, a commit of a former owner or a restored state that lacks something would change them.

Place: behind `make torture-streams` and tests/faults/test_streams_torture.py.
"""

from __future__ import annotations

import asyncio
import os
import random
import threading
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NamedTuple

import confluent_kafka
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from headrace.cli.main import main as headrace
from headrace.storage.errors import HeadraceError
from tests.compat.apps.streams_run import NAMES, OUT, PARTITIONS, QUICK, Program, written_table
from tests.streams_torture.instances import Instances
from tests.tools import KAFKA_APPS
from tests.torture.cluster import TortureCluster
from tests.torture.faults import schedule
from tests.torture.tracebacks import find_tracebacks
from tests.waiting import until_so

APPLICATION = "words-torture"
THREADS = 2
INSTANCE_GAP_SECONDS = 6.0
QUIET_SECONDS = 300.0


class StreamsPlan(NamedTuple):
    """`rate`: lines per second. `instances`: processes at a time. `gap_s`: between two faults, in the mean."""

    seed: int
    seconds: float
    rate: int = 50
    instances: int = 2
    gap_s: float = 3.0


@dataclass
class LineWriter:
    """Writes lines at a rate until `is_over` is set. `counts` has the words of acknowledged lines."""

    bootstrap: str
    rng: random.Random
    rate: int
    is_over: threading.Event = field(default_factory=threading.Event)
    counts: Counter[str] = field(default_factory=Counter)
    lines: int = 0
    failures: list[str] = field(default_factory=list)

    def run(self) -> None:
        """Blocks until all lines are acknowledged."""
        producer = confluent_kafka.Producer(
            {"bootstrap.servers": self.bootstrap, "enable.idempotence": True, "log_level": 0, "linger.ms": 20}
        )
        began, sent = time.monotonic(), 0
        while not self.is_over.is_set():
            while sent < (time.monotonic() - began) * self.rate:
                words = self.rng.choices(NAMES, k=2)
                producer.produce(
                    f"{APPLICATION}-left", " ".join(words), words[0], on_delivery=partial(self._told, words)
                )
                sent += 1
            producer.poll(0.02)
        assert producer.flush(QUIET_SECONDS) == 0

    def _told(self, words: list[str], error: object, _: object) -> None:
        if error is not None:
            self.failures.append(str(error))
            return
        self.lines += 1
        self.counts.update(words)

    def table(self) -> dict[str, str]:
        """Return what the application has to have written in the end."""
        return {word: str(count) for word, count in self.counts.items()}


@dataclass
class StreamsOutcome:
    """What happened, and what is wrong."""

    lines: int
    injected: Counter[str]
    started: int
    ended: int
    settled_seconds: float
    offences: list[str]


async def torture(plan: StreamsPlan, directory: Path) -> StreamsOutcome:
    """Run it in an empty directory, to its end."""
    os.chmod(directory, 0o711)
    rng, offences = random.Random(plan.seed), list[str]()
    program = await asyncio.to_thread(Program.compiled, directory / "classes", KAFKA_APPS)
    async with TortureCluster(directory, plan.seed, settings=dict(QUICK)) as cluster:
        await asyncio.to_thread(_prepare, cluster.bootstrap)
        writer = LineWriter(cluster.bootstrap, random.Random(plan.seed), plan.rate)
        words = [cluster.bootstrap, APPLICATION, "exactly_once_v2", str(THREADS)]
        with Instances(program, words, plan.instances, directory, rng) as instances:
            instances.start()
            writing = asyncio.create_task(asyncio.to_thread(writer.run))
            try:
                await until_so(lambda: _table(cluster.bootstrap), "nothing was counted")
                over = asyncio.Event()
                async with asyncio.TaskGroup() as group:
                    group.create_task(_strike(instances, cluster, rng, over))
                    await cluster.run(schedule(plan.seed, plan.seconds, gap_s=plan.gap_s))
                    over.set()
            finally:
                writer.is_over.set()
            await writing
            instances.start()
            began = time.monotonic()
            offences += await _settle(cluster.bootstrap, writer, instances)
            settled_seconds = time.monotonic() - began
            await asyncio.to_thread(instances.stop)
            if not offences and (found := await _table(cluster.bootstrap)) != writer.table():
                offences.append(f"the counts changed at the end: {_differences(found, writer.table())}")
        injected = Counter(cluster.injected)
    offences += [f"not acknowledged: {each}" for each in dict.fromkeys(writer.failures)]
    offences += await asyncio.to_thread(lambda: find_tracebacks(sorted(directory.glob("agent-*.log"))))
    return StreamsOutcome(writer.lines, injected, instances.started, instances.ended, settled_seconds, offences)


def _prepare(bootstrap: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    topics = [NewTopic(f"{APPLICATION}-left", PARTITIONS), NewTopic(f"{APPLICATION}-out", OUT)]
    for created in admin.create_topics(topics).values():
        created.result(60)
    standbys = ["configs", "set", "streams.num.standby.replicas=1", "--group", APPLICATION, "-b", bootstrap]
    assert headrace(standbys) == 0


async def _strike(instances: Instances, cluster: TortureCluster, rng: random.Random, over: asyncio.Event) -> None:
    while not await _is_set_within(over, rng.expovariate(1 / INSTANCE_GAP_SECONDS)):
        cluster.injected[await asyncio.to_thread(instances.strike, asyncio.get_running_loop())] += 1
        await _is_set_within(over, rng.uniform(0, 3))
        instances.start()


async def _is_set_within(event: asyncio.Event, seconds: float) -> bool:
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
    return event.is_set()


async def _table(bootstrap: str) -> dict[str, str]:
    return await asyncio.to_thread(written_table, bootstrap, APPLICATION)


async def _settle(bootstrap: str, writer: LineWriter, instances: Instances) -> list[str]:
    """Wait until everything is counted. Return what differs."""
    end, left = time.monotonic() + QUIET_SECONDS, "nothing was read"
    while time.monotonic() < end:
        try:
            found = await _table(bootstrap)
        except (HeadraceError, KafkaException, OSError) as error:
            left = str(error)
            continue
        if found == writer.table():
            return []
        left = _differences(found, writer.table())
        instances.start()
        await asyncio.sleep(1.0)
    return [f"not the counts after {QUIET_SECONDS:g} s: {left}"]


def _differences(found: dict[str, str], expected: dict[str, str]) -> str:
    keys = sorted(found.keys() | expected.keys())
    return ", ".join(
        f"{key}: {found.get(key)} of {expected.get(key)}" for key in keys if found.get(key) != expected.get(key)
    )
