"""The reference model of what follows a deletion: released references, tombstones, orphans, delete markers.

Place: with segment_model.py; compared with release_segments.sql, clean_up_segments.sql and delete_partitions.sql.
Invariant: as there.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import groupby

from headrace.metastore.api.files import FileState
from headrace.metastore.api.jobs import JobState, JobToken
from headrace.metastore.api.segment_states import RemotePartitionDeleteState
from headrace.metastore.api.segments import ReferenceState, SegmentCause
from tests.model.segment_model import DELETE_FINISHED, DELETE_STARTED, FINISHED, STARTED, ModelWithSegments
from tests.model.segment_rows import SegmentRow

UNUSED_MS = 7_200_000
PINNED_MS = 60_000
READ_NO_FILE = ("table-upkeep", "table-orphans", "archive-audit-rows")
"""Kinds of jobs that are no read pins, up to the first blank."""
HELD, AWAITS, RELEASED = ReferenceState.HELD, ReferenceState.AWAITS_OBJECT, ReferenceState.RELEASED


class ModelLifecycle(ModelWithSegments):
    """All of it."""

    def read_horizon(self, janitor: int) -> int:
        """See read_horizon.sql."""
        now_ms = self.clock.wall_ms()
        pins = [
            (job.leased_ms or 0) - PINNED_MS
            for job in self.jobs.jobs
            if job.state is JobState.LEASED and job.period_ms is None and job.due_ms >= now_ms and job.job_id != janitor
            and job.kind.split(" ")[0] not in READ_NO_FILE
        ]  # fmt: skip
        return min(pins, default=1 << 62)

    def release(self, before_ms: int, limit: int) -> int:
        """See release_segments.sql."""
        due = [
            row
            for row in self.segments.values()
            if row.state is DELETE_STARTED and row.due_ms is not None and row.due_ms < before_ms
            and row.tombstoned_ms is None and row.reference is HELD
        ]  # fmt: skip
        due = sorted(due, key=lambda row: row.due_ms or 0)[:limit]
        tops: dict[tuple[uuid.UUID, int, int], int] = {}
        for row in due:
            tops[row.range] = max(row.key.epoch, tops.get(row.range, 0))
        spare = self.rows(
            lambda r: r.key.epoch <= tops.get(r.range, -1) and r.reference is HELD and r.live_extents == 0
            and r.tombstoned_ms is None and not self.is_leased(r)
            and (r.state is not DELETE_STARTED or (r.due_ms or 0) < before_ms)
        )  # fmt: skip
        for row in spare:
            row.reference = AWAITS
        for file_id, keys in Counter(row.file_id for row in spare).items():
            self._release_file(file_id, keys, before_ms)
        for row in spare:
            file = self.files.get(row.file_id)
            if file is None or file.segments:
                row.reference = RELEASED
        self.finish_deletions(due)
        return len(due)

    def _release_file(self, file_id: uuid.UUID, keys: int, before_ms: int) -> None:
        """Release the file. Without references it is deleted, if no reader can need it. Else take_dead_files takes
        it when none can.
        """
        file = self.files.get(file_id)
        if file is not None:
            file.segments -= keys
            is_past = file.state is FileState.RESERVED or (file.dead_ms is not None and file.dead_ms < before_ms)
            if not file.segments and is_past:
                file.state = FileState.DELETING
                file.dead_ms = self.clock.wall_ms() if file.dead_ms is None else file.dead_ms

    def finish_deletions(self, keys: Sequence[SegmentRow]) -> None:
        """DELETE_FINISHED for keys of these end offsets that have nothing to wait for."""
        ranges = {row.range for row in keys}
        ready = self.rows(
            lambda r: r.range in ranges and r.state is DELETE_STARTED and r.reference is RELEASED
            and r.tombstoned_ms is None and not self._waits(r)
        )  # fmt: skip
        for cause, rows in groupby(sorted(ready, key=lambda row: (row.cause, row.key)), key=lambda row: row.cause):
            self.logs.change(list(rows), DELETE_FINISHED, cause, None, self.clock.wall_ms())

    def _waits(self, row: SegmentRow) -> bool:
        """Return whether it waits for the object of a lower epoch."""
        return any(
            o.range == row.range and o.key.epoch < row.key.epoch and o.reference is not RELEASED
            and o.live_extents == 0 and o.tombstoned_ms is None and not self.is_leased(o)
            for o in self.segments.values()
        )  # fmt: skip

    def drop_files(self, file_ids: Sequence[uuid.UUID]) -> int:
        """See metastore.api.files.FileApi; the keys that waited for these objects continue."""
        before = set(self.files)
        dropped = super().drop_files(file_ids)
        gone = before - self.files.keys()
        freed = self.rows(lambda r: r.reference is AWAITS and r.file_id in gone)
        for row in freed:
            row.reference = RELEASED
        self.finish_deletions(freed)
        return dropped

    def tombstone(self, limit: int) -> int:
        """See release_segments.sql."""
        done = self.rows(lambda r: r.state is DELETE_FINISHED and r.tombstoned_ms is None)
        tops: dict[tuple[uuid.UUID, int, int], int] = {}
        for row in sorted(done, key=lambda row: row.due_ms or 0)[:limit]:
            tops[row.range] = max(row.key.epoch, tops.get(row.range, 0))
        buried = self.rows(
            lambda r: r.key.epoch <= tops.get(r.range, -1) and r.tombstoned_ms is None and r.live_extents == 0
            and r.reference is RELEASED and r.state is not DELETE_STARTED and not self.is_leased(r)
        )  # fmt: skip
        for row in buried:
            self.logs.bury(row, self.clock.wall_ms())
        return len(buried)

    def end_orphans(self, token: JobToken, limit: int) -> int:
        """See clean_up_segments.sql."""
        self.assert_job(token)
        orphans = self.rows(
            lambda r: r.state in (STARTED, FINISHED) and r.due_ms is not None and r.tombstoned_ms is None
            and r.reference is HELD and r.live_extents == 0 and not self.is_leased(r)
        )[:limit]  # fmt: skip
        self.logs.change(orphans, DELETE_STARTED, SegmentCause.ORPHANED, token.job_id, self.clock.wall_ms())
        return len(orphans)

    def end_reservations(self, token: JobToken, limit: int) -> int:
        """See clean_up_segments.sql."""
        self.assert_job(token)
        for file_id, holder in list(self.reservations.items()):
            if not self.jobs.is_held(holder):
                del self.reservations[file_id]
        old_ms = self.clock.wall_ms() - UNUSED_MS
        unused = [
            file_id
            for file_id, file in sorted(self.files.items())
            if file.state is FileState.RESERVED
            and not file.segments
            and file.named_ms < old_ms
            and file_id not in self.reservations
        ][:limit]
        for file_id in unused:
            self.condemn_reserved(file_id)
        return len(unused)

    def remove_old_tombstones(self, token: JobToken, age_ms: int, limit: int) -> int:
        """See clean_up_segments.sql."""
        self.assert_job(token)
        before_ms = self.clock.wall_ms() - age_ms
        old = [row for row in self.segments.values() if row.tombstoned_ms is not None and row.tombstoned_ms < before_ms]
        old = sorted(old, key=lambda row: row.tombstoned_ms or 0)[:limit]
        for row in old:
            del self.segments[row.key]
        gone = [m for m in self.markers.values() if m.tombstoned_ms is not None and m.tombstoned_ms < before_ms]
        for marker in gone[:limit]:
            del self.markers[marker.key]
        return len(old) + len(gone[:limit])

    def trim(self, token: JobToken, age_ms: int, limit: int) -> int:
        """See clean_up_segments.sql."""
        self.assert_job(token)
        return self.logs.trim(self.clock.wall_ms() - age_ms, limit)

    def finish_partitions(self, limit: int) -> int:
        """See delete_partitions.sql."""
        started = RemotePartitionDeleteState.DELETE_PARTITION_STARTED
        finished = RemotePartitionDeleteState.DELETE_PARTITION_FINISHED
        now_ms, changed = self.clock.wall_ms(), 0
        markers = sorted(self.markers.values(), key=lambda marker: marker.partition_key)
        open_markers = [m for m in markers if m.tombstoned_ms is None]
        for marker in [m for m in open_markers if m.state is started and m.partition_key not in self.purges][:limit]:
            if not self._has_rows(marker.partition_key, lambda row: row.tombstoned_ms is None):
                self.logs.record_marker(marker, finished, now_ms)
                changed += 1
        for marker in [m for m in open_markers if m.state is finished][:limit]:
            if not self._has_rows(marker.partition_key, lambda row: True):
                self.logs.bury(marker, now_ms)
                changed += 1
        return changed

    def _has_rows(self, partition_key: int, wanted: Callable[[SegmentRow], bool]) -> bool:
        return any(row.partition_key == partition_key and wanted(row) for row in self.segments.values())
