"""The metadata log (KIP-631): reading it, and appending records that have no separate operation.

Place: under every agent's image of the cluster (agent/cluster/follower.py) and the admin requests.
Invariant: the log has no gaps, and its projection in tables changes in the same transaction.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, NamedTuple, Protocol


class MetadataRecord:
    """Base of all record types (metastore/log/kip631_records.py, own_records.py)."""

    __slots__ = ()
    record_type: ClassVar[int]


class StoredSnapshot(NamedTuple):
    """`data` is a whole snapshot file (metastore/log/snapshot.py) that replaces the log below `end_offset`."""

    end_offset: int
    data: bytes


class MetadataLogApi(Protocol):
    """Reading the log, and appending to it (C1)."""

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
        """Append records that have no separate operation, judged against the image at `expected_head`.

        For configs, access control, SCRAM credentials, delegation tokens, quotas, failed replicas, feature
        levels and partition changes, and the removals of these. False, and nothing happened, when the log's head
        is another. InvalidError for another type, and for one that the active metadata.format lacks.
        `controller_epoch`: FencedError unless it is still the active controller's.
        """
