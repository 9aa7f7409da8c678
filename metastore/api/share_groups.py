"""The durable part of share groups: what each has done with the records of each partition.

Place: values of GroupApi, which has the group's claim and members, too; under agent/groups/share.
Invariant: every write names the claim's epoch, so a successor's claim fences it. The whole state of a partition is
written each time, under a revision: to repeat a write with an unknown outcome is harmless, and one that arrives after a
later one stores nothing.
"""

from __future__ import annotations

from typing import NamedTuple

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
