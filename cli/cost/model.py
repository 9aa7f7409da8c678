"""What a workload needs, with what that costs: sums over measured constants, over prices. Pure.

Place: command.py prints it. Constants and the prices of each cloud come from files next to this one.
Invariant of constants and prices: each value names where it comes from; a name that is not in the file is an error,
never a default.

    Workload ──needs──> Needs (requests, bytes, cores of Headrace)
        └──bills──> Bill of Headrace, of the same with low.latency.enable on all topics, of Kafka in three zones, of the
                    same with tiered storage, of a managed Kafka if the prices have one

Invariant: every number is a constant, a price, the workload's, or a setting's default; nothing is fitted here.
What is not in the sums: replays of old records, swaps of extents by compaction in Postgres, backups, load balancers,
monitoring, people.
Units: GB is 10^9 bytes, MiB 2^20; a month has 730 hours.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

from headrace.agent.produce.flush_policy import EARLY_PER_SECOND_S3, MONTH_HOURS, MONTH_SECONDS, dollars_per_month
from headrace.metastore.api.agents import COMMIT_SHARDS_MAX
from headrace.storage.errors import InvalidError

Pair = tuple[float, float]


class Constants:
    """Measured values by name."""

    def __init__(self, entries: Mapping[str, Any]) -> None:
        self.entries = entries

    def value(self, name: str) -> float:
        """InvalidError if the file has no such value."""
        return float(_field(self.entries, name, "value"))

    def points(self, name: str, x: str, y: str) -> tuple[Pair, Pair]:
        """Both coordinates of two measured points."""
        (x1, x2), (y1, y2) = _field(self.entries, name, x), _field(self.entries, name, y)
        return (float(x1), float(x2)), (float(y1), float(y2))

    def line(self, name: str, at: float, x: str = "bytes", y: str = "us") -> float:
        """The value at `at` of the line through the two points; at least the part that does not grow."""
        (x1, x2), (y1, y2) = self.points(name, x, y)
        return y1 + (y2 - y1) / (x2 - x1) * (at - x1)


class Prices(Constants):
    """Prices in the file's currency, as of the day `read_on`."""

    @property
    def currency(self) -> str:
        return str(self.entries["currency"])

    @property
    def read_on(self) -> str:
        return str(self.entries["read_on"])

    @property
    def has_managed_kafka(self) -> bool:
        """Whether the file has a price of a managed Kafka."""
        return any(name.startswith("managed_") for name in self.entries)


def measured() -> Constants:
    """constants.toml."""
    return Constants(tomllib.loads(_own("constants.toml")))


CLOUDS = {"aws": "prices.toml", "azure": "prices-azure.toml", "gcp": "prices-gcp.toml"}
"""The file of each cloud."""


def prices(path: Path | None = None, cloud: str = "aws") -> Prices:
    """The cloud's file, or the file that is given. InvalidError if it is no TOML; OSError if it cannot be read."""
    try:
        return Prices(tomllib.loads(_own(CLOUDS[cloud]) if path is None else path.read_text(encoding="utf-8")))
    except tomllib.TOMLDecodeError as error:
        raise InvalidError(f"prices are no TOML: file={path} error={error}") from error


def _own(name: str) -> str:
    return (resources.files("headrace.cli.cost") / name).read_text(encoding="utf-8")


def _field(entries: Mapping[str, Any], name: str, field: str) -> Any:
    try:
        return entries[name][field]
    except KeyError as error:
        raise InvalidError(f"no such value: name={name} field={field}") from error


