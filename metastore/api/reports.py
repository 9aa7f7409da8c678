"""The read side for people and tools: jobs, files, partitions, producers and agents as they are now.

Place: `headrace audit` and `console`, metrics, DescribeLogDirs, DescribeProducers, DescribeQuorum; on no path of
records. metastore/postgres/reports/ builds the queries.
Invariant: reads only.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from headrace.metastore.api.files import FileState
from headrace.metastore.api.groups import GroupKind
from headrace.metastore.api.jobs import JobState
from headrace.metastore.api.read import Extent


@dataclass(frozen=True, slots=True)
class JobStatus:
    """A job as people see it. Times in milliseconds since the epoch, None for what has not been."""

    job_id: int
    kind: str
    key: str
    state: JobState
    priority: int
    period_ms: int | None
    due_ms: int
    """Waiting: not before. Leased: the lease's deadline."""
    epoch: int
    worker: str | None
    attempts: int
    progress: str
    last_error: str | None
    created_ms: int
    leased_ms: int | None
    ended_ms: int | None


class JobCount(NamedTuple):
    kind: str
    state: JobState
    jobs: int
    overdue_ms: int
    """How long the longest of them has been due, or without a holder since its lease ran out; 0: none is."""


class AuditedFile(NamedTuple):
    """What the metastore says of a file. `dead_ms` is None while extents name it."""

    file_id: uuid.UUID
    state: FileState
    level: int
    size: int
    live_bytes: int
    committed_ms: int
    dead_ms: int | None
    extents: list[Extent]


class FileTotals(NamedTuple):
    live: int
    total: int
    wall_ms: int


class PartitionName(NamedTuple):
    topic_id: uuid.UUID
    partition_index: int


class ProducerStatus(NamedTuple):
    """What the log knows of an idempotent producer."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp: int
    transaction_start: int = -1
    """The first offset of its open transaction in the partition; -1: none is open."""


class AgentLease(NamedTuple):
    """The lease as of the agent's last contact. `metadata_offset`: the next one that its image has not applied."""

    node_id: int
    metadata_offset: int
    last_contact_ms: int


class StoredGroup(NamedTuple):
    """`data`: what its coordinator stored last, in the coordinator's own format."""

    group_id: str
    data: bytes


class ConsumerLag(NamedTuple):
    """How far a group's committed offset is behind the high watermark of a partition, in offsets."""

    group_id: str
    partition_key: int
    records: int
    pairs: int
    """Number of pairs of group and partition in the whole cluster."""
    age_ms: int = 0
    """How old the extent with the next record is, by the newest timestamp in it: that record is at least so old. 0
    without lag."""


class TopicSize(NamedTuple):
    """Bytes of a topic's stored batches, without what merging keeps meanwhile."""

    topic_id: uuid.UUID
    size_bytes: int
    total_bytes: int
    """Bytes of all topics."""
    topics: int
    """Number of all topics with partitions."""


class Statistics(NamedTuple):
    """Live segment files, their stored and live bytes, and the extents in them."""

    files: int
    bytes: int
    live_bytes: int
    extents: int


class FileLevel(NamedTuple):
    """Segment files of one level in one state. `bytes - live_bytes` is dead: no extent names it."""

    level: int
    state: FileState
    files: int
    bytes: int
    live_bytes: int


class ReportApi(Protocol):
    """Partitions, jobs, files and agents, looked at from outside."""

    async def partition_names(self, partition_keys: Sequence[int]) -> dict[int, PartitionName]:
        """Return the names of partitions by key; deleted partitions are left out."""

    async def partition_sizes(self, partition_keys: Sequence[int]) -> list[int]:
        """Bytes of each partition's stored batches, in order; -1 for a deleted one. One probe each."""

    async def consumer_lags(self, limit: int) -> list[ConsumerLag]:
        """The largest ones, of committed offsets in partitions that are there; counted by a scan of all offsets."""

    async def topic_sizes(self, limit: int) -> list[TopicSize]:
        """The largest topics; a scan of all partitions."""

    async def describe_producers(self, partition_keys: Sequence[int]) -> list[list[ProducerStatus]]:
        """The producers that each partition remembers, in order of their ids."""

    async def list_jobs(self, limit: int) -> list[JobStatus]:
        """Unfinished ones by id, then the newest of the finished, up to `limit` in all."""

    async def count_jobs(self) -> list[JobCount]:
        """Return how many jobs there are by kind and state, and how late; finished ones count until they are pruned."""

    async def audit_files(self, after: uuid.UUID, limit: int) -> list[AuditedFile]:
        """The next files by id, with all their extents, also those of deleted partitions."""

    async def file_totals(self) -> FileTotals:
        """Counted by a scan."""

    async def statistics(self) -> Statistics:
        """Counted by a scan of files and extents."""

    async def file_levels(self) -> list[FileLevel]:
        """Return the numbers of files by level and state; counted by a scan of segment_files."""

    async def agent_leases(self) -> list[AgentLease]:
        """One of each registered agent, by node id."""

    async def stored_groups(self, kind: GroupKind, after: str, limit: int) -> list[StoredGroup]:
        """The next groups of this kind with members, by id; a scan of all groups."""
