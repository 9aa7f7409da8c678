"""What grows with the cluster, and which part is full first: `python -m load scale_model`.

From 0.1 to 100 GB/s of writes: agents, files, extents, Postgres, WAL, and the part of the feed that each agent follows:
of the shards that it leads for the clients of its zone, and of those that it is assigned (decisions/0087); and consumer
groups with members that commit offsets every 5 s (python -m load groups --groups 10 100). Each row is compared
with what one Postgres, one agent and one bucket can do. The last table is of small files in Postgres first, with as
many agents and partitions as python -m load inline_scale has. The sums are those of `headrace cost`, over the same
measured constants (cli/cost/constants.toml), and the feed's (python -m load feed).
`--page` writes the tables of docs/understand/SCALE.md; a test compares them.
Invariant: pure; a number is measured, a setting's default, or an assumption that the page names as one.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from headrace.cli.cost.model import (
    CORE_SHARE,
    INLINE_SECONDS,
    MIB,
    MOVE_SECONDS,
    MOVED_BYTES,
    Constants,
    Needs,
    Workload,
    group_needs,
    measured,
    needs,
)
from headrace.config.settings import Settings
from load.harness import Benchmark, BenchmarkRun

PAGE = Path(__file__).resolve().parents[2] / "docs" / "understand" / "SCALE.md"
STEPS_GB_S = (0.1, 1.0, 10.0, 100.0)
GROUPS = (10, 100, 1_000)
GROUP_MEMBERS = 100
COMMIT_SECONDS = 5.0
FANOUT = 3.0
BATCH_KIB = 64.0
PARTITION_MB_S = 1.0
"""MB/s of a partition that is written to: as many partitions as the rate has of these."""
POSTGRES_CORES = 64
"""Assumed: a large machine; commits use its cores (bench_committers), the feed's polls go to any of them."""
WAL_BYTES_S = 500e6
"""Assumed: one log, written and flushed by one machine with fast disks."""
CONNECTIONS = 5_000
"""Assumed: of Postgres with a pooler in front; without one about 1,000."""
CONNECTIONS_PER_AGENT = 8
PREFIX_PUTS_S = 3_500
"""S3's request rate for a prefix; Headrace's keys begin with 256 prefixes."""
KEY_PREFIXES = 256
INLINE_MIB_S = (1.0, 4.0, 8.0, 16.0)
"""The last one is the default of low.latency.max.bytes.per.second."""
INLINE_AGENTS, INLINE_PARTITIONS, INLINE_BATCH_KIB = 50, 1_000, 16.0
LEVEL2_BYTES = 256 * MIB
KEY_WAL_BYTES = 5_300
"""WAL of the whole life of a merged file's key, of each partition that is in the file (decisions/0046)."""


@dataclass(frozen=True, slots=True)
class ClusterSize:
    """A cluster of one size."""

    write_gb_s: float
    need: Needs
    files_s: float
    extents_s: float
    feed_agent_cores: float
    """Cores that each agent needs for the feed."""
    feed_postgres_cores: float


@dataclass(frozen=True, slots=True)
class FullPart:
    """`share`: how much of what there is a step uses; above 1 it does not fit."""

    name: str
    share: Callable[[ClusterSize], float]
    remedy: str


LIMITS = (
    FullPart(
        "CPU of Postgres",
        lambda step: (step.need.postgres_cores + step.feed_postgres_cores) / (POSTGRES_CORES * CORE_SHARE),
        "fewer extents: larger files (`linger.ms`, `flush.bytes`), fewer partitions; then topics on several metastores",
    ),
    FullPart("WAL of Postgres", lambda step: step.need.wal_bytes_s / WAL_BYTES_S, "as for its CPU"),
    FullPart(
        "the feed in each agent",
        lambda step: step.feed_agent_cores / CORE_SHARE,
        "more commit shards, clients that follow the leaders of their zone",
    ),
    FullPart(
        "connections to Postgres",
        lambda step: step.need.agents * CONNECTIONS_PER_AGENT / CONNECTIONS,
        "PgBouncer in transaction mode, a smaller `metastore.pool.size`",
    ),
    FullPart(
        "requests to the bucket",
        lambda step: step.need.puts_s / (PREFIX_PUTS_S * KEY_PREFIXES),
        "the bucket splits by prefix by itself",
    ),
)