MIB, GB = 2**20, 1e9
DAY_SECONDS = 86_400
CORE_SHARE = 0.6
"""How far a core is planned to be used, for agents, compactors and Postgres."""
DISK_SHARE = 0.7
"""How full Kafka's disks are planned to be."""
KAFKA_COPIES = 3
WAL_HOURS = 24
"""How much WAL Postgres' disk holds, for a backup or a standby that comes back."""
FIRST_SHARDS, SHARDS_PER_AGENT = 8, 4
"""Commit shards of a new cluster, and how many the agents of a zone want (decisions/0077)."""
SHARD_FOLLOWERS = 3
"""Agents that follow a commit shard whether their clients read it or not (decisions/0087)."""
HEARTBEAT_SECONDS = 5.0
"""group.consumer.heartbeat.interval.ms."""
TIERED_SEGMENT_BYTES, TIERED_PUTS_PER_SEGMENT = 2**30, 3
"""segment.bytes of Kafka, and the objects that a plugin of KIP-405 writes for one: log, indexes, manifest."""
MOVE_SECONDS, MOVED_BYTES = 45.0, 32 * MIB
"""After how long, or how many bytes, small files are moved: low.latency.move.ms, and half of the time between merges;
and compactor/planner.py."""
INLINE_SECONDS = 150.0
"""How long the rows of small files stay: one slot is filled, one is moved, and one waits to be emptied."""
LEVEL0_SECONDS = 75 * 60
"""How long a flushed file stays although its records are merged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """`fanout`: how many times each record is read near the end of the log. `partitions`: all that are written to.
    `group_members`: of all consumer groups together; each commits its offsets every `offset_commit_s` seconds."""

    write_mib_s: float
    fanout: float = 1.0
    retention_days: float = 7.0
    local_retention_hours: float = 24.0
    """How long Kafka with tiered storage keeps records on its disks, too: its local.retention.ms."""
    batch_kib: float = 64.0
    partitions: int = 100
    zones: int = 3
    linger_ms: float = 100.0
    early_flushes_s: float = EARLY_PER_SECOND_S3
    """What each agent earns: flush.early.per.second."""
    flush_bytes: float = 8 * MIB
    feed_poll_ms: float = 15.0
    chunk_bytes: float = 4 * MIB
    group_members: int = 0
    offset_commit_s: float = 5.0
    low_latency: bool = False
    """Whether all topics have low.latency.enable: small files go into the metastore first."""
    inline_file_bytes: float = 256 * 1024
    """low.latency.file.max.bytes."""
    inline_bytes_s: float = 16 * MIB
    """low.latency.max.bytes.per.second."""
    inline_commits_s: float = 100.0
    """Most commits of an agent with small files: one is made when the one before has its answer."""

    @property
    def write_gb_s(self) -> float:
        return self.write_mib_s * MIB / GB

    @property
    def batches_s(self) -> float:
        return self.write_mib_s * 1024 / self.batch_kib


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """Needs of Headrace. Rates per second; cores are those that are busy, without reserve."""

    agents: int
    commit_shards: int
    followed_share: float
    """The part of the commit shards that each agent follows."""
    agent_cores: float
    compactor_cores: float
    puts_s: float
    early_flushes_s: float
    """Most early flushes of all agents together, on average over a month. They are among the PUTs."""
    gets_s: float
    stored_bytes: float
    postgres_cores: float
    wal_bytes_s: float
    metastore_bytes: float
    inline_bytes_s: float
    """Bytes that go into the metastore first; 0: all go into the bucket at once."""


@dataclass(frozen=True, slots=True)
class Bill:
    """Bill of one system, per month, by part."""

    name: str
    parts: dict[str, float]

    @property
    def total(self) -> float:
        return sum(self.parts.values())


def needs(workload: Workload, measured: Constants) -> Needs:
    """Return the needs of Headrace in steady state."""
    request_s = measured.line("agent_us_per_request", workload.batch_kib * 1024) / 1e6
    fetch_s = measured.value("agent_fetch_s_per_gb") * workload.write_gb_s * workload.fanout
    groups = group_needs(workload.group_members, workload.offset_commit_s, measured)
    serving = workload.batches_s * request_s + fetch_s + groups.agent_cores
    agents = max(workload.zones, math.ceil(serving / CORE_SHARE))
    agent_cores = serving + agents * measured.value("agent_idle_cores")

    small_files_s = max(1000 / workload.linger_ms, workload.early_flushes_s)  # decisions/0032: they share a budget
    files_s = agents * max(small_files_s, workload.write_mib_s * MIB / agents / workload.flush_bytes)
    inline_s, moves_s = _inline(workload, agents), 0.0
    if inline_s:
        files_s, moves_s = min(workload.batches_s, agents * workload.inline_commits_s), _moves_s(workload)
    file_bytes = workload.write_mib_s * MIB / files_s
    extents = max(1.0, min(workload.partitions, workload.batches_s / files_s))
    merged_s = workload.write_mib_s * MIB / measured.value("merged_file_bytes")
    zones_read = workload.zones if workload.fanout else 0
    tail_reads_s = (
        0 if inline_s else files_s * math.ceil(file_bytes / workload.chunk_bytes) * zones_read
    )  # decisions/0014

    stored = workload.write_mib_s * MIB * (workload.retention_days * DAY_SECONDS + 2 * LEVEL0_SECONDS)
    commit_s = measured.line("postgres_us_per_commit", extents, "extents", "us") / 1e6
    shards = commit_shards(agents, workload.zones)
    poll_us = measured.value("postgres_us_per_feed_poll")
    poll_us += (shards - FIRST_SHARDS) * measured.value("postgres_us_per_polled_shard")
    poll_s = poll_us / 1e6 * agents * 1000 / workload.feed_poll_ms
    reads_s = measured.value("postgres_fetch_s_per_gb") * workload.write_gb_s * workload.fanout
    wal = files_s * measured.line("postgres_wal_bytes_per_commit", extents, "extents", "bytes") + groups.wal_bytes_s
    wal += inline_s * measured.value("inline_wal_per_byte")
    inline_cores = inline_s / GB * measured.value("postgres_inline_s_per_gb")
    puts_s = moves_s if inline_s else files_s
    files = stored / measured.value("merged_file_bytes")
    rows = files * measured.value("merged_rows_per_file") + files_s * LEVEL0_SECONDS * (extents + 1)
    return Needs(
        agents=agents,
        commit_shards=shards,
        followed_share=followed_share(agents, workload.zones),
        agent_cores=agent_cores,
        compactor_cores=workload.write_gb_s * compaction_s_per_gb(workload, measured),
        puts_s=puts_s + 2 * merged_s,
        early_flushes_s=0 if inline_s else agents * workload.early_flushes_s,
        gets_s=tail_reads_s + puts_s + merged_s * math.ceil(measured.value("merged_file_bytes") / workload.flush_bytes),
        stored_bytes=stored,
        postgres_cores=files_s * commit_s + poll_s + reads_s + groups.postgres_cores + inline_cores,
        wal_bytes_s=wal,
        metastore_bytes=rows * measured.value("metastore_row_bytes")
        + wal * WAL_HOURS * 3600
        + inline_s * INLINE_SECONDS,
        inline_bytes_s=inline_s,
    )


def _inline(workload: Workload, agents: int) -> float:
    """Return the bytes per second that go into the metastore first: all, or none if they are too many or files too
    large.

    In between each request is decided by itself; the bill is then between the two.
    """
    bytes_s = workload.write_mib_s * MIB
    file_bytes = max(workload.batch_kib * 1024, bytes_s / agents / workload.inline_commits_s)
    is_inline = file_bytes <= workload.inline_file_bytes and bytes_s <= workload.inline_bytes_s
    return bytes_s if workload.low_latency and is_inline else 0.0


def _moves_s(workload: Workload) -> float:
    """Return how many files moves write per second."""
    return max(1 / MOVE_SECONDS, workload.write_mib_s * MIB / MOVED_BYTES)


def inline_zone_bytes_s(need: Needs, workload: Workload) -> float:
    """Return the bytes of small files that cross zones: to Postgres, from there to merges, and to a reader of each
    other zone. What its standby gets is WAL, which is counted for all commits.
    """
    if not workload.zones:
        return 0.0
    elsewhere = (workload.zones - 1) / workload.zones
    readers = workload.zones - 1 if workload.fanout else 0
    return need.inline_bytes_s * elsewhere * (2 + readers)


class GroupNeeds(NamedTuple):
    """What members of consumer groups need that heartbeat and commit offsets, without what they fetch."""

    commits_s: float
    agent_cores: float
    postgres_cores: float
    wal_bytes_s: float


def group_needs(members: int, offset_commit_s: float, measured: Constants) -> GroupNeeds:
    """Return the needs of so many members, each of which commits offsets of a few partitions at once."""
    commits_s, heartbeats_s = members / offset_commit_s, members / HEARTBEAT_SECONDS
    agent_us = commits_s * measured.value("agent_us_per_offset_commit")
    agent_us += heartbeats_s * measured.value("agent_us_per_group_heartbeat")
    return GroupNeeds(
        commits_s,
        agent_us / 1e6,
        commits_s * measured.value("postgres_us_per_offset_commit") / 1e6,
        commits_s * measured.value("wal_bytes_per_offset_commit"),
    )


def commit_shards(agents: int, zones: int) -> int:
    """Return how many a cluster of this size wants: those of a new one, doubled until they are enough for a zone."""
    shards = FIRST_SHARDS
    while shards < min(SHARDS_PER_AGENT * math.ceil(agents / zones), COMMIT_SHARDS_MAX):
        shards *= 2
    return shards


def followed_share(agents: int, zones: int) -> float:
    """Return which part of the commit shards an agent follows: those that it leads in its zone, because its clients
    write and read them, and those of which it is a follower by hash."""
    led, assigned = 1 / math.ceil(agents / zones), min(1.0, SHARD_FOLLOWERS / agents)
    return 1 - (1 - led) * (1 - assigned)


def compaction_s_per_gb(workload: Workload, measured: Constants) -> float:
    """CPU of both levels: a cost per batch and one per byte, from two measured sizes of batches."""
    (small, large), (small_s, large_s) = measured.points("compaction_s_per_gb", "bytes", "s")
    per_batch = (small_s - large_s) / (GB / small - GB / large)
    return large_s + per_batch * (GB / (workload.batch_kib * 1024) - GB / large)


def early_flush_bill(need: Needs, prices: Prices) -> float:
    """Return the most that early flushes cost in a month. It is part of the bill's requests."""
    return dollars_per_month(need.early_flushes_s, prices.value("put_1000"))


