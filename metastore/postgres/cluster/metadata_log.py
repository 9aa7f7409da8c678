"""The metadata log: reading it, its newest snapshot, and appending records that have no separate operation.

Place: under every agent's follower and the admin requests; part of ClusterApi.
Invariant: an append is one call of one server-side function, which takes the log head's lock and writes
records and projection together: no reader sees one without the other (C1).
"""

from __future__ import annotations

from collections.abc import Sequence

from headrace.metastore.api.metadata_log import MetadataLogApi, MetadataRecord, StoredSnapshot
from headrace.metastore.log.features import required_format
from headrace.metastore.log.kip631_records import (
    AccessControlRecord,
    ConfigRecord,
    DelegationTokenRecord,
    FailedReplicasRecord,
    FeatureLevelRecord,
    PartitionChangeRecord,
    QuotaRecord,
    UserScramCredentialRecord,
)
from headrace.metastore.log.own_records import (
    DoubleTopicRecord,
    RemoveAccessControlRecord,
    RemoveDelegationTokenRecord,
    RemoveFeatureLevelRecord,
    RemoveUserScramCredentialRecord,
    UserScramKeysRecord,
)
from headrace.metastore.log.record_sizes import refuse_large
from headrace.metastore.log.records import encode_record
from headrace.metastore.postgres.pass_through import PostgresNoun, calls
from headrace.metastore.postgres.statement import Statement
from headrace.storage.errors import FencedError, InvalidError, TruncatedError

NO_CHANGE = -2
"""Leader of a PartitionChangeRecord that says nothing about it."""
_APPENDABLE = (
    PartitionChangeRecord,
    ConfigRecord,
    FeatureLevelRecord,
    RemoveFeatureLevelRecord,
    FailedReplicasRecord,
    AccessControlRecord,
    RemoveAccessControlRecord,
    UserScramCredentialRecord,
    UserScramKeysRecord,
    RemoveUserScramCredentialRecord,
    DelegationTokenRecord,
    RemoveDelegationTokenRecord,
    QuotaRecord,
    DoubleTopicRecord,
)

_READ_METADATA = Statement("read_metadata", writes=False)
_NEWEST_SNAPSHOT = Statement("newest_snapshot", writes=False)
_APPEND_RECORDS = Statement("append_records", writes=True)


class PostgresMetadataLog(PostgresNoun):
    """Reading and appending."""

    metadata_head = calls(MetadataLogApi.metadata_head, writes=False)
    metadata_log_start = calls(MetadataLogApi.metadata_log_start, writes=False)

    async def read_metadata(self, start_offset: int, limit: int = 10_000) -> list[bytes]:
        """Read up to `limit` framed records from `start_offset` on; TruncatedError when they are no
        longer kept.
        """
        rows = await _READ_METADATA.rows(self.pool, start_offset=start_offset, record_count=limit)
        if rows and rows[0][0] != start_offset:
            raise TruncatedError(
                f"metadata log starts later: start from a snapshot: asked={start_offset} kept={rows[0][0]}"
            )
        return [record for _, record in rows]

    async def newest_snapshot(self) -> StoredSnapshot | None:
        """Return None when there is none yet."""
        rows = await _NEWEST_SNAPSHOT.rows(self.pool)
        return StoredSnapshot(*rows[0]) if rows else None

    async def append_records(
        self, expected_head: int, records: Sequence[MetadataRecord], *, controller_epoch: int | None = None
    ) -> bool:
        """False when the head is not `expected_head`; InvalidError for a type that has a separate operation."""
        for record in records:
            _refuse_unprojected(record)
        refuse_large(records)
        changes = [record for record in records if isinstance(record, PartitionChangeRecord)]
        features = [record for record in records if isinstance(record, FeatureLevelRecord | RemoveFeatureLevelRecord)]
        levels = [record if isinstance(record, FeatureLevelRecord) else None for record in features]
        configs = [record for record in records if isinstance(record, ConfigRecord)]
        (appended,) = await _APPEND_RECORDS.row(
            self.pool,
            controller_epoch=controller_epoch,
            expected_head=expected_head,
            records=[encode_record(record) for record in records],
            format=required_format(records),
            topic_ids=[change.topic_id for change in changes],
            indexes=[change.partition_id for change in changes],
            feature_names=[feature.name for feature in features],
            feature_mins=[level and level.min_feature_level for level in levels],
            feature_maxs=[level and level.max_feature_level for level in levels],
            config_types=[config.resource_type for config in configs],
            config_resources=[config.resource_name for config in configs],
            config_names=[config.name for config in configs],
            config_values=[config.value for config in configs],
        )
        if appended is None:
            raise FencedError(f"controller epoch is stale: controller_epoch={controller_epoch}")
        return bool(appended)


def _refuse_unprojected(record: MetadataRecord) -> None:
    """The tables would no longer say what the log says."""
    moves_data = isinstance(record, PartitionChangeRecord) and (record.leader != NO_CHANGE or record.isr is not None)
    if not isinstance(record, _APPENDABLE) or moves_data:
        raise InvalidError(f"record cannot be appended by itself: record={record}")
