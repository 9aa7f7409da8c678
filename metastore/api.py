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

from metastore.values import (
    AgentRegistration,
    CommittedOffset,
    ExtentQuery,
    FeedPage,
    FileAnswer,
    FileCommit,
    NewTopic,
    OffsetAnswer,
    OffsetQuery,
    PartitionExtents,
    RegisteredAgent,
)


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

    async def read_metadata(self, start_offset: int, limit: int = 10_000) -> list[bytes]:
        """Framed records from `start_offset` on, gap-free; empty at the head."""

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
        """

    async def heartbeat(self, node_id: int, broker_epoch: int, *, want_fence: bool, session_timeout_ms: int) -> bool:
        """Renew the lease, and fence every agent whose own lease ran out. True while this agent is unfenced.

        FencedError for a stale epoch: register again.
        """

    async def unregister_agent(self, node_id: int, broker_epoch: int) -> None:
        """Leave at once (a clean stop). A stale epoch is ignored."""


class GroupApi(Protocol):
    """Consumer groups' durable part. `coordinator_epoch` fences an old coordinator's writes."""

    async def claim_group(self, group_id: str, node_id: int, broker_epoch: int) -> tuple[int, bytes]:
        """Become the group's coordinator: (a higher coordinator epoch, the state that was saved last or b"").

        FencedError unless the agent is registered under this epoch and unfenced.
        """

    async def save_group(self, group_id: str, coordinator_epoch: int, state: bytes) -> None:
        """Replace the saved state. FencedError when somebody claimed the group since."""

    async def commit_offsets(
        self, group_id: str, coordinator_epoch: int | None, offsets: Sequence[CommittedOffset]
    ) -> list[bool]:
        """Store positions, all in one transaction; False for a partition that is gone.

        `coordinator_epoch` None: a commit without a generation (a consumer that assigns itself).
        """

    async def fetch_offsets(self, group_id: str, partition_keys: Sequence[int] | None) -> list[CommittedOffset]:
        """Stored positions of the asked partitions (all when None); those without one are left out."""


class Metastore(CommitApi, ReadApi, ClusterApi, GroupApi, Protocol):
    """The whole boundary."""

    async def close(self) -> None:
        """Close the connections; calls in flight fail."""
