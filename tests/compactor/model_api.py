"""CompactionApi over the reference model, for tests of compaction that need no Postgres.

Invariant: what is live and what a swap does is the model's word; leases are not judged here.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Sequence

from headrace.metastore.api.cleaning import CleanablePartition, CleanedPartition
from headrace.metastore.api.compaction import DamagedExtent, LiveExtents, LivePartition, NewFile, Swap, SwapOutcome
from headrace.metastore.api.jobs import JobToken
from headrace.metastore.api.segments import NewSegment, StartOutcome
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
        return self._swap(file, swaps)

    def _swap(self, file: NewFile, swaps: Sequence[Swap], closed: Collection[Swap] = ()) -> list[SwapOutcome]:
        outcomes, new = self.model.decide_swaps(file.file_id, swaps, closed)
        if outcomes is None:
            raise NotFoundError(f"file id is not to be had: file={file.file_id}")
        self.model.announce_swaps(new)
        return outcomes

    async def mark_damaged(self, token: JobToken, extents: Sequence[DamagedExtent]) -> None:
        """There is no planner here."""

    async def start_segments(
        self, token: JobToken, file_id: uuid.UUID, level: int, segments: Sequence[NewSegment]
    ) -> StartOutcome:
        """Files have no keys here."""
        return StartOutcome.KEYLESS

    async def reserve_files(self, token: JobToken, file_ids: Sequence[uuid.UUID], level: int) -> bool:
        """Files have no keys here."""
        return False

    async def start_reserved_segments(
        self, token: JobToken, file_id: uuid.UUID, level: int, segments: Sequence[NewSegment]
    ) -> StartOutcome:
        """Files have no keys here."""
        return StartOutcome.KEYLESS

    async def finish_lost_upload(self, token: JobToken, file_id: uuid.UUID) -> int:
        """Files have no keys here."""
        return 0


class ModelCleaningApi(ModelCompactionApi):
    """CleaningApi's part for jobs: this class knows how far partitions are rolled and cleaned."""

    def __init__(self, model: ModelMetastore) -> None:
        super().__init__(model)
        self.roll_offsets: dict[int, int] = {}
        self.cleaned_offsets: dict[int, int] = {}
        self.horizons: dict[int, int | None] = {}
        self.uncleanable: dict[int, str] = {}

    async def live_extents(self, file_ids: Sequence[uuid.UUID]) -> LiveExtents:
        """See metastore.api.compaction.CompactionApi."""
        found = await super().live_extents(file_ids)
        return found._replace(partitions=[self._bordered(live) for live in found.partitions])

    async def swap_extents(self, token: JobToken, file: NewFile, swaps: Sequence[Swap]) -> list[SwapOutcome]:
        """See metastore.api.compaction.CompactionApi: nothing joins what is cleaned and what is not."""
        closed = [swap for swap in swaps if any(i.last_offset + 1 == self._cleaned(swap) for i in swap.inputs[:-1])]
        return self._swap(file, swaps, closed)

    async def cleanable_extents(self, ends: Sequence[tuple[int, int]]) -> tuple[int, list[CleanablePartition]]:
        """See metastore.api.cleaning.CleaningApi."""
        found = []
        for key, end in ends:
            if (partition := self.model.partitions.get(key)) is not None:
                number, index = split_partition_key(key)
                most = min(end, self.roll_offsets.get(key, 0))
                extents = [extent for extent in partition.visible_extents if extent.last_offset < most]
                compression_type = self.compression_types.get(key, "")
                live = LivePartition(key, uuid.UUID(int=number << 64), index, compression_type, extents, None)
                cleaned_offset = self.cleaned_offsets.get(key, 0)
                found.append(CleanablePartition(self._rolled(live), cleaned_offset, partition.high_watermark))
        return self.model.clock.wall_ms(), found

    async def swap_cleaned_extents(
        self, token: JobToken, file: NewFile, swaps: Sequence[Swap], cleaned_offsets: Sequence[int]
    ) -> list[SwapOutcome]:
        """See metastore.api.cleaning.CleaningApi."""
        relied = zip(swaps, cleaned_offsets, strict=True)
        if any(self.cleaned_offsets.get(swap.partition_key, 0) < cleaned for swap, cleaned in relied):
            return [SwapOutcome.LOST] * len(swaps)
        return self._swap(file, swaps)

    async def finish_cleaning(self, token: JobToken, cleaned: CleanedPartition) -> bool:
        """See metastore.api.cleaning.CleaningApi."""
        key = cleaned.partition_key
        partition = self.model.partitions.get(key)
        if partition is None:
            return False
        live = {(e.last_offset, e.source) for e in partition.visible_extents if e.base_offset < cleaned.end}
        if live != {tuple(e) for e in cleaned.extents if e.last_offset >= partition.log_start_offset}:
            return False
        self.cleaned_offsets[key] = max(self.cleaned_offsets.get(key, 0), cleaned.end)
        self.horizons[key] = cleaned.horizon_ms
        return True

    async def mark_uncleanable(self, token: JobToken, partition_key: int, why: str) -> None:
        """See metastore.api.cleaning.CleaningApi."""
        self.uncleanable[partition_key] = why

    def _cleaned(self, swap: Swap) -> int:
        return self.cleaned_offsets.get(swap.partition_key, 0)

    def _bordered(self, live: LivePartition) -> LivePartition:
        return self._rolled(live)._replace(cleaned_offset=self.cleaned_offsets.get(live.partition_key, 0))

    def _rolled(self, live: LivePartition) -> LivePartition:
        return live._replace(roll_offset=self.roll_offsets.get(live.partition_key, 0))
