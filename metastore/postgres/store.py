"""PostgresMetastore: the whole boundary on Postgres, composed of the classes of its nouns.

Place: opened once per process by the code that composes it; all other code sees `metastore.api` only.
Invariant: no state but the connection pools, and facts as they were when it was opened. Each
operation is one method of one noun's class (tests/metastore/test_boundary.py).
"""

from __future__ import annotations

import uuid
from typing import Self

from headrace.config.settings import Settings
from headrace.metastore.backups import WalArchive
from headrace.metastore.postgres.bucket.bucket import PostgresBucket
from headrace.metastore.postgres.bulk.bulk import PostgresBulkWrites
from headrace.metastore.postgres.cleaning.cleaning import PostgresCleaning
from headrace.metastore.postgres.cluster.cluster import PostgresAgents, PostgresClusterFacts, PostgresMetadataLog
from headrace.metastore.postgres.cluster.topics import PostgresHalvings, PostgresSplits, PostgresTopics
from headrace.metastore.postgres.commit.commit import DESCRIBE_CLUSTER, PostgresCommit, PostgresShards
from headrace.metastore.postgres.compaction.compaction import PostgresCompaction
from headrace.metastore.postgres.controller.controller import PostgresController
from headrace.metastore.postgres.damage.damage import PostgresDamage
from headrace.metastore.postgres.diagnosis.diagnosis import wal_archive
from headrace.metastore.postgres.files.files import PostgresDeletion, PostgresRebuild
from headrace.metastore.postgres.groups.groups import PostgresGroups
from headrace.metastore.postgres.housekeeping.housekeeping import PostgresHousekeeping
from headrace.metastore.postgres.inline.inline import PostgresInline
from headrace.metastore.postgres.jobs.jobs import PostgresJobs, PostgresPins
from headrace.metastore.postgres.life.life import DESCRIBE_LIFE, PostgresLife
from headrace.metastore.postgres.linked_groups.linked_groups import PostgresLinkedGroups
from headrace.metastore.postgres.links.links import PostgresLinks
from headrace.metastore.postgres.migrate import MIGRATIONS
from headrace.metastore.postgres.pass_through import Connected
from headrace.metastore.postgres.pool import open_pool, open_readers_pool
from headrace.metastore.postgres.quotas.quotas import PostgresQuotaUse
from headrace.metastore.postgres.read.read import PostgresExtents, PostgresFeed
from headrace.metastore.postgres.reports.reports import PostgresReports
from headrace.metastore.postgres.restoring.restoring import PostgresRestoring
from headrace.metastore.postgres.retention.retention import PostgresRetention
from headrace.metastore.postgres.segment_logs.segment_logs import PostgresSegmentLogs
from headrace.metastore.postgres.segments.audit_archive import PostgresAuditArchive
from headrace.metastore.postgres.segments.segments import PostgresSegments
from headrace.metastore.postgres.server_check import check_server
from headrace.metastore.postgres.settings.settings import PostgresSettings
from headrace.metastore.postgres.sql_files import sql_files
from headrace.metastore.postgres.standbys.standbys import probe_commit
from headrace.metastore.postgres.statement import Pool
from headrace.metastore.postgres.transactions.outcomes import PostgresOutcomes
from headrace.metastore.postgres.transactions.transactions import PostgresTransactions
from headrace.storage.errors import InvalidError


class _Commits(PostgresCommit, PostgresBulkWrites):
    """Implements CommitApi."""


class _Index(PostgresExtents, PostgresFeed):
    """Implements IndexApi."""


class _Cluster(
    PostgresMetadataLog, PostgresAgents, PostgresClusterFacts, PostgresShards, PostgresQuotaUse, PostgresSettings
):
    """Implements ClusterApi."""


class _Topics(PostgresTopics, PostgresSplits, PostgresHalvings, PostgresRestoring):
    """Implements TopicApi."""


