"""Groups of all kinds: their coordinators, saved state, committed offsets, what share groups have done.

Place: under agent/groups.
Invariant of share groups: every write names the claim's epoch, so a successor's claim fences it. The whole state of
a partition is written each time, under a revision: to repeat a write with an unknown outcome is harmless, and one
that arrives after a later one stores nothing.
Invariant: a group has at most one holder, and no other agent can claim it while the holder is a live agent that has
not released it. Every write names the claim's epoch, which no other claim ever gets. So an answer from the holder's
memory, or a write of it, cannot conflict with those of its successor.
If the holder crashes, the group is free after its lease expired (claim_group.sql).
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from headrace.metastore.share_states import GroupProgress


class StoredSharePartition(NamedTuple):
    """`start_offset`: every record before it is done. `kept`: the coordinator's own, about those from it on."""

    partition_key: int
    start_offset: int
    kept: bytes


class LoadedSharePartition(NamedTuple):
    """`high_watermark`: of the same snapshot; what is known of records from it on is of a life that is over.
    `begun_offset`: the lowest offset at which the group began."""

    partition_key: int
    start_offset: int
    kept: bytes
    high_watermark: int
    begun_offset: int = 0


class ShareState(NamedTuple):
    """What a share group has done in one partition, as of a stored write. A later write has a larger
    (coordinator_epoch, revision).
    """

    group_id: str
    partition_key: int
    coordinator_epoch: int
    revision: int
    begun_offset: int
    start_offset: int
    kept: bytes

    @property
    def place(self) -> tuple[str, int]:
        """Group id and partition key."""
        return self.group_id, self.partition_key

    @property
    def progress(self) -> GroupProgress:
        """How far the group is."""
        return GroupProgress(self.start_offset, self.kept)


class StoredShareState(NamedTuple):
    """A row. `found`: what the life `found_life` of the metastore found there, if the row is older than that life."""

    state: ShareState
    found_life: int | None
    found: GroupProgress | None


class GroupKind(enum.Enum):
    """Kafka's group types, as its tools write them."""

    CLASSIC = "classic"
    CONSUMER = "consumer"
    SHARE = "share"
    STREAMS = "streams"


EMPTY = "Empty"


class GroupRecord(NamedTuple):
    """A group as it is stored."""

    kind: GroupKind
    state: str
    """Kafka's name of it. EMPTY starts the retention of the group's offsets; any other state stops it."""
    protocol_type: str
    subscribed: tuple[str, ...] | None
    """Names of the topics that the members consume; their offsets stay. None: not known, all stay."""
    data: bytes
    """The coordinator's own; agent/groups/classic/saved.py."""

    @property
    def is_empty(self) -> bool:
        """Return whether it has no members."""
        return self.state == EMPTY


class GroupClaim(NamedTuple):
    """What a new coordinator gets; `record` None: nothing was ever saved."""

    coordinator_epoch: int
    record: GroupRecord | None


class GroupListing(NamedTuple):
    """A group that has been saved or has offsets, as of its last save."""

    group_id: str
    kind: GroupKind
    state: str
    protocol_type: str


class CommittedOffset(NamedTuple):
    """A consumer group's committed offset in one partition. `metadata` is the client's text, unchanged."""

    partition_key: int
    offset: int
    leader_epoch: int
    metadata: str
    is_pending: bool = False
    """Whether an open transaction is about to commit another one. Then `offset` is -1 if none is committed."""


class ParentPosition(NamedTuple):
    """Position of a group in a partition that is split in two (metastore/partitions/splitting.py).

    `committed`: None without a stored offset. `child_begins`: where the group has to begin in the child, below which
    are records of an earlier life of it; None if there are none, or if the group has an offset there.
    """

    parent_key: int
    log_start: int
    committed: int | None
    child_begins: int | None = None


class GroupApi(Protocol):
    """Consumer groups' durable part. All that takes a `coordinator_epoch`: FencedError when it is not the group's."""

    async def claim_group(self, group_id: str, node_id: int, broker_epoch: int) -> GroupClaim | None:
        """Become the group's coordinator, under an epoch higher than any before.

        None while another live agent holds it. FencedError unless the agent is registered under this
        epoch and unfenced. To claim again is harmless.
        """

    async def release_groups(self, claims: Mapping[str, int]) -> None:
        """Release groups (id -> coordinator epoch), so that other agents may claim them.

        One with nothing in it is forgotten. A stale epoch is ignored.
        """

    async def save_group(self, group_id: str, coordinator_epoch: int, record: GroupRecord) -> None:
        """Replace what was saved."""

    async def delete_group(self, group_id: str, coordinator_epoch: int) -> bool:
        """Remove the group and its offsets; False when there was nothing of it."""

    async def list_groups(self, group_ids: Sequence[str] | None = None) -> list[GroupListing]:
        """The groups that there are, of those asked for or of all; O(groups)."""

    async def commit_offsets(
        self, group_id: str, coordinator_epoch: int, offsets: Sequence[CommittedOffset]
    ) -> list[bool]:
        """Store offsets, all in one transaction; False for a partition that is gone."""

    async def fetch_offsets(self, group_id: str, partition_keys: Sequence[int] | None) -> list[CommittedOffset]:
        """Return stored offsets of the asked partitions (None: of all). A partition that has neither a stored nor a
        pending offset is left out.
        """

    async def parent_positions(self, group_id: str, parent_keys: Sequence[int]) -> list[ParentPosition]:
        """Return the positions of the asked partitions that are there."""

    async def delete_offsets(self, group_id: str, coordinator_epoch: int, partition_keys: Sequence[int]) -> None:
        """Forget offsets, and what a share group has done in these partitions. What is not there is no error."""

    async def store_share_partitions(
        self, group_id: str, coordinator_epoch: int, revision: int, partitions: Sequence[StoredSharePartition]
    ) -> list[bool]:
        """Store partitions, all in one transaction; False for one that is gone. `revision` rises with each write under
        the epoch. FencedError also for an epoch of an earlier life of the metastore.
        """

    async def load_share_partitions(self, group_id: str) -> list[LoadedSharePartition]:
        """Return the partitions that are there, from the primary, by key."""

    async def share_states(self, after: tuple[str, int], most: int) -> list[StoredShareState]:
        """Return at most so many rows that follow this (group id, partition key), in order."""
