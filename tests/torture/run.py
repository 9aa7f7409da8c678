"""One torture run: cluster up, writers on, faults in, faults over, everything read back and judged."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path

from confluent_kafka.admin import AdminClient, NewTopic

from headrace.compactor.lost import SETTLE_MS
from tests.torture.checker import TortureVerdict, check, compare
from tests.torture.cluster import LOW_LATENCY, TortureCluster
from tests.torture.commands import LostReport
from tests.torture.drills import LOSES
from tests.torture.faults import BEHIND_AGENTS, EVERYWHERE, GAP_MEAN_S, KINDS, schedule
from tests.torture.moves import LeaderMoves
from tests.torture.progress import Progress
from tests.torture.reading import read_with_aiokafka, read_with_confluent
from tests.torture.settled import unsettled
from tests.torture.tracebacks import find_tracebacks
from tests.torture.unlistable import unlistable
from tests.torture.writers import DELIVERY_MS, Report, Writer, installed

TOPIC = "torture"
PARTITIONS = 6
FIRST_ANSWER_SECONDS = 300
"""Seconds within which a client starts and has its first record acknowledged, with no fault about."""
QUIET_SECONDS = 300
"""After the last fault, what a writer gets to have everything answered (and its delivery timeout)."""
LONG_LEASES = {"broker.session.timeout.ms": 60_000}
"""Longer than the faults of a run in which leaders stay."""


@dataclass(frozen=True)
class TorturePlan:
    """What to do. `rate` in records/s per client; `delivery_ms` until a client gives a record up."""

    seed: int
    seconds: float
    kinds: Sequence[str] = KINDS
    gap_s: float = GAP_MEAN_S
    """Mean time in seconds between two faults."""
    rate: int = 250
    delivery_ms: int = DELIVERY_MS
    clients: Sequence[str] = ()
    """Empty: all that are installed."""
    drills: Sequence[str] = ()
    """What happens to Postgres meanwhile (tests/torture/drills.py)."""
    holds_snapshot: bool = False
    """Whether a transaction keeps its snapshot all the time."""
    leaders_stay: bool = False
    """Whether faults strike only what is behind the agents, for less than a lease: then no client may begin another
    epoch."""
    leaders_move: bool = False
    """Whether leaders move there and back again all the time (tests/torture/moves.py)."""
    directory: Path | None = None
    """An empty directory that keeps logs and data; None for one that goes with the run."""
    store: str = "s3"
    """One of STORES (tests/torture/servers.py)."""


@dataclass
class TortureOutcome:
    """What happened. `listed`: what `headrace audit --lost` says that Postgres lost."""

    plan: TorturePlan
    s3: str
    missing: dict[str, str]
    reports: list[Report]
    injected: Counter[str] = field(default_factory=Counter)
    counters: Counter[str] = field(default_factory=Counter)
    verdict: TortureVerdict = field(default_factory=TortureVerdict)
    listed: LostReport = field(default_factory=LostReport)
    snapshots_held: int = 0
    disagreements: list[str] = field(default_factory=list)
    objects: int = 0
    named: int = 0
    producer_ids: int = 0
    highest_epoch: int = 0
    """The highest epoch. Above the number of clients, or above 0: clients gave records up and continued under
    another id or epoch.
    """
    unsettled: list[str] = field(default_factory=list)
    """Named files that the bucket lacks, agents that still hold files in flight, tracebacks in their logs, what drills
    and the audit found."""

    @property
    def struck(self) -> int:
        """Requests that a fault reached, as far as agents and clients counted them."""
        return self.counters.total() + sum(max(0, report.retries) for report in self.reports)

    @property
    def offences(self) -> list[str]:
        """Empty when the run is clean."""
        troubles = [f"writer {report.producer}: {report.trouble}" for report in self.reports if report.trouble]
        idle = [f"writer {report.producer}: nothing acknowledged" for report in self.reports if not report.acknowledged]
        return [*self.verdict.offences, *self.disagreements, *self.unsettled, *troubles, *idle, *self._epochs]

    @property
    def _epochs(self) -> list[str]:
        """Epochs and ids that clients had no reason to begin, from their own logs and from Postgres."""
        if not self.plan.leaders_stay:
            return []
        begun = [f"{report.producer} began again: {why}" for report in self.reports for why in report.started_over]
        if self.highest_epoch:
            begun.append(f"a producer began another epoch: highest epoch {self.highest_epoch}")
        return begun


async def torture(plan: TorturePlan, say: Callable[[str], None] = print) -> TortureOutcome:
    """Run it; the outcome contains everything, offences do not raise. Logs are in `plan.directory`, if it is set.
    `say` gets the progress, in words, at each step and from time to time."""
    with tempfile.TemporaryDirectory(prefix="headrace-torture-", ignore_cleanup_errors=True) as place:
        directory = plan.directory or Path(place)
        os.chmod(directory, 0o711)  # started by root, Postgres runs as another user and must get through
        commands, missing = installed()
        chosen = plan.clients or list(commands)
        writers = [Writer(name, commands[name], directory / f"{name}.log") for name in chosen if name in commands]
        made = TortureCluster(
            directory,
            plan.seed,
            fills_disk="disk_full" in plan.drills,
            holds_snapshot=plan.holds_snapshot,
            settings={**LOW_LATENCY, **(LONG_LEASES if plan.leaders_stay else {})},
            store=plan.store,
        )
        async with made as cluster, AsyncExitStack() as leaving:
            for writer in writers:
                leaving.push_async_callback(writer.stop)
            progress = Progress(cluster, [writer.report for writer in writers], say)
            telling = asyncio.create_task(progress.tell_for_ever())
            leaving.callback(telling.cancel)
            outcome = await _torture(plan, cluster, writers, missing, progress)
        outcome.unsettled += find_tracebacks(sorted(directory.glob("agent-*.log")))
        return outcome


async def _torture(
    plan: TorturePlan, cluster: TortureCluster, writers: Sequence[Writer], missing: dict[str, str], progress: Progress
) -> TortureOutcome:
    await asyncio.to_thread(_create_topic, cluster.bootstrap)
    outcome = TortureOutcome(plan, cluster.s3.name, missing, [writer.report for writer in writers])
    watching = asyncio.create_task(cluster.watch_metrics())
    for writer in writers:
        await writer.start(cluster.bootstrap, TOPIC, PARTITIONS, plan.rate, plan.delivery_ms)
    progress.step("until every client writes")
    with suppress(TimeoutError):  # one that never gets there is a separate offence
        async with asyncio.timeout(FIRST_ANSWER_SECONDS):
            await asyncio.gather(*(writer.answered.wait() for writer in writers))
    progress.step(f"faults for {plan.seconds:g} s")
    async with asyncio.TaskGroup() as striking:
        targets = BEHIND_AGENTS if plan.leaders_stay else EVERYWHERE
        striking.create_task(cluster.run(schedule(plan.seed, plan.seconds, plan.kinds, targets, plan.gap_s)))
        striking.create_task(cluster.run_drills(plan.seconds, plan.drills))
        moves = LeaderMoves(cluster.bootstrap, TOPIC, PARTITIONS, plan.seed)
        if plan.leaders_move:
            striking.create_task(moves.run(plan.seconds))
    progress.step("no more faults; the last answers")
    patience_s = QUIET_SECONDS + plan.delivery_ms / 1000
    await asyncio.gather(*(writer.finish(patience_s) for writer in writers))
    progress.step("reading everything back, twice")
    acknowledged = {name: offset for report in outcome.reports for name, offset in report.acknowledged.items()}
    first = await asyncio.to_thread(read_with_confluent, cluster.bootstrap, TOPIC, PARTITIONS)
    second = await asyncio.to_thread(read_with_aiokafka, cluster.bootstrap, TOPIC, PARTITIONS)
    if set(plan.drills) & set(LOSES):
        progress.step("listing what Postgres lost")
        await asyncio.sleep(SETTLE_MS / 1000)  # until then a file of an old primary looks like one under way
        outcome.listed = await cluster.commands.lost(cluster.drills.url)
    heard = {name: at for report in outcome.reports for name, at in report.heard.items()}
    excused = unlistable(heard, cluster.drills.losses, cluster.kills)
    outcome.verdict = check(acknowledged, first, outcome.listed.listed(acknowledged, first), excused)
    outcome.disagreements = compare(first, second)
    watching.cancel()
    await asyncio.to_thread(_look_at_what_is_left, cluster, outcome)
    outcome.unsettled += cluster.drills.offences
    progress.step("audit of every byte")
    outcome.unsettled += [f"audit --deep: {one}" for one in await cluster.commands.audit_deep(cluster.drills.url)]
    if plan.drills:
        progress.step("audit")
        found = await cluster.commands.audit(cluster.drills.url)
        outcome.unsettled += [f"audit: {violation}" for violation in found["violations"]]
    outcome.snapshots_held = 0 if cluster.snapshot is None else cluster.snapshot.opened
    outcome.injected = cluster.injected + moves.counted
    outcome.counters = sum((agent.totals for agent in cluster.agents.values()), Counter())
    return outcome


def _look_at_what_is_left(cluster: TortureCluster, outcome: TortureOutcome) -> None:
    """Every file has a definite end: it has a row and an object, or no row."""
    for agent in cluster.agents.values():
        outcome.unsettled += unsettled(agent)
    # compaction continues meanwhile: a file must have been named before and after the bucket was listed
    before = cluster.files_of_metastore()
    stored = {name.rpartition("/")[2] for name in cluster.s3.object_names() if "/segments/" in name}
    named = {str(file_id) for file_id in before & cluster.files_of_metastore()}
    outcome.objects, outcome.named = len(stored), len(named)
    outcome.producer_ids, outcome.highest_epoch = cluster.producers_of_metastore()
    outcome.unsettled += [f"the bucket lacks a named file: {name}" for name in sorted(named - stored)]


def _create_topic(bootstrap: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    admin.create_topics([NewTopic(TOPIC, PARTITIONS)])[TOPIC].result(30)
