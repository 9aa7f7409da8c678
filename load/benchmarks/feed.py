"""What following the commit feed costs: `python -m load feed [--readers 20 200] [--share 1 0.08] [--shards 128]`.
For 200 readers on two cores: `--readers 20 60 200 --share model --shards 256 --extents 0 64 --poll-ms 150`.

Starts a separate Postgres (fsync on). One process commits files in the name of 20 agents, each once in 100 to 250 ms,
to its shards if there are enough.
Others follow the feed as 20 agents with consumers do: agent/fetch's follower and index, a poll every 15 ms, a
connection each. A row per number of extents in a file, from none, which has no committers:
  polls     of all agents, and the number of extents that one poll brought, counted in the pages
  CPU       of the agent and of Postgres for one poll, and of an agent
An agent that learns of every extent is what grows with the cluster twice: with its writes and with its agents. With
`--share` each follows this share of the commit shards only, as agents of a large cluster do; neighbours follow
neighbouring shards. Each number of readers is run with each share; `model` is the share of an agent among so many in
three zones (cli/cost/model.py). 200 agents that poll every 15 ms need more than two cores without any news: with
`--poll-ms` polls are fewer, and each brings more.
The last line of a run is what `python -m load scale_model` takes: per extent that is handed over, the row of most
extents less the row of none; and a poll without news.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from typing import Any, NamedTuple

from headrace.cli.cost.model import followed_share
from load.harness import Benchmark, BenchmarkRun
from load.workloads.feed_followers import Followed

POLL_MS = 15
EXTENTS = (0, 8, 64)
"""Extents of a file."""
PROCESSES = 4
CONNECTIONS = 500
ZONES = 3
MODEL = "model"
"""A model as `--share` takes it: what agents of a cluster of this size follow."""


def _measure(url: str, extents: int, readers: int, share: float, args: argparse.Namespace) -> Followed:
    counts = [readers // PROCESSES + (n < readers % PROCESSES) for n in range(PROCESSES)]
    works: list[dict[str, Any]] = [
        {"readers": count, "first": sum(counts[:n]), "share": share, "poll_ms": args.poll_ms}
        for n, count in enumerate(counts)
        if count
    ]
    if extents:
        works.append({"committers": args.committers, "extents": extents})
    children = [_child(work | {"url": url, "seconds": args.seconds}) for work in works]
    for child in children:
        assert child.stdout is not None
        if child.stdout.readline() != "prepared\n":
            raise RuntimeError("a child ended before it was prepared")
    for child in children:
        assert child.stdin is not None
        child.stdin.write("go\n")
        child.stdin.flush()
    answers = [json.loads(child.communicate()[0]) for child in children]
    commits = answers.pop() if extents else 0
    return Followed(*map(sum, zip(*answers, strict=True)))._replace(commits=commits)


def _child(work: dict[str, Any]) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "load.workloads.feed_followers", json.dumps(work)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


class FeedCost(NamedTuple):
    """Cost of the feed for one reader."""

    agent_per_poll: float
    postgres_per_poll: float
    extents_per_poll: float


def _cost(run: BenchmarkRun, extents: int, done: Followed, readers: int) -> FeedCost:
    """Tells its row."""
    seconds = run.args.seconds
    cost = FeedCost(done.agent_cpu / done.polls, done.postgres_cpu / done.polls, done.extents / done.polls)
    figures = {
        "commits/s": done.commits / seconds,
        "extents/s": done.commits * extents / seconds,
        "polls/s": done.polls / seconds,
        "rows/s to all": done.rows / seconds,
        "extents/s to all": done.extents / seconds,
        "extents a poll": cost.extents_per_poll,
        "us of the agent a poll": cost.agent_per_poll * 1e6,
        "us of Postgres a poll": cost.postgres_per_poll * 1e6,
        "of a core per agent": done.agent_cpu / seconds / readers,
    }
    run.row(f"{extents} extents a file", figures)
    return cost


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("--seconds", type=float, default=10, help="of each row")
    parser.add_argument("--committers", type=int, default=20)
    parser.add_argument("--readers", type=int, nargs="+", default=[20])
    parser.add_argument("--share", nargs="+", default=["1"], help="of the commit shards, of each reader; or `model`")
    parser.add_argument("--shards", type=int, default=8)
    parser.add_argument("--extents", type=int, nargs="+", default=EXTENTS, help="of a file; the first one is 0")
    parser.add_argument("--poll-ms", type=int, default=POLL_MS)


def benchmark(run: BenchmarkRun) -> None:
    args = run.args
    with run.postgres(commit_shards=args.shards, max_connections=CONNECTIONS) as url:
        for readers in args.readers:
            for share in args.share:
                _follow(run, url, readers, followed_share(readers, ZONES) if share == MODEL else float(share))


def _follow(run: BenchmarkRun, url: str, readers: int, share: float) -> None:
    """The rows of so many readers with this share of the shards, and what follows from them."""
    args = run.args
    run.note(f"{readers} readers, each follows {share:.0%} of {args.shards} shards, polls every {args.poll_ms} ms")
    rows = [_cost(run, extents, _measure(url, extents, readers, share, args), readers) for extents in args.extents]
    idle, busy = rows[0], rows[-1]
    agent = (busy.agent_per_poll - idle.agent_per_poll) / busy.extents_per_poll
    postgres = (busy.postgres_per_poll - idle.postgres_per_poll) / busy.extents_per_poll
    run.row("per extent and reader", {"us of the agent": agent * 1e6, "us of Postgres": postgres * 1e6})
    without = {"us of the agent": idle.agent_per_poll * 1e6, "us of Postgres": idle.postgres_per_poll * 1e6}
    run.row("per poll without news", without)


BENCHMARK = Benchmark("what following the commit feed costs agents and Postgres", benchmark, add_arguments)
