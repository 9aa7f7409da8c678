"""The read side for people or tools: rows of queries.py as values of metastore/api/reports.py.

Place: `headrace audit` and `console`, metrics, DescribeLogDirs, DescribeProducers, DescribeQuorum. A query is sent
as a Statement over the same pool, with the same limits and errors. `headrace bench` counts a topic's extents without
PostgresMetastore, because it also measures other versions, with older or newer schemas.
Invariant: a report only reads, and has no parameters but those that its query names. SQLAlchemy is loaded with the
first report: an agent starts without it.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Sequence
from typing import Any

import numpy as np
import psycopg

from headrace.metastore.api.files import FileState
from headrace.metastore.api.groups import GroupKind
from headrace.metastore.api.jobs import JobState
from headrace.metastore.api.reports import (
    AgentLease,
    AuditedFile,
    ConsumerLag,
    FileLevel,
    FileTotals,
    JobCount,
    JobStatus,
    PartitionName,
    ProducerStatus,
    Statistics,
    StoredGroup,
    TopicSize,
)
from headrace.metastore.postgres.address import parsed
from headrace.metastore.postgres.packing import pack_int8, unpack_extents
from headrace.metastore.postgres.pass_through import PostgresNoun
from headrace.metastore.postgres.statement import Pool, Statement


class ReportQuery(Statement):
    """Made by the function `name` of queries.py; compiled when it is first sent."""

    def __init__(self, name: str) -> None:
        super().__init__(name, writes=False)
        self._function = name

    def _text(self) -> str:
        from headrace.metastore.postgres.reports.queries import compiled

        return compiled(self._function)

    async def rows(self, pool: Pool, **parameters: Any) -> list[tuple[Any, ...]]:
        """Return rows as Statement.rows does. Compiled in a thread: SQLAlchemy takes 0.2 s to load, and agents ask for
        reports, too.
        """
        if "sql" not in self.__dict__:
            await asyncio.to_thread(lambda: self.sql)
        return await super().rows(pool, **parameters)


_LIST_JOBS = ReportQuery("list_jobs")
_COUNT_JOBS = ReportQuery("count_jobs")
_AUDIT_FILES = ReportQuery("audit_files")
_PARTITION_NAMES = ReportQuery("partition_names")
_FILE_TOTALS = ReportQuery("file_totals")
_PARTITION_SIZES = ReportQuery("partition_sizes")
_CONSUMER_LAGS = ReportQuery("consumer_lags")
_TOPIC_SIZES = ReportQuery("topic_sizes")
_DESCRIBE_PRODUCERS = ReportQuery("describe_producers")
_STATISTICS = ReportQuery("statistics")
_FILE_LEVELS = ReportQuery("file_levels")
_AGENT_LEASES = ReportQuery("list_agent_leases")
_STORED_GROUPS = ReportQuery("stored_groups")


class PostgresReports(PostgresNoun):
    """Implements the Protocols of metastore/api/reports.py."""

    async def list_jobs(self, limit: int) -> list[JobStatus]:
        return [
            JobStatus(job_id, kind, key, JobState(state), *rest)
            for job_id, kind, key, state, *rest in await _LIST_JOBS.rows(self.readers, limit=limit)
        ]

    async def count_jobs(self) -> list[JobCount]:
        rows = await _COUNT_JOBS.rows(self.readers)
        return [JobCount(kind, JobState(state), jobs, overdue_ms) for kind, state, jobs, overdue_ms in rows]

    async def audit_files(self, after: uuid.UUID, limit: int) -> list[AuditedFile]:
        return [
            AuditedFile(
                file_id, FileState(state), level, size, live_bytes, committed_ms, dead_ms, unpack_extents(packed)
            )
            for file_id, state, level, size, live_bytes, committed_ms, dead_ms, packed in await _AUDIT_FILES.rows(
                self.readers, after=after, limit=limit
            )
        ]

    async def partition_names(self, partition_keys: Sequence[int]) -> dict[int, PartitionName]:
        keys = pack_int8(np.array(partition_keys, dtype=np.int64))
        return {key: PartitionName(*name) for key, *name in await _PARTITION_NAMES.rows(self.readers, keys=keys)}

    async def file_totals(self) -> FileTotals:
        return FileTotals(*await _FILE_TOTALS.row(self.readers))

    async def consumer_lags(self, limit: int) -> list[ConsumerLag]:
        return [ConsumerLag(*row) for row in await _CONSUMER_LAGS.rows(self.readers, limit=limit)]

    async def topic_sizes(self, limit: int) -> list[TopicSize]:
        return [TopicSize(*row) for row in await _TOPIC_SIZES.rows(self.readers, limit=limit)]

    async def partition_sizes(self, partition_keys: Sequence[int]) -> list[int]:
        rows = await _PARTITION_SIZES.rows(self.readers, keys=pack_int8(np.array(partition_keys, dtype=np.int64)))
        return [size for (size,) in rows]

    async def describe_producers(self, partition_keys: Sequence[int]) -> list[list[ProducerStatus]]:
        partition_keys = list(partition_keys)
        rows = await _DESCRIBE_PRODUCERS.rows(self.readers, keys=pack_int8(np.array(partition_keys, dtype=np.int64)))
        found: dict[int, list[ProducerStatus]] = {key: [] for key in partition_keys}
        for key, *status in rows:
            found[key].append(ProducerStatus(*status))
        return [found[key] for key in partition_keys]

    async def statistics(self) -> Statistics:
        return Statistics(*await _STATISTICS.row(self.readers))

    async def file_levels(self) -> list[FileLevel]:
        rows = await _FILE_LEVELS.rows(self.readers)
        return [FileLevel(level, FileState(state), *rest) for level, state, *rest in rows]

    async def agent_leases(self) -> list[AgentLease]:
        return [AgentLease(*row) for row in await _AGENT_LEASES.rows(self.readers)]

    async def stored_groups(self, kind: GroupKind, after: str, limit: int) -> list[StoredGroup]:
        rows = await _STORED_GROUPS.rows(self.readers, kind=kind.value, after=after, limit=limit)
        return [StoredGroup(*row) for row in rows]


_COUNT_TOPIC_EXTENTS = ReportQuery("count_topic_extents")


def count_topic_extents(url: str, topic: str) -> int:
    """Extents of the topic's partitions now, over a separate connection."""
    parsed(url)
    with psycopg.connect(url) as connection:
        row = connection.execute(_COUNT_TOPIC_EXTENTS.sql, {"topic": topic}).fetchone()
    assert row is not None
    return int(row[0])
