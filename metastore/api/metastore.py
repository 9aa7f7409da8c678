"""The whole boundary, for code that composes a process; everything else takes the Protocol that it needs."""

from __future__ import annotations

from typing import Protocol

from headrace.metastore.api.audit_archive import AuditArchiveApi
from headrace.metastore.api.bulk import BulkWriteApi
from headrace.metastore.api.cleaning import CleaningApi
from headrace.metastore.api.cluster import ClusterApi, ClusterFacts, ConfigApi
from headrace.metastore.api.commit import CommitApi
from headrace.metastore.api.compaction import CompactionApi
from headrace.metastore.api.controller import ControllerApi
from headrace.metastore.api.files import FileApi
from headrace.metastore.api.groups import GroupApi
from headrace.metastore.api.housekeeping import HousekeepingApi
from headrace.metastore.api.jobs import JobApi
from headrace.metastore.api.life import LifeApi
from headrace.metastore.api.outcomes import OutcomeApi
from headrace.metastore.api.quotas import QuotaUseApi
from headrace.metastore.api.read import LeaderEpochApi, ReadApi
from headrace.metastore.api.reports import ReportApi
from headrace.metastore.api.restoring import RestoreApi
from headrace.metastore.api.retention import RetentionApi
from headrace.metastore.api.segment_logs import SegmentLogApi
from headrace.metastore.api.segments import SegmentApi
from headrace.metastore.api.settings import SettingsApi
from headrace.metastore.api.share_groups import ShareStateApi
from headrace.metastore.api.topics import PartitionApi
from headrace.metastore.api.transactions import TransactionApi
from headrace.metastore.backups import WalArchive


class Metastore(
    CommitApi,
    ClusterFacts,
    BulkWriteApi,
    OutcomeApi,
    ReadApi,
    LeaderEpochApi,
    ClusterApi,
    PartitionApi,
    ConfigApi,
    ControllerApi,
    GroupApi,
    ShareStateApi,
    TransactionApi,
    JobApi,
    QuotaUseApi,
    RetentionApi,
    RestoreApi,
    CompactionApi,
    CleaningApi,
    SegmentApi,
    SegmentLogApi,
    AuditArchiveApi,
    FileApi,
    HousekeepingApi,
    ReportApi,
    LifeApi,
    SettingsApi,
    Protocol,
):
    """Every operation, and the connections under them (standbys.py says what a probe of a commit is for)."""

    async def probe_commit(self) -> None:
        """Commit something that changes nothing. UnavailableError if that does not end in PROBE_SECONDS. If commits
        wait for a synchronous standby, there is no error, and `refusal` says so: all processes wait.
        """

    def commits(self) -> int:
        """Return how many calls of this process have committed a write so far, of those that certainly wrote."""

    async def keep_connections(self, count: int) -> None:
        """Keep so many connections instead of metastore.pool.size; those in use end with their call."""

    def refusal(self) -> str | None:
        """Return why the metastore answers and does not write, for any process (a full disk, read-only, a synchronous
        standby that is away); None if it does.
        """

    async def wal_archive(self) -> WalArchive:
        """Return what Postgres says of its WAL archive."""

    async def close(self) -> None:
        """Close the connections; calls in progress fail."""
