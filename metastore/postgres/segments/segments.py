"""Remote segments in Postgres: implements metastore.api.segments.SegmentApi.

Place: under the compactor's workers, its janitor and its cleanup of segments.
Invariant: each call is one statement. What a lease does is fenced by it; tombstones and the ends of partitions follow
from what is recorded, so any process may repeat them.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence

import numpy as np

from headrace.metastore.api.jobs import JobToken
from headrace.metastore.api.segments import NewSegment, SegmentApi, StartOutcome
from headrace.metastore.postgres.packing import PackedArray, pack_int4, pack_int8, pack_uuids
from headrace.metastore.postgres.pass_through import PostgresNoun, calls
from headrace.metastore.postgres.statement import Statement
from headrace.storage.file_id import born_ms

_START_SEGMENTS = Statement("start_segments", writes=True)
_START_RESERVED_SEGMENTS = Statement("start_reserved_segments", writes=True)


class PostgresSegments(PostgresNoun):
    """Implements SegmentApi."""

    reserve_files = calls(SegmentApi.reserve_files, writes=True, files="file_ids")
    finish_lost_upload = calls(SegmentApi.finish_lost_upload, writes=True)
    release_segments = calls(SegmentApi.release_segments, "release_due_segments", writes=True)
    tombstone_segments = calls(SegmentApi.tombstone_segments, writes=True)
    end_orphaned_segments = calls(SegmentApi.end_orphaned_segments, writes=True)
    end_unused_reservations = calls(SegmentApi.end_unused_reservations, writes=True)
    finish_partition_deletes = calls(SegmentApi.finish_partition_deletes, writes=True)
    remove_tombstones = calls(SegmentApi.remove_tombstones, writes=True, age_ms="older_than_ms")
    trim_audit = calls(SegmentApi.trim_audit, writes=True, age_ms="older_than_ms")
    key_merged_file = calls(SegmentApi.key_merged_file, writes=True)

    async def start_segments(
        self, token: JobToken, file_id: uuid.UUID, level: int, segments: Sequence[NewSegment]
    ) -> StartOutcome:
        (outcome,) = await _START_SEGMENTS.row(
            self.pool,
            job_id=token.job_id,
            epoch=token.epoch,
            file_id=file_id,
            born_ms=born_ms(file_id),
            level=level,
            **_columns(segments),
        )
        return StartOutcome(outcome)

    async def start_reserved_segments(
        self, token: JobToken, file_id: uuid.UUID, level: int, segments: Sequence[NewSegment]
    ) -> StartOutcome:
        (outcome,) = await _START_RESERVED_SEGMENTS.row(
            self.pool, job_id=token.job_id, epoch=token.epoch, file_id=file_id, level=level, **_columns(segments)
        )
        return StartOutcome(outcome)


def _columns(segments: Sequence[NewSegment]) -> dict[str, PackedArray]:
    """The parameters that segments are, one element each."""
    columns = np.array([segment[1:] for segment in segments], dtype=np.int64).reshape(-1, 6).T
    keys, starts, ends, leader_epochs, times, sizes = columns
    return {
        "segment": pack_uuids([segment.segment_id for segment in segments]),
        "key": pack_int8(keys),
        "start": pack_int8(starts),
        "end": pack_int8(ends),
        "leader_epoch": pack_int4(leader_epochs),
        "time": pack_int8(times),
        "size": pack_int8(sizes),
    }
