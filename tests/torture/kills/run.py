"""A run with kills only: three servers of Headrace or Apache Kafka, clients that write and read, one strike at a time.

Place: `python -m tests.torture --kills-only`.
Invariant: seed and length decide the strikes, not the target. Leaders, session timeout, clients and their
settings are the same for both.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from headrace.cli.bench.topic_admin import create_topic
from headrace.storage.clock import SystemClock
from tests.torture.checker import Read, TortureVerdict, check, compare
from tests.torture.cluster import TortureCluster
from tests.torture.kills.counts import ClientCounts, count_clients, refusals_in
from tests.torture.kills.kafka_servers import KafkaServers
from tests.torture.kills.stored import read_stored
from tests.torture.kills.strikes import Striking, StruckNode, strikes
from tests.torture.reading import read_with_aiokafka, read_with_confluent
from tests.torture.tracebacks import find_tracebacks
from tests.torture.writers import DELIVERY_MS, Report, Writer, installed
from tests.transactional_copy.reading import LiveReader

TOPIC, PARTITIONS = "kills", 6
HEADRACE, KAFKA = "headrace", "kafka"
TARGETS = (HEADRACE, KAFKA)
NO_COMPACTION = {"process.roles": "broker,controller"}
"""Merged batches have no producer id."""
FIRST_ANSWER_SECONDS = 300
QUIET_SECONDS = 300
FOLLOW_SECONDS = 120
"""Limit for the reader that followed the run to read what the last ones find."""
CLIENT_LOGS = {"TORTURE_LIBRDKAFKA_DEBUG": "eos,msg"}
"""What a batch was refused with."""


@dataclass(frozen=True)
class KillsPlan:
    """What to do. `rate` in records/s per client; `clients` empty: all that are installed."""

    seed: int
    seconds: float
    target: str
    directory: Path
    rate: int = 100
    delivery_ms: int = DELIVERY_MS
    clients: Sequence[str] = ()


@dataclass(frozen=True)
class StruckServers:
    """Servers that are up. `name`: with the version."""

    name: str
    bootstrap: str
    nodes: Sequence[StruckNode]
    replication_factor: int
    counters: Callable[[], Counter[str]] = Counter
    """Counted by the servers; Kafka has no metric of a producer's repeated batches."""


@dataclass
class KillsOutcome:
    """What happened. `refusals`: client -> why its batches were not acknowledged at once."""

    plan: KillsPlan
    target: str
    missing: dict[str, str]
    reports: list[Report]
    injected: Counter[str] = field(default_factory=Counter)
    late: int = 0
    latest_s: float = 0.0
    counts: list[ClientCounts] = field(default_factory=list)
    counters: Counter[str] = field(default_factory=Counter)
    """Metrics of Headrace's agents."""
    refusals: dict[str, Counter[str]] = field(default_factory=dict)
    verdict: TortureVerdict = field(default_factory=TortureVerdict)
    disagreements: list[str] = field(default_factory=list)
    tracebacks: list[str] = field(default_factory=list)

    @property
    def offences(self) -> list[str]:
        """Empty if the run is clean. Only Headrace is judged by more than records that are stored twice without a
        bump."""
        twice = [line for counts in self.counts for line in counts.twice_without]
        if self.plan.target == KAFKA:
            return twice
        verdict = self.verdict
        # the client knows the offset of the second copy, and the verdict the offset of the first
        copied = {_value_in(line) for counts in self.counts for line in counts.twice_with_bump}
        misplaced = [line for line in verdict.misplaced if _value_in(line) not in copied]
        rest = [*verdict.lost, *misplaced, *verdict.gaps, *self.disagreements, *self.tracebacks]
        # after a bump a client may send what was refused after what was stored
        bumped = [f"value={report.producer}/" for report in self.reports if report.started_over]
        disordered = [line for line in verdict.disordered if not any(value in line for value in bumped)]
        troubles = [f"writer {report.producer}: {report.trouble}" for report in self.reports if report.trouble]
        idle = [f"writer {report.producer}: nothing acknowledged" for report in self.reports if not report.acknowledged]
        return [*twice, *disordered, *rest, *troubles, *idle]


