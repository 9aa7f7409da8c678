"""Remote segments in Postgres: implements metastore.api.segments.SegmentApi and SegmentCleanupApi.

Place: under the compactor's workers, its janitor and its cleanup of segments.
Invariant: each call is one statement. What a lease does is fenced by it; tombstones and the ends of partitions follow
from what is recorded, so any process may repeat them.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence

import numpy as np

from headrace.metastore.api.jobs import JobToken
from headrace.metastore.api.segments import NewSegment, StartOutcome
from headrace.metastore.postgres.packing import PackedArray, pack_int4, pack_int8, pack_uuids
from headrace.metastore.postgres.statement import Pool, Statement
from headrace.storage.file_id import born_ms

_START_SEGMENTS = Statement("start_segments", writes=True)
_RESERVE_FILES = Statement("reserve_files", writes=True)
_START_RESERVED_SEGMENTS = Statement("start_reserved_segments", writes=True)
_FINISH_LOST_UPLOAD = Statement("finish_lost_upload", writes=True)
_RELEASE_DUE_SEGMENTS = Statement("release_due_segments", writes=True)
_TOMBSTONE_SEGMENTS = Statement("tombstone_segments", writes=True)
_END_ORPHANED_SEGMENTS = Statement("end_orphaned_segments", writes=True)
_END_UNUSED_RESERVATIONS = Statement("end_unused_reservations", writes=True)
_FINISH_PARTITION_DELETES = Statement("finish_partition_deletes", writes=True)
_REMOVE_TOMBSTONES = Statement("remove_tombstones", writes=True)
_TRIM_AUDIT = Statement("trim_audit", writes=True)
_KEY_MERGED_FILE = Statement("key_merged_file", writes=True)


class PostgresSegments:
    """Implements SegmentApi and SegmentCleanupApi."""

    pool: Pool

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

    async def reserve_files(self, token: JobToken, file_ids: Sequence[uuid.UUID], level: int) -> bool:
        (is_keyed,) = await _RESERVE_FILES.row(
            self.pool, job_id=token.job_id, epoch=token.epoch, level=level, files=pack_uuids(file_ids)
        )
        return bool(is_keyed)

    async def start_reserved_segments(
        self, token: JobToken, file_id: uuid.UUID, level: int, segments: Sequence[NewSegment]
    ) -> StartOutcome:
        (outcome,) = await _START_RESERVED_SEGMENTS.row(
            self.pool, job_id=token.job_id, epoch=token.epoch, file_id=file_id, level=level, **_columns(segments)
        )
        return StartOutcome(outcome)

    async def finish_lost_upload(self, token: JobToken, file_id: uuid.UUID) -> int:
        (keys,) = await _FINISH_LOST_UPLOAD.row(self.pool, job_id=token.job_id, epoch=token.epoch, file_id=file_id)
        return int(keys)

    async def release_segments(self, token: JobToken, incarnation_id: uuid.UUID, *, limit: int) -> int:
        (keys,) = await _RELEASE_DUE_SEGMENTS.row(
            self.pool, job_id=token.job_id, epoch=token.epoch, incarnation_id=incarnation_id, limit=limit
        )
        return int(keys)

    async def tombstone_segments(self, limit: int) -> int:
        (keys,) = await _TOMBSTONE_SEGMENTS.row(self.pool, limit=limit)
        return int(keys)

    async def end_orphaned_segments(self, token: JobToken, limit: int) -> int:
        (keys,) = await _END_ORPHANED_SEGMENTS.row(self.pool, job_id=token.job_id, epoch=token.epoch, limit=limit)
        return int(keys)

    async def end_unused_reservations(self, token: JobToken, limit: int) -> int:
        (files,) = await _END_UNUSED_RESERVATIONS.row(self.pool, job_id=token.job_id, epoch=token.epoch, limit=limit)
        return int(files)

    async def finish_partition_deletes(self, limit: int) -> int:
        (markers,) = await _FINISH_PARTITION_DELETES.row(self.pool, limit=limit)
        return int(markers)

    async def remove_tombstones(self, token: JobToken, *, older_than_ms: int, limit: int) -> int:
        (rows,) = await _REMOVE_TOMBSTONES.row(
            self.pool, job_id=token.job_id, epoch=token.epoch, age_ms=older_than_ms, limit=limit
        )
        return int(rows)

    async def trim_audit(self, token: JobToken, *, older_than_ms: int, limit: int) -> int:
        (records,) = await _TRIM_AUDIT.row(
            self.pool, job_id=token.job_id, epoch=token.epoch, age_ms=older_than_ms, limit=limit
        )
        return int(records)

    async def key_merged_file(self, token: JobToken) -> int:
        (segments,) = await _KEY_MERGED_FILE.row(self.pool, job_id=token.job_id, epoch=token.epoch)
        return int(segments)


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
