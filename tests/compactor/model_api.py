"""CompactionApi over the reference model, for tests of compaction that need no Postgres.

Invariant: what is live and what a swap does is the model's word; leases are not judged here.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from headrace.metastore.api.compaction import LiveExtents, LivePartition, NewFile, Swap, SwapOutcome
from headrace.metastore.api.jobs import JobToken
from headrace.metastore.keys import split_partition_key
from headrace.storage.errors import NotFoundError
from tests.model.metastore_model import ModelMetastore


class ModelCompactionApi:
    """`compression_types` by partition key. A topic's id is made of its number, as fetch_world.py does."""

    def __init__(self, model: ModelMetastore) -> None:
        self.model = model
        self.compression_types: dict[int, str] = {}
        self.max_message_bytes: int | None = None

    async def live_extents(self, file_ids: Sequence[uuid.UUID]) -> LiveExtents:
        """See metastore.api.compaction.CompactionApi."""
        found = []
        for key, partition in sorted(self.model.partitions.items()):
            number, index = split_partition_key(key)
            extents = [extent for extent in partition.visible_extents if extent.file_id in file_ids]
            if extents:
                topic_id, compression_type = uuid.UUID(int=number << 64), self.compression_types.get(key, "")
                found.append(LivePartition(key, topic_id, index, compression_type, extents, self.max_message_bytes))
        return LiveExtents(self.model.clock.wall_ms(), found)

    async def swap_extents(self, token: JobToken, file: NewFile, swaps: Sequence[Swap]) -> list[SwapOutcome]:
        """See metastore.api.compaction.CompactionApi."""
        outcomes, new = self.model.decide_swaps(file.file_id, swaps)
        if outcomes is None:
            raise NotFoundError(f"file id is not to be had: file={file.file_id}")
        self.model.announce_swaps(new)
        return outcomes

    async def mark_unreadable(self, token: JobToken, file_ids: Sequence[uuid.UUID]) -> None:
        """There is no planner here."""