class _Jobs(PostgresJobs, PostgresPins):
    """Implements JobApi."""


class _Compaction(PostgresCompaction, PostgresDamage):
    """Implements CompactionApi."""


class _Files(PostgresDeletion, PostgresRebuild):
    """Implements FileApi."""


class _Life(PostgresLife, PostgresBucket):
    """Implements LifeApi."""


class PostgresMetastore:
    """Implements metastore.api.metastore.Metastore; make it with `open`."""

    def __init__(self, at: Connected) -> None:
        self.pool, self.readers = at.pool, at.readers
        self.cluster_id, self.incarnation_id, self.commit_shards = at.cluster_id, at.incarnation_id, at.commit_shards
        self.pool.others, self.readers.others = (self.readers,), (self.pool,)
        self.commits = _Commits(at)
        self.index = _Index(at)
        self.cluster = _Cluster(at)
        self.topics = _Topics(at)
        self.controller = PostgresController(at)
        self.groups = PostgresGroups(at)
        self.transactions = PostgresTransactions(at)
        self.outcomes = PostgresOutcomes(at)
        self.jobs = _Jobs(at)
        self.compaction = _Compaction(at)
        self.cleaning = PostgresCleaning(at)
        self.segments = PostgresSegments(at)
        self.segment_logs = PostgresSegmentLogs(at)
        self.audit_archive = PostgresAuditArchive(at)
        self.files = _Files(at)
        self.inline = PostgresInline(at)
        self.links = PostgresLinks(at)
        self.linked_groups = PostgresLinkedGroups(at)
        self.retention = PostgresRetention(at)
        self.housekeeping = PostgresHousekeeping(at)
        self.reports = PostgresReports(at)
        self.life = _Life(at)

    @classmethod
    async def open(cls, url: str, settings: Settings) -> Self:
        """Connect to a migrated database.

        InvalidError when it lacks migrations of this version, or its Postgres is too old; UnavailableError when it
        is not there, or only reads. A server that may lose committed rows is named in the log.
        """
        pool = await open_pool(url, settings)
        try:
            await check_server(pool, settings.metastore_pool_size + settings.metastore_reader_connections)
            cluster_id, incarnation_id, commit_shards = await _describe_cluster(pool)
            pool.life = (await DESCRIBE_LIFE.row(pool))[1]
            readers = await open_readers_pool(url, settings)
        except BaseException:
            await pool.close()
            raise
        return cls(Connected(pool, readers, settings, cluster_id, incarnation_id, commit_shards))

    async def close(self) -> None:
        """Close the connections; calls in flight fail."""
        await self.readers.close()
        await self.pool.close()

    async def keep_connections(self, count: int) -> None:
        """The same as many as metastore.pool.size said until now; those in use end with their call."""
        await self.pool.resize(count, count)

    async def probe_commit(self) -> None:
        """See metastore.api.metastore.Metastore."""
        await probe_commit(self.pool, self.readers)

    def commits_made(self) -> int:
        """See metastore.api.metastore.Metastore."""
        return self.pool.commits

    async def wal_archive(self) -> WalArchive:
        """Errors as every statement's."""
        return await wal_archive(self.pool)

    def refusal(self) -> str | None:
        """Return what commits wait for, or why the server refused to write within the last REFUSED_SECONDS."""
        return self.pool.refusal()


async def _describe_cluster(pool: Pool) -> tuple[str, uuid.UUID, int]:
    """(cluster id, incarnation id, commit shards); InvalidError unless every migration of this version is in."""
    rows = await DESCRIBE_CLUSTER.rows(pool)
    recorded = rows[0][3] if rows else []
    missing = [file.name for file in sql_files(MIGRATIONS) if file.name not in recorded]
    if missing:
        raise InvalidError(
            "database lacks migrations: run `headrace migrate`, or the version of the agents that use it:"
            f" missing={','.join(missing)}"
        )
    return rows[0][0], rows[0][1], rows[0][2]
