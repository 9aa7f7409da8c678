"""One run of the transactional copy: cluster up, a writer and copiers on, faults in, faults over, everything judged.

Place: under tests/transactional_copy/__main__.py and tests/faults/test_transactional_copy.py. The cluster, the faults
of its parts and what happens to Postgres are those of tests/torture.
Invariant: leaving ends every process that was started. Offences are found, not raised.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

import psycopg
from confluent_kafka.admin import AdminClient, NewTopic

from headrace.compactor.lost import SETTLE_MS
from headrace.metastore.keys import split_partition_key
from tests.tools import JAVA_LIBRARIES
from tests.torture.checker import Read, TortureVerdict, check
from tests.torture.cluster import LOW_LATENCY, TortureCluster
from tests.torture.commands import LostReport
from tests.torture.drills import LOSES
from tests.torture.faults import schedule
from tests.torture.reading import ends_of
from tests.torture.settled import unsettled
from tests.torture.tracebacks import find_tracebacks
from tests.torture.writers import Report, Writer, installed
from tests.transactional_copy.copier import INPUT, OUTPUT
from tests.transactional_copy.copiers import (
    CopierFault,
    CopierReport,
    SupervisedCopier,
    copier_commands,
    copier_schedule,
)
from tests.transactional_copy.reading import LiveReader, open_transactions, positions_of, read_log
from tests.transactional_copy.verdict import CopyEvidence, CopyTransaction, CopyVerdict, check_copy

PROGRAM = Path(__file__).parent / "TransactionalCopier.java"
GROUP = "copiers"
PARTITIONS = 4
FAULTS = ("reset", "mute", "kill", "pause")
"""Faults of tests/torture/faults.py: replies that are lost, and agents that are."""
DRILLS = ("postgres_kill", "promote_sync")
SETTINGS = {
    **LOW_LATENCY,
    "controller.lease.ms": 2_000,
    "group.min.session.timeout.ms": 1_000,
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 500,
}
FIRST_COPY_SECONDS = 120.0
COPY_SECONDS = 180.0
"""After the last fault, what the copiers get to copy the rest."""
DELIVERY_MS = 900_000
"""Longer than any run: a record that times out makes librdkafka begin another epoch and send twice what is in flight
(docs/understand/TORTURE.md, "Behaviour of clients"). What copies and transactions do is this run's question."""
SETTLE_SECONDS = 60.0
"""What the cluster gets to end the transactions of copiers that are gone."""
EVERY_SECONDS = 10.0


@dataclass(frozen=True)
class CopyPlan:
    """What to do. `rate`: records per second into the input."""

    seed: int
    seconds: float
    rate: int = 150
    kinds: Sequence[str] = FAULTS
    drills: Sequence[str] = DRILLS
    with_java: bool = True
    directory: Path | None = None
    """An empty directory that keeps logs and data; None for one that goes with the run."""
    store: str = "s3"
    """One of STORES (tests/torture/servers.py)."""


@dataclass
class CopyOutcome:
    """What happened."""

    plan: CopyPlan
    written: Report
    copiers: list[CopierReport] = field(default_factory=list)
    injected: Counter[str] = field(default_factory=Counter)
    incarnations: int = 0
    input: TortureVerdict = field(default_factory=TortureVerdict)
    output: CopyVerdict = field(default_factory=CopyVerdict)
    listed: LostReport = field(default_factory=LostReport)
    source: int = 0
    committed: int = 0
    uncommitted: int = 0
    seen: int = 0
    catch_up_s: float = 0.0
    """Seconds from the last fault until the group's offsets reached the end."""
    unsettled: list[str] = field(default_factory=list)
    """Transactions that stay open, a last stable offset below the end, tracebacks in the logs of agents, what drills,
    readers and the audit found."""

    @property
    def transactions(self) -> dict[str, CopyTransaction]:
        """Transactions by tag, of all copiers."""
        return {tag: each for report in self.copiers for tag, each in report.transactions.items()}

    @property
    def offences(self) -> list[str]:
        """Empty when the run is clean."""
        troubles = [f"{report.name}: {report.trouble}" for report in self.copiers if report.trouble]
        if self.written.trouble:
            troubles.append(f"writer: {self.written.trouble}")
        return [*self.input.offences, *self.output.offences, *self.unsettled, *troubles]


