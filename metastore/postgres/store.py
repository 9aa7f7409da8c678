"""PostgresMetastore: metastore/api.py on Postgres, each operation in the module of its path.

Place: opened once per process by whoever composes it; everything else sees `metastore.api` only.
Invariant: no state but the connection pool and the facts that never change in a cluster's life.
If the process dies, nothing of it is left in Postgres but committed rows.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Self

from headrace.config.settings import Settings
from headrace.metastore.log.image import MetadataImage
from headrace.metastore.log.records import MetadataRecord
from headrace.metastore.log.replay import ImageBuilder
from headrace.metastore.log.snapshot import load_snapshot
from headrace.metastore.postgres import cluster, commit, controller, extents, feed, producer_ids
from headrace.metastore.postgres.agent_leases import PostgresAgentLeases
from headrace.metastore.postgres.compaction import PostgresCompaction
from headrace.metastore.postgres.configs import PostgresConfigs
from headrace.metastore.postgres.files import PostgresFiles
from headrace.metastore.postgres.groups import PostgresGroups
from headrace.metastore.postgres.jobs import PostgresJobs
from headrace.metastore.postgres.leader_epochs import PostgresLeaderEpochs
from headrace.metastore.postgres.migrate import MIGRATIONS
from headrace.metastore.postgres.partitions import PostgresPartitions
from headrace.metastore.postgres.pool import open_pool
from headrace.metastore.postgres.retention import PostgresRetention
from headrace.metastore.postgres.sql_files import sql_files
from headrace.metastore.postgres.statement import Pool, Statement
from headrace.metastore.postgres.zone_secret import PostgresZoneSecret
from headrace.metastore.values import (
    AgentRegistration,
    ControllerLease,
    ExtentQuery,
    FeedPage,
    FileAnswer,
    FileCommit,
    HeartbeatAnswer,
    NewTopic,
    OffsetAnswer,
    OffsetQuery,
    PartitionExtents,
    RegisteredAgent,
    SnapshotState,
    StoredSnapshot,
)
from headrace.storage.errors import InvalidError

_DESCRIBE_CLUSTER = Statement("describe_cluster", writes=False)


class PostgresMetastore(
    PostgresGroups,
    PostgresPartitions,
    PostgresLeaderEpochs,
    PostgresZoneSecret,
    PostgresJobs,
    PostgresRetention,
    PostgresCompaction,
    PostgresFiles,
    PostgresAgentLeases,
    PostgresConfigs,
):
    """Implements metastore.api.Metastore; make it with `open`."""

    def __init__(
        self, pool: Pool, settings: Settings, cluster_id: str, incarnation_id: uuid.UUID, commit_shards: int
    ) -> None:
        self.pool = pool
        self.settings = settings
        self.cluster_id = cluster_id
        self.incarnation_id = incarnation_id
        self.commit_shards = commit_shards

    @classmethod
    async def open(cls, url: str, settings: Settings) -> Self:
        """Connect to a migrated database.

        InvalidError when it lacks migrations of this version; UnavailableError when it is not there.
        """
        pool = await open_pool(url, settings)
        try:
            return cls(pool, settings, *await _describe_cluster(pool))
        except BaseException:
            await pool.close()
            raise

    async def close(self) -> None:
        """Close the connections; calls in flight fail."""
        await self.pool.close()

    async def keep_connections(self, count: int) -> None:
        """As many as metastore.pool.size said until now; those in use end with their call."""
        await self.pool.resize(count, count)

    async def load_image(self) -> MetadataImage:
        """The cluster as of the log's head, for tools; an agent follows the log instead."""
        newest = await self.newest_snapshot()
        builder = ImageBuilder(MetadataImage() if newest is None else load_snapshot(newest.data))
        while records := await self.read_metadata(builder.offset):
            builder.add(records)
        return builder.finish()

    # -- the commit

    async def commit_files(self, node_id: int, broker_epoch: int, files: Sequence[FileCommit]) -> list[FileAnswer]:
        return await commit.commit_files(
            self.pool,
            node_id,
            broker_epoch,
            files,
            producer_id_expiration_ms=self.settings.producer_id_expiration_ms,
        )

    async def allocate_producer_ids(self, count: int) -> range:
        return await producer_ids.allocate_producer_ids(self.pool, count)

    # -- reads

    async def find_extents(self, queries: Sequence[ExtentQuery]) -> list[PartitionExtents]:
        return await extents.find_extents(self.pool, queries)

    async def list_offsets(self, queries: Sequence[OffsetQuery]) -> list[OffsetAnswer]:
        return await extents.list_offsets(self.pool, queries)

    async def poll_feed(self, positions: Mapping[int, int]) -> FeedPage:
        return await feed.poll_feed(self.pool, positions)

    # -- housekeeping, in chunks; any agent may call them at any time

    async def rotate_log_slots(self) -> str | None:
        """Empty a slot of the feed or of the answers whose turn is near; its name. Every few seconds."""
        return await feed.rotate_log_slots(self.pool)

    async def expire_producer_state(self, limit: int) -> int:
        """Forget up to `limit` producers unheard of for producer.id.expiration.ms; how many."""
        return await producer_ids.expire_producer_state(self.pool, self.settings.producer_id_expiration_ms, limit)

    async def purge_deleted_partitions(self, limit: int) -> int:
        """Remove up to `limit` rows of each kind that a deleted partition left; 0 when nothing is left to do."""
        return await extents.purge_deleted_partitions(self.pool, limit)

    # -- the metadata log, topics, agents

    async def metadata_head(self) -> int:
        return await cluster.metadata_head(self.pool)

    async def read_metadata(self, start_offset: int, limit: int = 10_000) -> list[bytes]:
        return await cluster.read_metadata(self.pool, start_offset, limit)

    async def metadata_log_start(self) -> int:
        return await cluster.metadata_log_start(self.pool)

    async def append_records(
        self, expected_head: int, records: Sequence[MetadataRecord], *, controller_epoch: int | None = None
    ) -> bool:
        return await cluster.append_records(self.pool, expected_head, records, controller_epoch)

    async def create_topics(self, expected_head: int, topics: Sequence[NewTopic]) -> bool:
        return await cluster.create_topics(self.pool, expected_head, topics)

    async def delete_topics(self, expected_head: int, topic_ids: Sequence[uuid.UUID]) -> bool:
        return await cluster.delete_topics(self.pool, expected_head, topic_ids)

    async def register_agent(self, registration: AgentRegistration) -> RegisteredAgent:
        return await cluster.register_agent(self.pool, registration, self.settings.broker_session_timeout_ms)

    async def heartbeat(
        self,
        node_id: int,
        broker_epoch: int,
        *,
        metadata_offset: int,
        want_fence: bool,
        want_shut_down: bool = False,
        session_timeout_ms: int,
    ) -> HeartbeatAnswer:
        return await cluster.heartbeat(
            self.pool,
            node_id,
            broker_epoch,
            metadata_offset=metadata_offset,
            want_fence=want_fence,
            want_shut_down=want_shut_down,
            session_timeout_ms=session_timeout_ms,
            max_lag=self.settings.metadata_max_lag_records,
        )

    async def unregister_agent(self, node_id: int, broker_epoch: int) -> None:
        await cluster.unregister_agent(self.pool, node_id, broker_epoch)

    # -- the active controller

    async def newest_snapshot(self) -> StoredSnapshot | None:
        return await controller.newest_snapshot(self.pool)

    async def hold_controller_lease(
        self, controller_id: int, incarnation_id: uuid.UUID, lease_ms: int
    ) -> ControllerLease:
        return await controller.hold_controller_lease(self.pool, controller_id, incarnation_id, lease_ms)

    async def describe_controller(self) -> ControllerLease | None:
        return await controller.describe_controller(self.pool)

    async def resign_controller(self, controller_epoch: int) -> None:
        await controller.resign_controller(self.pool, controller_epoch)

    async def fence_silent_agents(self, controller_epoch: int, *, session_timeout_ms: int) -> list[int]:
        return await controller.fence_silent_agents(self.pool, controller_epoch, session_timeout_ms)

    async def snapshot_state(self) -> SnapshotState:
        return await controller.snapshot_state(self.pool)

    async def save_snapshot(self, controller_epoch: int, snapshot: StoredSnapshot) -> None:
        await controller.save_snapshot(self.pool, controller_epoch, snapshot)

    async def truncate_metadata(self, controller_epoch: int, limit: int) -> int:
        return await controller.truncate_metadata(self.pool, controller_epoch, limit)


async def _describe_cluster(pool: Pool) -> tuple[str, uuid.UUID, int]:
    """(cluster id, incarnation id, commit shards); InvalidError unless every migration of this version is in."""
    rows = await _DESCRIBE_CLUSTER.rows(pool)
    recorded = rows[0][3] if rows else []
    missing = [file.name for file in sql_files(MIGRATIONS) if file.name not in recorded]
    if missing:
        raise InvalidError(
            "database lacks migrations: run `headrace migrate`, or the version of the agents that use it:"
            f" missing={','.join(missing)}"
        )
    return rows[0][0], rows[0][1], rows[0][2]
