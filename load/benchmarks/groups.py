"""What consumer groups (KIP-848) cost their coordinator: `python -m load groups [--groups 10 100]`.

Without `--groups`: CPU seconds of the state machine alone, saves encoded. Members join one by one, 20 to a save,
heartbeat until all have arrived, and then once more with nothing to say. One topic; `mixed` lets every second member
subscribe to another one too, which is the assignor's hard case.
With `--groups`: so many groups of 100 members on an agent with its Postgres (fsync on). Each member has its share of a
topic of 100 partitions, and heartbeats and commits its offsets every 5 s (load/workloads/group_members.py). Three rows
for each number of groups: nothing, heartbeats, and both; CPU of the agent and of Postgres, and from the differences
what a heartbeat and a commit cost.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import random
import statistics
import subprocess
import sys
import time
import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from kio.schema.errors import ErrorCode

from headrace.agent.groups.consumer.group import ConsumerGroup
from headrace.agent.groups.consumer.members import ConsumerHeartbeat
from headrace.agent.groups.consumer.rules import ConsumerGroupRules
from headrace.agent.groups.consumer.topics import KnownTopics
from headrace.agent.groups.group_values import GroupEffect, Save
from headrace.config.settings import Settings
from headrace.metastore.api.groups import GroupRecord
from headrace.metastore.log.image import MetadataImage, TopicImage
from load.dev_server import DevServer
from load.harness import Benchmark, BenchmarkRun
from load.postgres_server import read_cost

CASES = ((10, 100, False), (100, 1_000, False), (100, 10_000, False), (1_000, 10_000, False), (300, 3_000, True))
JOINS_PER_SAVE = 20
TOPIC = "committed"
CONNECTIONS = 5
"""Of each group."""
SETTLE_SECONDS = 3.0
"""After the members have joined, until saves and measurements of groups are done."""


class _Bench:
    """One group and its saves."""

    def __init__(self, partitions: int) -> None:
        found = [_topic(1, "t", partitions), _topic(2, "u", 10)]
        self._topics = KnownTopics({t.name: t for t in found}, {t.topic_number: t for t in found}, {})
        self._tokens = itertools.count()
        self._save: Save | None = None
        self.record: GroupRecord | None = None
        self.group = self.new_group()

    def new_group(self) -> ConsumerGroup:
        rules = ConsumerGroupRules(Settings())
        times = rules.times(MetadataImage(), "g")
        return ConsumerGroup("g", rules, lambda _: self._topics, lambda: times, random.Random(1))

    def say(self, request: ConsumerHeartbeat) -> None:
        self._perform(self.group.member_heartbeat(0.0, request, next(self._tokens)))

    def store(self) -> None:
        while self._save is not None:
            save, self._save = self._save, None
            self.record = save.state.record()
            self._perform(self.group.saved(0.0, save.revision, ErrorCode.none))

    def _perform(self, effects: Iterable[GroupEffect]) -> None:
        self._save = next((effect for effect in effects if isinstance(effect, Save)), self._save)


def _topic(number: int, name: str, partitions: int) -> TopicImage:
    return TopicImage(uuid.UUID(int=number), number, name, partitions, partitions, (0,) * partitions)


def _measure(members: int, partitions: int, mixed: bool) -> dict[str, float | str]:
    bench = _Bench(partitions)
    began = time.process_time()
    for number in range(members):
        names = frozenset({"t", "u"} if mixed and number % 2 else {"t"})
        bench.say(ConsumerHeartbeat(f"m{number}", 0, rebalance_timeout=60.0, topic_names=names, owned=frozenset()))
        if number % JOINS_PER_SAVE == 0:
            bench.store()
    bench.store()
    joined = time.process_time()
    rounds = 0
    while bench.group.state_name != "Stable":
        rounds += 1
        for member in list(bench.group.roster):
            bench.say(ConsumerHeartbeat(member.member_id, member.epoch, owned=member.assigned))
        bench.store()
    arrived = time.process_time()
    for member in list(bench.group.roster):
        bench.say(ConsumerHeartbeat(member.member_id, member.epoch))
    idle = time.process_time()
    bench.group.snapshot().record()
    saved = time.process_time()
    assert bench.record is not None
    bench.new_group().restore(0.0, bench.record)
    restored = time.process_time()
    return {
        "ms a join": (joined - began) / members * 1e3,
        "rounds": rounds,
        "us a heartbeat": (idle - arrived) / members * 1e6,
        "ms a save": (saved - idle) * 1e3,
        "bytes": len(bench.record.data),
        "ms a restore": (restored - saved) * 1e3,
    }


class GroupsRow(NamedTuple):
    """What members did while the agent and Postgres were measured."""

    groups: int
    seconds: float
    agent_cpu: float
    postgres_cpu: float
    wal_bytes: int
    done: dict[str, Any]

    def figures(self) -> dict[str, float | str]:
        """Return the row."""
        done, found = self.done, dict[str, float | str]()
        found["heartbeats/s"] = done["heartbeats"] / self.seconds
        found["commits/s"] = done["commits"] / self.seconds
        found["cores of the agent"] = self.agent_cpu / self.seconds
        found["cores of Postgres"] = self.postgres_cpu / self.seconds
        found["KB/s of WAL"] = self.wal_bytes / self.seconds / 1e3
        if done["latencies"]:
            quantiles = statistics.quantiles(done["latencies"], n=100)
            found |= {"ms a commit, p50": quantiles[49] * 1e3, "ms p99": quantiles[98] * 1e3}
        return found | ({"errors": str(done["errors"])} if done["errors"] else {})


def _measure_clients(
    server: DevServer, groups: int, args: argparse.Namespace, *, commits: bool, beats: bool
) -> GroupsRow:
    agent = server.agents[0]
    host, _, port = agent.kafka.rpartition(":")
    work = {
        "host": host,
        "port": int(port),
        "topic": TOPIC,
        "partitions": args.partitions,
        "groups": groups if beats else 0,
        "members": args.members,
        "connections": CONNECTIONS,
        "pause_seconds": args.pause,
        "seconds": args.seconds,
        "commits": commits,
    }
    child = subprocess.Popen(
        [sys.executable, "-m", "load.workloads.group_members", json.dumps(work)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    if child.stdout.readline() != "prepared\n":
        raise RuntimeError("the members ended before they were prepared")
    time.sleep(SETTLE_SECONDS)
    used, spent, began = _cpu_seconds(agent.pid), read_cost(server.metastore_url), time.monotonic()
    if beats:
        answer = child.communicate("go\n")[0]
    else:
        time.sleep(args.seconds)
        answer = child.communicate("go\n")[0]
    passed = time.monotonic() - began
    cost = read_cost(server.metastore_url).since(spent)
    return GroupsRow(
        groups, passed, _cpu_seconds(agent.pid) - used, cost.cpu_seconds, cost.wal_bytes, json.loads(answer)
    )


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _clients(run: BenchmarkRun) -> None:
    """Rows of real agents, and what follows from them."""
    args = run.args
    with run.dev_server(settings={"max.connections": 20_000}) as server:
        asyncio.run(server.create_topic(TOPIC, args.partitions))
        idle = _measure_clients(server, 0, args, commits=False, beats=False)
        run.row("0 groups", idle.figures())
        for groups in args.groups:
            beats = _measure_clients(server, groups, args, commits=False, beats=True)
            run.row(f"{groups} groups, heartbeats", beats.figures())
            both = _measure_clients(server, groups, args, commits=True, beats=True)
            run.row(f"{groups} groups, heartbeats and commits", both.figures())
            _tell_slopes(run, idle, beats, both)


def _tell_slopes(run: BenchmarkRun, idle: GroupsRow, beats: GroupsRow, both: GroupsRow) -> None:
    """CPU microseconds of a heartbeat, and of a commit; cores of a group."""
    rows = (idle, beats, both)
    for name, used in (
        ("agent", [row.agent_cpu for row in rows]),
        ("Postgres", [row.postgres_cpu for row in rows]),
    ):
        rate = [cpu / row.seconds for cpu, row in zip(used, rows, strict=True)]
        beat = (rate[1] - rate[0]) / (beats.done["heartbeats"] / beats.seconds)
        heartbeats = both.done["heartbeats"] / both.seconds
        commit = (rate[2] - rate[0] - beat * heartbeats) / (both.done["commits"] / both.seconds)
        figures = {"us a heartbeat": beat * 1e6, "us a commit": commit * 1e6}
        run.row(name, figures | {"cores a group": (rate[2] - rate[0]) / both.groups})
    wal = (both.wal_bytes - beats.wal_bytes * both.seconds / beats.seconds) / both.done["commits"]
    run.row("WAL of a commit", {"bytes": wal})


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("--groups", type=int, nargs="+", default=[], help="with clients: so many groups in turn")
    parser.add_argument("--members", type=int, default=100, help="of a group")
    parser.add_argument("--partitions", type=int, default=100, help="of the topic that each group reads")
    parser.add_argument("--pause", type=float, default=5.0, help="seconds between two commits of a member")
    parser.add_argument("--seconds", type=float, default=30.0, help="of each row")


def benchmark(run: BenchmarkRun) -> None:
    if run.args.groups:
        _clients(run)
        return
    for members, partitions, mixed in CASES:
        name = f"{members:,} members, {partitions:,} partitions{', mixed' if mixed else ''}"
        run.row(name, _measure(members, partitions, mixed))


BENCHMARK = Benchmark(
    "a consumer group's coordinator; with --groups many groups on an agent and Postgres", benchmark, add_arguments
)