async def copy_under_faults(plan: CopyPlan, say: Callable[[str], None] = print) -> CopyOutcome:
    """Run it; logs are in `plan.directory`, if it is set. `say` gets the progress."""
    with tempfile.TemporaryDirectory(prefix="headrace-copy-", ignore_cleanup_errors=True) as place:
        directory = plan.directory or Path(place)
        os.chmod(directory, 0o711)  # started by root, Postgres runs as another user and must get through
        classes = await asyncio.to_thread(_compile, directory / "classes") if plan.with_java else None
        writer = Writer("confluent", installed()[0]["confluent"], directory / "writer.log")
        made = TortureCluster(directory, plan.seed, settings=SETTINGS, store=plan.store)
        async with made as cluster, AsyncExitStack() as leaving:
            await asyncio.to_thread(_create_topics, cluster.bootstrap)
            leaving.push_async_callback(writer.stop)
            copiers = [
                SupervisedCopier(command, name, cluster.bootstrap, GROUP, plan.seed, directory / f"{name}.log")
                for name, command in copier_commands(classes).items()
            ]
            for copier in copiers:
                leaving.push_async_callback(copier.kill)
            outcome = CopyOutcome(plan, writer.report, [copier.report for copier in copiers])
            telling = asyncio.create_task(_tell_for_ever(outcome, cluster, say))
            leaving.callback(telling.cancel)
            await _run(outcome, cluster, writer, copiers, say)
        outcome.unsettled += find_tracebacks(sorted(directory.glob("agent-*.log")))
        return outcome


async def _run(
    outcome: CopyOutcome,
    cluster: TortureCluster,
    writer: Writer,
    copiers: Sequence[SupervisedCopier],
    say: Callable[[str], None],
) -> None:
    plan, bootstrap = outcome.plan, cluster.bootstrap
    await writer.start(bootstrap, INPUT, PARTITIONS, plan.rate, DELIVERY_MS)
    await asyncio.gather(*(copier.start() for copier in copiers))
    live = LiveReader(bootstrap, OUTPUT, PARTITIONS)
    live.start()
    if not await asyncio.to_thread(live.has_read.wait, FIRST_COPY_SECONDS):
        outcome.unsettled.append(f"nothing is copied after {FIRST_COPY_SECONDS:g} s without a fault")
    say(f"faults for {plan.seconds:g} s")
    async with asyncio.TaskGroup() as striking:
        striking.create_task(cluster.run(schedule(plan.seed, plan.seconds, plan.kinds)))
        striking.create_task(cluster.run_drills(plan.seconds, plan.drills))
        striking.create_task(_strike(copiers, copier_schedule(plan.seed, plan.seconds, len(copiers)), cluster.injected))
    say("no more faults; the rest is written and copied")
    await writer.finish(DELIVERY_MS / 1000 + 60)
    positions, ends = await _until_at_the_end(outcome, bootstrap)
    await asyncio.gather(*(copier.stop() for copier in copiers))
    outcome.incarnations = sum(copier.incarnation for copier in copiers)
    say("reading everything back")
    await _until_settled(outcome, bootstrap)
    await asyncio.to_thread(live.stop)
    if live.trouble and not _may_lose(plan):
        outcome.unsettled.append(f"the reader of the run: {live.trouble}")
    if _may_lose(plan):
        await asyncio.sleep(SETTLE_MS / 1000)  # until then a file of an old primary looks like one under way
        outcome.listed = await cluster.commands.lost(cluster.drills.url)
    await asyncio.to_thread(_judge, outcome, cluster, live.seen, positions, ends)
    outcome.unsettled += cluster.drills.offences
    found = await cluster.commands.audit(cluster.drills.url)
    outcome.unsettled += [f"audit: {violation}" for violation in found["violations"]]
    outcome.injected = cluster.injected


def _judge(
    outcome: CopyOutcome,
    cluster: TortureCluster,
    seen: Sequence[Read],
    positions: dict[int, int],
    ends: dict[int, int],
) -> None:
    for agent in cluster.agents.values():
        outcome.unsettled += unsettled(agent)
    source = read_log(cluster.bootstrap, INPUT, PARTITIONS, "read_uncommitted")
    committed = read_log(cluster.bootstrap, OUTPUT, PARTITIONS, "read_committed")
    uncommitted = read_log(cluster.bootstrap, OUTPUT, PARTITIONS, "read_uncommitted")
    outcome.source, outcome.committed, outcome.uncommitted = len(source), len(committed), len(uncommitted)
    outcome.seen = len(seen)
    outcome.input = check(outcome.written.acknowledged, source, outcome.listed.names)
    evidence = CopyEvidence(
        source,
        committed,
        uncommitted,
        outcome.transactions,
        positions,
        ends,
        () if _may_lose(outcome.plan) else seen,
        outcome.listed.names,
        _ends_by_partition(cluster.drills.url, outcome.listed),
    )
    outcome.output = check_copy(evidence)


