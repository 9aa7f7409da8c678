"""The whole boundary, for code that composes a process; everything else takes the Protocol that it needs."""

from __future__ import annotations

from typing import Protocol

from headrace.metastore.api.audit_archive import AuditArchiveApi
from headrace.metastore.api.bucket import BucketApi
from headrace.metastore.api.bulk import BulkRecordApi, BulkWriteApi
from headrace.metastore.api.cleaning import CleaningApi
from headrace.metastore.api.client_rows import ClientRowsApi
from headrace.metastore.api.cluster import ClusterApi, ClusterFacts, ConfigApi, ZoneSecretApi
from headrace.metastore.api.commit import CommitApi
from headrace.metastore.api.compaction import CompactionApi
from headrace.metastore.api.controller import ControllerApi
from headrace.metastore.api.damage import DamageApi
from headrace.metastore.api.files import FileApi, RebuildApi
from headrace.metastore.api.groups import GroupApi
from headrace.metastore.api.halvings import HalvingApi
from headrace.metastore.api.housekeeping import HousekeepingApi
from headrace.metastore.api.jobs import JobApi
from headrace.metastore.api.life import LifeApi
from headrace.metastore.api.outcomes import OutcomeApi
from headrace.metastore.api.pins import ReadPinApi
from headrace.metastore.api.quotas import QuotaUseApi
from headrace.metastore.api.read import LeaderEpochApi, ReadApi
from headrace.metastore.api.reports import AgentLeaseApi, FileReports, JobReports, PartitionReports
from headrace.metastore.api.restoring import RestoreApi
from headrace.metastore.api.retention import RetentionApi
from headrace.metastore.api.segment_logs import SegmentLogApi
from headrace.metastore.api.segments import SegmentApi, SegmentCleanupApi
from headrace.metastore.api.settings import SettingsApi
from headrace.metastore.api.shards import ShardApi
from headrace.metastore.api.share_groups import ShareGroupApi, ShareStateApi
from headrace.metastore.api.splits import SplitApi
from headrace.metastore.api.standbys import StandbyApi
from headrace.metastore.api.topics import PartitionApi
from headrace.metastore.api.transactions import TransactionApi
from headrace.metastore.backups import WalArchive


class Metastore(
    CommitApi,
    ShardApi,
    BulkWriteApi,
    BulkRecordApi,
    ReadApi,
    LeaderEpochApi,
    ClusterApi,
    PartitionApi,
    SplitApi,
    HalvingApi,
    ConfigApi,
    ZoneSecretApi,
    ClusterFacts,
    ControllerApi,
    GroupApi,
    ShareGroupApi,
    ShareStateApi,
    TransactionApi,
    OutcomeApi,
    JobApi,
    ReadPinApi,
    QuotaUseApi,
    RetentionApi,
    RestoreApi,
    CompactionApi,
    CleaningApi,
    DamageApi,
    SegmentApi,
    SegmentCleanupApi,
    AuditArchiveApi,
    FileApi,
    RebuildApi,
    HousekeepingApi,
    ClientRowsApi,
    JobReports,
    FileReports,
    PartitionReports,
    AgentLeaseApi,
    SegmentLogApi,
    LifeApi,
    StandbyApi,
    BucketApi,
    SettingsApi,
    Protocol,
):
    """Every operation, and the connections under them."""

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
