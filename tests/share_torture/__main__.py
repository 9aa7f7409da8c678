"""`make torture-shares SECONDS=180 [SEED=n]`: Java's share consumers while agents, links and Postgres suffer faults.

A producer writes numbered records. Members accept them, one of 97 after a release; members are killed, paused, stop and
come again. Checked (X12): no record is delivered and accepted after its acceptance was answered; each acknowledged
record is accepted, or it is not known what became of its acceptance, or its attempts are used up; and in the end the
group has done everything.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import math
import os
import random
import sys
import time
from collections import Counter
from functools import partial
from pathlib import Path
from typing import NamedTuple

import confluent_kafka
from confluent_kafka.admin import AdminClient, NewTopic

from headrace.cli.client.groups import share_progress
from headrace.protocol.client.cluster import KafkaCluster
from headrace.protocol.client.transport import client_config
from headrace.storage.errors import HeadraceError
from tests.share_torture.members import LOCK_MS, Heard, ShareMembers
from tests.torture.cluster import LOW_LATENCY, TortureCluster
from tests.torture.faults import GAP_MEAN_S, schedule
from tests.torture.run_directory import RunDirectory
from tests.torture.tracebacks import find_tracebacks

TOPIC = GROUP = "shared-torture"
PARTITIONS = 6
ATTEMPTS = 10
MEMBER_GAP_SECONDS = 8.0
QUIET_SECONDS = 300.0
SETTINGS: dict[str, object] = {
    **LOW_LATENCY,
    "group.share.delivery.count.limit": ATTEMPTS,
    "group.share.record.lock.duration.ms": LOCK_MS,
    "group.share.min.record.lock.duration.ms": 1_000,
}


class ShareWorkload(NamedTuple):
    """`rate`: records per second. `records`: after these the writer ends, inf for as long as there are faults.
    `consumers`: at a time.
    """

    rate: int
    records: float
    consumers: int


class NumberWriter:
    """Writes numbers at a rate, until all are written or `is_over` is set. `acknowledged` may be read at any time."""

    def __init__(self, bootstrap: str, workload: ShareWorkload) -> None:
        self._producer = confluent_kafka.Producer(
            {"bootstrap.servers": bootstrap, "enable.idempotence": True, "log_level": 0, "linger.ms": 20}
        )
        self._workload = workload
        self.sent = 0
        self.acknowledged: set[int] = set()
        self.is_over = False

    def run(self) -> None:
        """Send records at the rate until it is over; blocks."""
        began = time.monotonic()
        while not self.is_over:
            due = min((time.monotonic() - began) * self._workload.rate, self._workload.records)
            while self.sent + 1 <= due:
                number = self.sent
                try:
                    self._producer.produce(TOPIC, str(number), on_delivery=partial(self._told, number))
                except BufferError:
                    break
                self.sent += 1
            self._producer.poll(0.02)
        self._producer.flush(QUIET_SECONDS)

    def _told(self, number: int, error: object, message: object) -> None:
        if error is None:
            self.acknowledged.add(number)


async def torture(seed: int, seconds: float, workload: ShareWorkload, gap_s: float, directory: Path) -> list[str]:
    """Run it, print the counts, and return what is wrong."""
    os.chmod(directory, 0o711)
    heard, rng = Heard(), random.Random(seed)
    async with TortureCluster(directory, seed, settings=SETTINGS) as cluster:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
        await asyncio.to_thread(lambda: admin.create_topics([NewTopic(TOPIC, PARTITIONS)])[TOPIC].result(60))
        writer = NumberWriter(cluster.bootstrap, workload)
        async with ShareMembers(workload.consumers, directory, rng, heard) as members:
            await members.start(cluster.bootstrap, GROUP, TOPIC)
            writing = asyncio.create_task(asyncio.to_thread(writer.run))
            try:
                await _begun(heard, 10 * workload.consumers)
                striking = asyncio.create_task(_strike_members(members, cluster, rng))
                await cluster.run(schedule(seed, seconds, gap_s=gap_s))
                striking.cancel()
            finally:
                writer.is_over = True  # else its thread would never end
            await writing
            await members.start(cluster.bootstrap, GROUP, TOPIC)
            problems = await _settle(cluster, writer, heard)
            problems += [f"a member ended with status {status}" for status in members.ended]
            started = members.started
        problems += _judge(writer, heard)
        injected = Counter(cluster.injected)
    problems += await asyncio.to_thread(lambda: find_tracebacks(sorted(directory.glob("agent-*.log"))))
    print(f"faults     {injected.total()}: {dict(sorted(injected.items()))}")
    print(f"records    sent {writer.sent:,}  acknowledged {len(writer.acknowledged):,}")
    print(f"members    {started} processes, {workload.consumers} at a time; troubles {dict(heard.troubles)}")
    again = sum(count - 1 for count in heard.got.values())
    print(f"deliveries {heard.got.total():,}, {again:,} of them again; highest attempt {max(heard.attempts.values())}")
    unsure = len(heard.unsure.keys() - heard.accepted.keys())
    print(f"accepted   {len(heard.accepted):,}, {heard.again:,} of them again by a late member; unsure {unsure:,}")
    return problems


async def _begun(heard: Heard, accepted: int) -> None:
    async with asyncio.timeout(QUIET_SECONDS):
        for _ in itertools.count():
            if len(heard.accepted) > accepted:
                return
            await asyncio.sleep(0.1)


async def _strike_members(members: ShareMembers, cluster: TortureCluster, rng: random.Random) -> None:
    while True:
        await asyncio.sleep(rng.expovariate(1 / MEMBER_GAP_SECONDS))
        cluster.injected[members.strike()] += 1
        await asyncio.sleep(rng.uniform(0, 3))
        await members.start(cluster.bootstrap, GROUP, TOPIC)


async def _settle(cluster: TortureCluster, writer: NumberWriter, heard: Heard) -> list[str]:
    """Wait until the group has done everything. Return what is left."""
    end, left = time.monotonic() + QUIET_SECONDS, "the group was not described"
    while time.monotonic() < end:
        await asyncio.sleep(1.0)
        try:
            lags = await asyncio.to_thread(_lags, cluster.bootstrap)
        except (HeadraceError, OSError) as error:
            left = str(error)
            continue
        open_ = len(_open(writer, heard))
        if len(lags) == PARTITIONS and not any(lags) and not open_:
            return []
        left = f"lags {lags}, {open_} records are not accepted"
    return [f"not done after {QUIET_SECONDS:g} s: {left}"]


def _lags(bootstrap: str) -> list[int | None]:
    with KafkaCluster.of(client_config(bootstrap, None)) as cluster:
        return [each.lag for each in share_progress(cluster, GROUP).values()]


def _open(writer: NumberWriter, heard: Heard) -> set[int]:
    """Return the acknowledged records of which nothing explains that they are not accepted."""
    used_up = {value for value, attempt in heard.attempts.items() if attempt >= ATTEMPTS}
    return writer.acknowledged - heard.accepted.keys() - heard.unsure.keys() - used_up


def _judge(writer: NumberWriter, heard: Heard) -> list[str]:
    problems = [f"delivered after its acceptance: {each}" for each in heard.delivered_after_acceptance().items()]
    if strange := [value for value in heard.got if value >= writer.sent]:
        problems.append(f"never sent: {strange[:5]}")
    most = max(heard.attempts.values(), default=0)
    if most > 2 * ATTEMPTS:
        problems.append(f"attempts: {most}")
    return problems


def main() -> int:
    """Parse flags, run, report; 0 when the run is clean."""
    parser = argparse.ArgumentParser(prog="make torture-shares", description=__doc__)
    parser.add_argument("--seconds", type=float, default=180, help="of faults")
    parser.add_argument("--seed", type=int, default=None, help="of the schedule of faults; drawn when not given")
    parser.add_argument("--rate", type=int, default=100, help="records per second")
    parser.add_argument("--records", type=float, default=math.inf, help="at most; else as long as there are faults")
    parser.add_argument("--members", type=int, default=4, help="consumers at a time")
    parser.add_argument("--gap", type=float, default=3 * GAP_MEAN_S, help="seconds between two faults, in the mean")
    parser.add_argument("--directory", type=Path, help="an empty directory for logs and data")
    args = parser.parse_args()
    seed = random.SystemRandom().randrange(2**31) if args.seed is None else int(args.seed)
    place = RunDirectory(args.directory)
    print(f"seed {seed}, {args.seconds:g} s of faults", flush=True)
    workload = ShareWorkload(args.rate, args.records, args.members)
    problems = asyncio.run(torture(seed, args.seconds, workload, args.gap, place.path))
    for problem in problems[:20]:
        print(f"OFFENCE    {problem}")
    print("clean" if not problems else f"{len(problems)} offences, seed {seed}")
    place.end(is_clean=not problems)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