def _may_lose(plan: CopyPlan) -> bool:
    return bool(set(plan.drills) & set(LOSES))


async def _strike(copiers: Sequence[SupervisedCopier], faults: Sequence[CopierFault], injected: Counter[str]) -> None:
    """Cause the faults at their times; return when the last one is over."""
    started = asyncio.get_running_loop().time()
    async with asyncio.TaskGroup() as striking:
        for fault in faults:
            await asyncio.sleep(started + fault.at_s - asyncio.get_running_loop().time())
            injected[fault.kind] += 1
            striking.create_task(copiers[fault.copier].strike(fault))


async def _until_at_the_end(outcome: CopyOutcome, bootstrap: str) -> tuple[dict[int, int], dict[int, int]]:
    """The group's offsets and the ends of the input, once they are equal, or when time is over."""
    began = time.monotonic()
    ends = await asyncio.to_thread(ends_of, bootstrap, INPUT, PARTITIONS)
    while True:
        positions = await asyncio.to_thread(positions_of, bootstrap, GROUP, INPUT, PARTITIONS)
        outcome.catch_up_s = time.monotonic() - began
        if all(positions.get(partition, 0) == end for partition, end in ends.items()):
            return positions, ends
        if outcome.catch_up_s > COPY_SECONDS:
            return positions, ends
        await asyncio.sleep(0.5)


async def _until_settled(outcome: CopyOutcome, bootstrap: str) -> None:
    """Every transaction is ended, and nothing is held back from readers of committed records."""
    names, until = [report.name for report in outcome.copiers], time.monotonic() + SETTLE_SECONDS
    while True:
        left = await asyncio.to_thread(open_transactions, bootstrap, names)
        high = await asyncio.to_thread(ends_of, bootstrap, OUTPUT, PARTITIONS)
        stable = await asyncio.to_thread(ends_of, bootstrap, OUTPUT, PARTITIONS, committed=True)
        left += [
            f"partition {index} is stable to {stable[index]} of {high[index]}"
            for index in high
            if stable[index] != high[index]
        ]
        if not left:
            return
        if time.monotonic() > until:
            outcome.unsettled += [f"transaction: {line}" for line in left]
            return
        await asyncio.sleep(0.5)


def _ends_by_partition(url: str, listed: LostReport) -> dict[int, list[int]]:
    """Partition of the output -> offsets of the lost ends that `audit --lost` lists."""
    if not listed.committed_ends:
        return {}
    with psycopg.connect(url) as connection:
        row = connection.execute("SELECT topic_number FROM topics WHERE name = %s", (OUTPUT,)).fetchone()
    assert row is not None
    found: dict[int, list[int]] = {}
    for key, offset in listed.committed_ends:
        number, partition = split_partition_key(key)
        if number == row[0]:
            found.setdefault(partition, []).append(offset)
    return found


async def _tell_for_ever(outcome: CopyOutcome, cluster: TortureCluster, say: Callable[[str], None]) -> None:
    began = time.monotonic()
    while True:
        await asyncio.sleep(EVERY_SECONDS)
        say(
            f"{time.monotonic() - began:5.0f} s  faults {cluster.injected.total()},"
            f" written {len(outcome.written.acknowledged):,}, transactions {len(outcome.transactions):,}"
        )


def _compile(classes: Path) -> Path:
    """Needs the tool kafka-clients (`make tools`)."""
    classes.mkdir()
    command = ["javac", "-d", str(classes), "-cp", f"{JAVA_LIBRARIES}/*", str(PROGRAM)]
    subprocess.run(command, check=True, timeout=300)
    return classes


def _create_topics(bootstrap: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    made = admin.create_topics([NewTopic(name, PARTITIONS) for name in (INPUT, OUTPUT)])
    for name in (INPUT, OUTPUT):
        made[name].result(30)
