"""The metastore's boundary: every domain operation that agent, compactor and cli may ask for.

Place: between the stored file and the acknowledgement on the write path; before the first byte on
the read path. `metastore/postgres/` implements it; tests/ holds a reference model.
Invariant: each operation is one statement or one short server-side transaction; no lock outlives
the statement, so a caller that dies or stops in mid-call holds up nobody.
Errors, for every operation: UnavailableError (it did not happen), OutcomeUnknownError (its answer
was lost; repeat the same call), InvalidError (a bug of the caller). Expected refusals are values.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Protocol

from headrace.metastore.agent_leases import AgentLeaseApi
from headrace.metastore.compaction import CompactionApi
from headrace.metastore.configs import ConfigApi
from headrace.metastore.files import FileApi
from headrace.metastore.groups import GroupApi
from headrace.metastore.jobs import JobApi
from headrace.metastore.leader_epochs import LeaderEpochApi
from headrace.metastore.log.records import MetadataRecord
from headrace.metastore.partitions import PartitionApi
from headrace.metastore.retention import RetentionApi
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
from headrace.metastore.zone_secret import ZoneSecretApi


class CommitApi(Protocol):
    """The heart: order, offsets, duplicates."""

    async def commit_files(self, node_id: int, broker_epoch: int, files: Sequence[FileCommit]) -> list[FileAnswer]:
        """Order the files' batches, in the given order; one answer per file.

        Idempotent by file id: the same file again gets the answer it got first. Readers see all of
        a call's appended batches at once.
        """

    async def allocate_producer_ids(self, count: int) -> range:
        """A block of producer ids that nobody else ever gets."""


class ReadApi(Protocol):
    """What a reader must know; always from the primary."""

    async def find_extents(self, queries: Sequence[ExtentQuery]) -> list[PartitionExtents]:
        """One answer per query, in order; O(result), whatever the history."""

    async def list_offsets(self, queries: Sequence[OffsetQuery]) -> list[OffsetAnswer]:
        """One answer per query, in order; O(log n) each."""

    async def poll_feed(self, positions: Mapping[int, int]) -> FeedPage:
        """Everything that changed a reader's view after `positions` (shard -> last seq seen)."""


class ClusterApi(Protocol):
    """The metadata log and what is appended to it (C1, C4, C5, C8)."""

    async def metadata_head(self) -> int:
        """The next offset of the metadata log."""

    async def metadata_log_start(self) -> int:
        """The lowest offset that read_metadata still answers."""

    async def read_metadata(self, start_offset: int, limit: int = 10_000) -> list[bytes]:
        """Framed records from `start_offset` on, gap-free; empty at the head.

        TruncatedError below metadata_log_start: start from the newest snapshot.
        """

    async def newest_snapshot(self) -> StoredSnapshot | None:
        """The newest snapshot; the record below its end and all after it are still in the log. None: there is none."""

    async def append_records(
        self, expected_head: int, records: Sequence[MetadataRecord], *, controller_epoch: int | None = None
    ) -> bool:
        """Append records that have no operation of their own, judged against the image at `expected_head`.

        For configs, access control, SCRAM credentials, delegation tokens, quotas, failed replicas, feature
        levels and partition changes, and the removals of these. False, and nothing happened, when the log's head
        is another. InvalidError for another type, and for one that the active metadata.format lacks.
        `controller_epoch`: FencedError unless it is still the active controller's.
        """

    async def create_topics(self, expected_head: int, topics: Sequence[NewTopic]) -> bool:
        """Append TopicRecord, PartitionRecords and ConfigRecords, and their projection, in one transaction.

        False, and nothing happened, when the log's head is not `expected_head` (catch up and judge again).
        """

    async def delete_topics(self, expected_head: int, topic_ids: Sequence[uuid.UUID]) -> bool:
        """Append RemoveTopicRecords; from then on a commit answers UNKNOWN_PARTITION. Same contract as above."""

    async def register_agent(self, registration: AgentRegistration) -> RegisteredAgent:
        """Register fenced, under a broker epoch higher than any before. Idempotent by incarnation id.

        AlreadyExistsError while another incarnation holds the node id: until one session timeout after
        its last contact, and after an outage of the metastore until one session timeout has passed.
        WrongClusterError for another cluster's id; UnsupportedFeatureError when an active feature level
        lies outside `registration.features`.
        """

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
        """Renew the lease; fence or unfence the agent, or begin its controlled shutdown, as it wants.

        `metadata_offset`: of its image, the next offset that it has not applied. It is unfenced only when
        caught up. With `want_shut_down` it drops out of routing but may still commit; once every other
        live agent knows, it is told to go. FencedError for a stale epoch: register again.
        """

    async def unregister_agent(self, node_id: int, broker_epoch: int) -> None:
        """Leave at once (a clean stop). A stale epoch is ignored."""


class ControllerApi(Protocol):
    """The active controller: one lease, and what only its holder may do (C15).

    Every action takes the holder's epoch and answers FencedError once somebody else took the lease over.
    """

    async def hold_controller_lease(
        self, controller_id: int, incarnation_id: uuid.UUID, lease_ms: int
    ) -> ControllerLease:
        """Renew the lease if `incarnation_id` holds it, take it over if it ran out; who holds it now.

        Idempotent: who holds it already gets the same epoch again. A new holder's epoch is higher than any before.
        """

    async def describe_controller(self) -> ControllerLease | None:
        """Who holds the lease (`is_own` False); None while nobody does."""

    async def resign_controller(self, controller_epoch: int) -> None:
        """Let a standby take over at once. A stale epoch is ignored."""

    async def fence_silent_agents(self, controller_epoch: int, *, session_timeout_ms: int) -> list[int]:
        """Fence every agent whose lease ran out; their node ids. After an outage nobody for one session timeout."""

    async def snapshot_state(self) -> SnapshotState:
        """How much log the newest snapshot leaves; scans that part of the log."""

    async def save_snapshot(self, controller_epoch: int, snapshot: StoredSnapshot) -> None:
        """Keep it and the one before it; older ones go. Idempotent by end offset."""

    async def truncate_metadata(self, controller_epoch: int, limit: int) -> int:
        """Drop up to `limit` records below the oldest kept snapshot; how many. Nothing while there is one snapshot."""


class Metastore(
    CommitApi,
    ReadApi,
    ClusterApi,
    ControllerApi,
    GroupApi,
    JobApi,
    RetentionApi,
    PartitionApi,
    LeaderEpochApi,
    ZoneSecretApi,
    CompactionApi,
    FileApi,
    AgentLeaseApi,
    ConfigApi,
    Protocol,
):
    """The whole boundary."""

    async def close(self) -> None:
        """Close the connections; calls in flight fail."""