def step(write_gb_s: float, constants: Constants) -> ClusterSize:
    """The cluster that takes so much."""
    workload = Workload(
        write_mib_s=write_gb_s * 1e9 / MIB,
        fanout=FANOUT,
        batch_kib=BATCH_KIB,
        partitions=max(1, round(write_gb_s * 1e3 / PARTITION_MB_S)),
    )
    need = needs(workload, constants)
    rate = workload.write_mib_s * MIB
    files_s = need.agents * max(1000 / workload.linger_ms, rate / need.agents / workload.flush_bytes)
    extents_s = files_s * max(1.0, min(workload.partitions, workload.batches_s / files_s))
    handed_s, polls_s = extents_s * need.followed_share, 1000 / workload.feed_poll_ms  # of each agent
    return ClusterSize(
        write_gb_s,
        need,
        files_s,
        extents_s,
        (polls_s * constants.value("agent_us_per_feed_poll") + handed_s * constants.value("agent_us_per_feed_extent"))
        / 1e6,
        handed_s * need.agents * constants.value("postgres_us_per_feed_extent") / 1e6,
    )


def first_limit(one: ClusterSize) -> FullPart:
    """The one that is used most."""
    return max(LIMITS, key=lambda limit: limit.share(one))


def tables(steps: Sequence[ClusterSize]) -> str:
    """Two tables in Markdown: what each size needs, and how full each part is."""
    rows: list[tuple[str, Callable[[ClusterSize], str]]] = [
        ("agents, one core each", lambda one: f"{one.need.agents:,}"),
        ("commit shards", lambda one: f"{one.need.commit_shards:,}"),
        ("files, commits per second", lambda one: f"{one.files_s:,.0f}"),
        ("extents per second", lambda one: f"{one.extents_s:,.0f}"),
        ("commit shards that an agent follows", lambda one: f"{100 * one.need.followed_share:.0f} %"),
        ("PUTs per second", lambda one: f"{one.need.puts_s:,.0f}"),
        ("GETs per second", lambda one: f"{one.need.gets_s:,.0f}"),
        ("busy cores of Postgres: commits, reads, polls", lambda one: f"{one.need.postgres_cores:,.1f}"),
        ("busy cores of Postgres: rows of the feed", lambda one: f"{one.feed_postgres_cores:,.1f}"),
        ("WAL, MB per second", lambda one: f"{one.need.wal_bytes_s / 1e6:,.0f}"),
        ("CPU for the feed in each agent, cores", lambda one: f"{one.feed_agent_cores:.2f}"),
    ]
    head = ["| writes | " + " | ".join(f"{one.write_gb_s:g} GB/s" for one in steps) + " |"]
    rule = ["| --- |" + " --: |" * len(steps)]
    needed = [f"| {name} | " + " | ".join(map(shown, steps)) + " |" for name, shown in rows]
    shares = [f"| {limit.name} | " + " | ".join(_share(limit.share(one)) for one in steps) + " |" for limit in LIMITS]
    first = ["| **fullest** | " + " | ".join(first_limit(one).name for one in steps) + " |"]
    return "\n".join([*head, *rule, *needed, "", *head, *rule, *shares, *first])


def _share(share: float) -> str:
    percent = f"{math.ceil(100 * share):,} %"
    return f"**{percent}**" if share > 1 else percent


def groups_table() -> str:
    """A table in Markdown: what the members of so many groups need."""
    found = [group_needs(groups * GROUP_MEMBERS, COMMIT_SECONDS, measured()) for groups in GROUPS]
    postgres = POSTGRES_CORES * CORE_SHARE
    rows = [
        ["heartbeats, commits per second", *(f"{each.commits_s:,.0f}" for each in found)],
        ["busy cores of agents", *(f"{each.agent_cores:.2f}" for each in found)],
        ["busy cores of Postgres", *(f"{each.postgres_cores:.2f}" for each in found)],
        ["of the CPU of Postgres", *(_share(each.postgres_cores / postgres) for each in found)],
        ["WAL, MB per second", *(f"{each.wal_bytes_s / 1e6:.1f}" for each in found)],
    ]
    head = [f"| groups of {GROUP_MEMBERS} members |", *(f" {groups:,} |" for groups in GROUPS)]
    lines = ["".join(head), "| --- |" + " --: |" * len(GROUPS), *("| " + " | ".join(row) + " |" for row in rows)]
    return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class InlineRates:
    """What small files in Postgres need at one rate, per second: all files are inline."""

    files: float
    extents: float
    keys: float
    wal_bytes: float
    """Commits, bytes of files and keys together."""
    key_wal_bytes: float
    postgres_cores: float
    held_bytes: float
    puts: float