def bills(workload: Workload, measured: Constants, prices: Prices) -> list[Bill]:
    """Headrace without and with low.latency.enable; Kafka on machines in three zones with consumers that read in their
    zone, without tiered storage and with it; and the first of the two managed."""
    own = [
        _headrace(name, replace(workload, low_latency=low_latency), measured, prices)
        for name, low_latency in (("Headrace", False), ("low latency", True))
    ]
    return [*own, *_kafkas(workload, measured, prices)]


def _headrace(name: str, workload: Workload, measured: Constants, prices: Prices) -> Bill:
    """Agents and compactors share machines; Postgres has a standby in another zone."""
    need = needs(workload, measured)
    core_month = prices.value("machine_hour") * MONTH_HOURS / prices.value("cores_per_machine")
    serving_cores = max(need.agents, math.ceil((need.agent_cores + need.compactor_cores) / CORE_SHARE))
    postgres_cores = max(prices.value("cores_per_machine"), math.ceil(need.postgres_cores / CORE_SHARE))
    zone_gb = need.wal_bytes_s * MONTH_SECONDS / GB
    zone_gb += inline_zone_bytes_s(need, workload) * MONTH_SECONDS / GB
    return Bill(
        name,
        {
            "machines": serving_cores * core_month,
            "Postgres": 2 * (postgres_cores * core_month + need.metastore_bytes / GB * prices.value("disk_gb_month")),
            "storage": need.stored_bytes / GB * prices.value("object_gb_month"),
            "requests": dollars_per_month(need.puts_s, prices.value("put_1000"))
            + dollars_per_month(need.gets_s, prices.value("get_1000")),
            "between zones": zone_gb * prices.value("zone_gb"),
        },
    )


