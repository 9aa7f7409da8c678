"""The durable part of share groups: what each has done with the records of each partition.

Place: under agent/groups/share, next to metastore/api/groups.py, which has the group's claim and members.
Invariant: every write names the claim's epoch, so a successor's claim fences it. The whole state of a partition is
written each time, under a revision: to repeat a write with an unknown outcome is harmless, and one that arrives after a
later one stores nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol


class StoredSharePartition(NamedTuple):
    """`start_offset`: every record before it is done. `kept`: the coordinator's own, about those from it on."""

    partition_key: int
    start_offset: int
    kept: bytes


class LoadedSharePartition(NamedTuple):
    """`high_watermark`: of the same snapshot; what is known of records from it on is of a life that is over."""

    partition_key: int
    start_offset: int
    kept: bytes
    high_watermark: int


class ShareGroupApi(Protocol):
    """What takes a `coordinator_epoch` raises FencedError when it is not the group's."""

    async def store_share_partitions(
        self, group_id: str, coordinator_epoch: int, revision: int, partitions: Sequence[StoredSharePartition]
    ) -> list[bool]:
        """Store partitions, all in one transaction; False for one that is gone. `revision` rises with each write under
        the epoch. FencedError also for an epoch of an earlier life of the metastore.
        """

    async def load_share_partitions(self, group_id: str) -> list[LoadedSharePartition]:
        """Return the partitions that are there, from the primary, by key."""

    async def delete_share_partitions(
        self, group_id: str, coordinator_epoch: int, partition_keys: Sequence[int]
    ) -> None:
        """Forget partitions. Those that are not there are no error."""