def inline_rates(mib_s: float, constants: Constants) -> InlineRates:
    """Return them for INLINE_AGENTS agents and INLINE_PARTITIONS partitions, each batch of another partition."""
    workload = Workload(write_mib_s=mib_s, batch_kib=INLINE_BATCH_KIB, partitions=INLINE_PARTITIONS, low_latency=True)
    bytes_s = mib_s * MIB
    files = min(workload.batches_s, INLINE_AGENTS * workload.inline_commits_s)
    extents = max(files, workload.batches_s)
    puts = max(1 / MOVE_SECONDS, bytes_s / MOVED_BYTES) + bytes_s / LEVEL2_BYTES
    keys = puts * min(INLINE_PARTITIONS, workload.batches_s / puts)
    commit_us = constants.line("postgres_us_per_commit", extents / files, "extents", "us")
    commit_wal = constants.line("postgres_wal_bytes_per_commit", extents / files, "extents", "bytes")
    stored_wal = bytes_s * constants.value("inline_wal_per_byte")
    return InlineRates(
        files,
        extents,
        keys,
        files * commit_wal + stored_wal + keys * KEY_WAL_BYTES,
        keys * KEY_WAL_BYTES,
        files * commit_us / 1e6 + bytes_s / 1e9 * constants.value("postgres_inline_s_per_gb"),
        min(bytes_s * INLINE_SECONDS, Settings().low_latency_held_max_bytes),
        puts,
    )


def inline_table() -> str:
    """A table in Markdown: small files in Postgres first, up to the most that the cluster's default allows."""
    found = [inline_rates(rate, measured()) for rate in INLINE_MIB_S]
    rows = [
        ["files, commits per second, at most", *(f"{each.files:,.0f}" for each in found)],
        ["extents per second", *(f"{each.extents:,.0f}" for each in found)],
        ["keys of merged files per second", *(f"{each.keys:,.0f}" for each in found)],
        ["WAL, MB per second", *(f"{each.wal_bytes / 1e6:.1f}" for each in found)],
        ["of it for keys", *(f"{each.key_wal_bytes / 1e6:.1f}" for each in found)],
        ["of the WAL of Postgres", *(_share(each.wal_bytes / WAL_BYTES_S) for each in found)],
        ["busy cores of Postgres", *(f"{each.postgres_cores:.2f}" for each in found)],
        ["bytes in Postgres, GB, at most", *(f"{each.held_bytes / 1e9:.2f}" for each in found)],
        ["PUTs of merges per second", *(f"{each.puts:.2f}" for each in found)],
    ]
    head = ["| small files in Postgres first |", *(f" {rate:g} MiB/s |" for rate in INLINE_MIB_S)]
    lines = ["".join(head), "| --- |" + " --: |" * len(found), *("| " + " | ".join(row) + " |" for row in rows)]
    return "\n".join(lines)


def page(text: str) -> str:
    """The page with the tables of now, between its two markers."""
    begin, end = "<!-- made by python -m load scale_model --page -->\n", "<!-- until here -->"
    before, rest = text.split(begin)
    made = "\n\n".join([tables([step(rate, measured()) for rate in STEPS_GB_S]), groups_table(), inline_table()])
    return before + begin + made + "\n" + end + rest.split(end)[1]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("--page", action="store_true", help="write docs/understand/SCALE.md")


def benchmark(run: BenchmarkRun) -> None:
    if run.args.page:
        PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
        return
    steps = [step(rate, measured()) for rate in STEPS_GB_S]
    run.note(tables(steps))
    run.note(groups_table())
    run.note(inline_table())
    for one in steps:
        limit = first_limit(one)
        run.row(
            f"{one.write_gb_s:g} GB/s", {"of the fullest": limit.share(one), "(it)": limit.name, "->": limit.remedy}
        )


BENCHMARK = Benchmark("which part of a cluster is full first; pure", benchmark, add_arguments)