def _kafkas(workload: Workload, measured: Constants, prices: Prices) -> list[Bill]:
    brokers = max(3, math.ceil(workload.write_mib_s * MIB / 1e6 / measured.value("kafka_mb_s_per_broker")))
    disk_gb = _kafka_disk_gb(workload, workload.retention_days * 24)
    month_gb = workload.write_gb_s * MONTH_SECONDS
    produced = month_gb * 2 / 3 * prices.value("zone_gb")
    copied = month_gb * (KAFKA_COPIES - 1) * prices.value("zone_gb")
    own = {
        "machines": brokers * prices.value("machine_hour") * MONTH_HOURS,
        "storage": disk_gb * prices.value("disk_gb_month"),
        "between zones": produced + copied,
    }
    remote_gb = workload.write_gb_s * workload.retention_days * DAY_SECONDS
    local_hours = min(workload.local_retention_hours, workload.retention_days * 24)
    local_gb = _kafka_disk_gb(workload, local_hours)
    segments_s = workload.write_mib_s * MIB / TIERED_SEGMENT_BYTES
    tiered = own | {
        "storage": local_gb * prices.value("disk_gb_month") + remote_gb * prices.value("object_gb_month"),
        "requests": dollars_per_month(segments_s * TIERED_PUTS_PER_SEGMENT, prices.value("put_1000")),
    }
    found = [Bill("Kafka, three zones", own), Bill("Kafka, tiered", tiered)]
    if not prices.has_managed_kafka:
        return found
    managed = {
        "machines": brokers * prices.value("managed_broker_hour") * MONTH_HOURS,
        "storage": disk_gb * prices.value("managed_disk_gb_month"),
        "between zones": produced,  # the provider does not charge for copies
    }
    return [*found, Bill("Kafka, managed", managed)]


def _kafka_disk_gb(workload: Workload, hours: float) -> float:
    """Return the disks of all copies of so many hours."""
    return workload.write_gb_s * hours * 3600 * KAFKA_COPIES / DISK_SHARE