async def run_with_kills(plan: KillsPlan, say: Callable[[str], None]) -> KillsOutcome:
    """Run it; offences do not raise. Logs stay in `plan.directory`. `say` gets a line for each strike."""
    os.chmod(plan.directory, 0o711)  # started by root, Postgres runs as another user and must get through
    commands, missing = installed()
    chosen = plan.clients or list(commands)
    writers = [
        Writer(name, commands[name], plan.directory / f"{name}.log", CLIENT_LOGS) for name in chosen if name in commands
    ]
    async with _open_target(plan) as target, AsyncExitStack() as leaving:
        for writer in writers:
            leaving.push_async_callback(writer.stop)
        outcome = KillsOutcome(plan, target.name, missing, [writer.report for writer in writers])
        await _write_and_strike(plan, target, writers, outcome, _with_time(say))
    for writer in writers:
        log = (plan.directory / f"{writer.report.producer}.log").read_text(errors="replace")
        outcome.refusals[writer.report.producer] = refusals_in(log)
    outcome.tracebacks = find_tracebacks(sorted(plan.directory.glob("agent-*.log")))
    return outcome


async def _write_and_strike(
    plan: KillsPlan, target: StruckServers, writers: Sequence[Writer], outcome: KillsOutcome, say: Callable[[str], None]
) -> None:
    await asyncio.to_thread(create_topic, target.bootstrap, TOPIC, PARTITIONS, target.replication_factor)
    for writer in writers:
        await writer.start(target.bootstrap, TOPIC, PARTITIONS, plan.rate, plan.delivery_ms)
    with suppress(TimeoutError):  # one that never gets there is a separate offence
        async with asyncio.timeout(FIRST_ANSWER_SECONDS):
            await asyncio.gather(*(writer.answered.wait() for writer in writers))
    follower = LiveReader(target.bootstrap, TOPIC, PARTITIONS)
    follower.start()
    say("every client writes")
    striking = Striking(target.nodes, say, SystemClock(), outcome.injected)
    await striking.run(strikes(plan.seed, plan.seconds, len(target.nodes)))
    outcome.late, outcome.latest_s = striking.late, striking.latest_s
    say("the last answers")
    patience_s = QUIET_SECONDS + plan.delivery_ms / 1000
    await asyncio.gather(*(writer.finish(patience_s) for writer in writers))
    outcome.counters = target.counters()
    say("reading with librdkafka")
    first = await asyncio.to_thread(read_with_confluent, target.bootstrap, TOPIC, PARTITIONS)
    say("reading with aiokafka")
    second = await asyncio.to_thread(read_with_aiokafka, target.bootstrap, TOPIC, PARTITIONS)
    say(f"the reader that followed has {len(follower.seen):,} of {len(first):,} records")
    await _until_followed(follower, len(first))
    ends = {partition: offset + 1 for partition, offset, _ in first}
    say("reading the batches")
    stored = await asyncio.to_thread(read_stored, target.bootstrap, TOPIC, ends)
    acknowledged = {name: offset for report in outcome.reports for name, offset in report.acknowledged.items()}
    outcome.verdict = check(acknowledged, first)
    every: tuple[list[Read], ...] = (second, follower.seen, [each.read for each in stored])
    outcome.disagreements = [line for other in every for line in compare(first, other)]
    if follower.trouble:
        outcome.disagreements.append(f"the reader that followed: {follower.trouble}")
    outcome.counts = count_clients(outcome.reports, stored)


async def _until_followed(follower: LiveReader, records: int) -> None:
    """Return when it has read so many, or has had its time: then the comparison says what it lacks."""
    until = asyncio.get_running_loop().time() + FOLLOW_SECONDS
    while len(follower.seen) < records and asyncio.get_running_loop().time() < until:  # noqa: ASYNC110 -- a thread
        await asyncio.sleep(0.2)
    await asyncio.to_thread(follower.stop)


@asynccontextmanager
async def _open_target(plan: KillsPlan) -> AsyncIterator[StruckServers]:
    if plan.target == KAFKA:
        servers = await asyncio.to_thread(KafkaServers, plan.directory)
        async with servers:
            yield StruckServers(servers.name, servers.bootstrap, servers.nodes, len(servers.nodes))
    else:
        async with TortureCluster(plan.directory, plan.seed, settings=NO_COMPACTION) as cluster:
            agents = list(cluster.agents.values())
            watching = asyncio.create_task(cluster.watch_metrics())
            try:
                yield StruckServers(
                    f"Headrace on {cluster.s3.name}",
                    cluster.bootstrap,
                    agents,
                    replication_factor=1,
                    counters=lambda: sum((agent.totals for agent in agents), Counter()),
                )
            finally:
                watching.cancel()


def _value_in(line: str) -> str:
    return line.partition("value=")[2].partition(" ")[0]


def _with_time(say: Callable[[str], None]) -> Callable[[str], None]:
    """The times of the clients' logs."""
    return lambda line: say(f"{time.time():.3f} {line}")
