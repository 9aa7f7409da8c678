"""The interfaces of metastore/api over the model of remote segments: what workers, janitor and cleanup call.

Place: contract tests and the simulation. Invariant: each call is one statement; nothing is decided here.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence

from headrace.compactor.permit import FILE_DELETE_DELAY
from headrace.metastore.api.compaction import LiveExtents, NewFile, Swap, SwapOutcome
from headrace.metastore.api.files import DeadFile, JanitorState
from headrace.metastore.api.inline import InlineRange
from headrace.metastore.api.jobs import JobToken
from headrace.metastore.api.retention import LogStartAnswer, LogStartTarget
from headrace.metastore.api.segments import NewSegment, StartOutcome
from headrace.storage.errors import FencedError
from tests.compactor.model_api import ModelCompactionApi
from tests.model.segment_end_model import ModelLifecycle


class LifecycleApi(ModelCompactionApi):
    """CompactionApi, SegmentApi, and FileApi with file.delete.delay.ms 0."""

    def __init__(self, model: ModelLifecycle) -> None:
        super().__init__(model)
        self.lifecycle = model
        self.generation = 0

    async def live_extents(self, file_ids: Sequence[uuid.UUID]) -> LiveExtents:
        """See metastore.api.compaction.CompactionApi."""
        found = await super().live_extents(file_ids)
        topics = [self.lifecycle.partition_of(live.partition_key).topic_id for live in found.partitions]
        live = [live._replace(topic_id=topic_id) for live, topic_id in zip(found.partitions, topics, strict=True)]
        return found._replace(partitions=live)

    async def start_segments(
        self, token: JobToken, file_id: uuid.UUID, level: int, segments: Sequence[NewSegment]
    ) -> StartOutcome:
        """See metastore.api.segments.SegmentApi."""
        return self.lifecycle.start(token, file_id, segments)

    async def reserve_files(self, token: JobToken, file_ids: Sequence[uuid.UUID], level: int) -> bool:
        """See metastore.api.segments.SegmentApi."""
        self.lifecycle.reserve(token, file_ids)
        return True

    async def start_reserved_segments(
        self, token: JobToken, file_id: uuid.UUID, level: int, segments: Sequence[NewSegment]
    ) -> StartOutcome:
        """See metastore.api.segments.SegmentApi."""
        return self.lifecycle.start_reserved(token, file_id, segments)

    async def finish_lost_upload(self, token: JobToken, file_id: uuid.UUID) -> int:
        """See metastore.api.segments.SegmentApi."""
        return self.lifecycle.finish_lost(token, file_id)

    async def swap_extents(self, token: JobToken, file: NewFile, swaps: Sequence[Swap]) -> list[SwapOutcome]:
        """See metastore.api.compaction.CompactionApi."""
        outcomes, new = self.lifecycle.swap(token, file.file_id, swaps)
        self.model.announce_swaps(new)
        return outcomes

    async def read_inline(self, ranges: Sequence[InlineRange]) -> list[bytes | None]:
        """See metastore.api.inline.InlineApi."""
        return await self.model.read_inline(ranges)

    async def move_log_starts(self, targets: Sequence[LogStartTarget], *, max_extents: int) -> list[LogStartAnswer]:
        """See metastore.api.retention.RetentionApi."""
        return await self.model.move_log_starts(targets, max_extents=max_extents)

    # -- the ends of keys

    async def release_segments(self, token: JobToken, incarnation_id: uuid.UUID, *, limit: int) -> int:
        """See metastore.api.segments.SegmentApi."""
        self._assert_janitor(token, incarnation_id)
        now_ms = self.model.clock.wall_ms()
        return self.lifecycle.release(min(now_ms, self.lifecycle.read_horizon(token.job_id)), limit)

    async def tombstone_segments(self, limit: int) -> int:
        """See metastore.api.segments.SegmentApi."""
        return self.lifecycle.tombstone(limit)

    async def end_orphaned_segments(self, token: JobToken, limit: int) -> int:
        """See metastore.api.segments.SegmentApi."""
        return self.lifecycle.end_orphans(token, limit)

    async def end_unused_reservations(self, token: JobToken, limit: int) -> int:
        """See metastore.api.segments.SegmentApi."""
        return self.lifecycle.end_reservations(token, limit)

    async def finish_partition_deletes(self, limit: int) -> int:
        """See metastore.api.segments.SegmentApi."""
        return self.lifecycle.finish_partitions(limit)

    async def remove_tombstones(self, token: JobToken, *, older_than_ms: int, limit: int) -> int:
        """See metastore.api.segments.SegmentApi."""
        return self.lifecycle.remove_old_tombstones(token, older_than_ms, limit)

    async def trim_audit(self, token: JobToken, *, older_than_ms: int, limit: int) -> int:
        """See metastore.api.segments.SegmentApi."""
        return self.lifecycle.trim(token, older_than_ms, limit)

    async def key_merged_file(self, token: JobToken) -> int:
        """Give a merged file its keys: at level 1 from its start, the model has no merged file without keys."""
        self.lifecycle.assert_job(token)
        return 0

    # -- FileApi, ClusterApi

    async def cluster_configs(self) -> dict[str, str]:
        """See metastore.api.cluster.ClusterApi."""
        return {FILE_DELETE_DELAY: "0"}

    async def janitor_state(self) -> JanitorState:
        """See metastore.api.files.FileApi."""
        return JanitorState(self.model.incarnation_id, self.generation)

    async def begin_generation(self, token: JobToken, incarnation_id: uuid.UUID) -> int:
        """See metastore.api.files.FileApi."""
        self._assert_janitor(token, incarnation_id)
        self.generation += 1
        return self.generation

    async def take_dead_files(self, token: JobToken, incarnation_id: uuid.UUID, *, limit: int) -> list[DeadFile]:
        """See metastore.api.files.FileApi."""
        self._assert_janitor(token, incarnation_id)
        pinned_ms = min(self.model.clock.wall_ms(), self.lifecycle.read_horizon(token.job_id))
        taken = self.lifecycle.take_dead_files(pinned_ms=pinned_ms)
        return [DeadFile(file_id, 0, condemned) for file_id, condemned in taken[:limit]]

    async def drop_files(self, token: JobToken, file_ids: Sequence[uuid.UUID]) -> int:
        """See metastore.api.files.FileApi."""
        self.lifecycle.assert_job(token)
        return self.lifecycle.drop_files(file_ids)

    async def set_aside_files(self, token: JobToken, delays_ms: Mapping[uuid.UUID, int]) -> None:
        """The next run gets them again."""
        self.lifecycle.assert_job(token)

    def _assert_janitor(self, token: JobToken, incarnation_id: uuid.UUID) -> None:
        self.lifecycle.assert_job(token)
        if incarnation_id != self.model.incarnation_id:
            raise FencedError("the metastore has another incarnation")
