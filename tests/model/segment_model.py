"""The reference model of remote segments, level 1 of remote.log.metadata.compaction: uploads, swaps, removals.

Place: what tests/contracts/test_segments_contract.py compares Postgres with; the simulation's metastore. What follows a
deletion is in segment_end_model.py, the interfaces of metastore/api in segment_api.py.
Invariant: as metastore_model.py: dicts and loops. Rows of extents do not say which segment they belong to; `segment_of`
does, by (partition key, last offset, file id).
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from headrace.metastore.api.compaction import Swap, SwapOutcome
from headrace.metastore.api.files import FileState
from headrace.metastore.api.jobs import JobState, JobToken
from headrace.metastore.api.read import Extent, LogStartMove
from headrace.metastore.api.retention import LogStartAnswer, LogStartTarget
from headrace.metastore.api.segment_states import (
    Latest,
    RemoteLogSegmentState,
    RemotePartitionDeleteState,
    RemotePartitionKey,
    RemoteSegmentKey,
    segment_transition,
)
from headrace.metastore.api.segments import NewSegment, ReferenceState, SegmentCause, StartOutcome
from headrace.metastore.keys import split_partition_key
from headrace.storage.clock import Clock
from headrace.storage.errors import NotFoundError
from tests.model.file_model import ModelWithFiles
from tests.model.job_model import ModelJobs
from tests.model.segment_rows import MarkerRow, SegmentLogs, SegmentRow

STARTED = RemoteLogSegmentState.COPY_SEGMENT_STARTED
FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED
DELETE_STARTED = RemoteLogSegmentState.DELETE_SEGMENT_STARTED
DELETE_FINISHED = RemoteLogSegmentState.DELETE_SEGMENT_FINISHED

Place = tuple[int, int, uuid.UUID]
"""Place of an extent: partition key, last offset, file id."""


class ModelWithSegments(ModelWithFiles):
    """The model, with keys for the segments of merged files. `jobs` draws its epochs here."""

    def __init__(self, clock: Clock, *, shards: int) -> None:
        super().__init__(clock, shards=shards)
        self.jobs = ModelJobs(clock, next_epoch=self.next_epoch)
        self.last_epoch = 0
        self.topic_ids: dict[int, uuid.UUID] = {}
        """By topic number; a topic that is not here has an id that is made of its number."""
        self.segments: dict[RemoteSegmentKey, SegmentRow] = {}
        self.markers: dict[RemotePartitionKey, MarkerRow] = {}
        self.logs = SegmentLogs()
        self.segment_of: dict[Place, RemoteSegmentKey] = {}
        self.reservations: dict[uuid.UUID, JobToken] = {}
        """Of ids that a lease reserved before it knew their segments."""
        self.ends: dict[int, int] = {}
        """Of deleted partitions: their high watermarks."""

    def next_epoch(self) -> int:
        """The next of the sequence segment_epochs."""
        self.last_epoch += 1
        return self.last_epoch

    def partition_of(self, key: int) -> RemotePartitionKey:
        """A partition as keys name it."""
        number, index = split_partition_key(key)
        return RemotePartitionKey(self.topic_ids.get(number, uuid.UUID(int=number << 64)), index)

    def assert_job(self, token: JobToken) -> None:
        """FencedError unless that lease holds."""
        self.jobs.assert_held(token)

    def is_leased(self, row: SegmentRow) -> bool:
        """Return whether its upload may still be under way."""
        return row.state is STARTED and any(
            (job.job_id, job.epoch, job.state) == (row.job_id, row.key.epoch, JobState.LEASED) for job in self.jobs.jobs
        )

    def rows(self, wanted: Callable[[SegmentRow], Any]) -> list[SegmentRow]:
        """Return the rows in the order of their keys."""
        return sorted((row for row in self.segments.values() if wanted(row)), key=lambda row: row.key)

    # -- uploads

    def start(self, token: JobToken, file_id: uuid.UUID, segments: Sequence[NewSegment]) -> StartOutcome:
        """See metastore.api.segments.SegmentApi.start_segments."""
        self.assert_job(token)
        known = file_id in self.files
        if not known and not self._birth_accepted(file_id):
            return StartOutcome.REFUSED
        if known and self.files[file_id].state not in (FileState.RESERVED, FileState.LIVE):
            return StartOutcome.REFUSED
        wanted = {
            RemoteSegmentKey(*self.partition_of(new.partition_key), new.end_offset, token.epoch): new
            for new in segments
            if new.partition_key in self.partitions
        }
        earlier = [row for key in wanted if (row := self.segments.get(key)) and row.file_id != file_id]
        for row in earlier:
            latest = None if row.tombstoned_ms is not None else Latest(row.state, row.segment_id)
            segment_transition(row.key, latest, Latest(STARTED, wanted[row.key].segment_id))
        if any(self._is_overtaken(key) for key in wanted):
            if known and self.files[file_id].state is FileState.RESERVED and not self.files[file_id].segments:
                del self.files[file_id]
                self.reservations.pop(file_id, None)
            return StartOutcome.OVERTAKEN
        if not known:
            self.files[file_id] = self._new(FileState.RESERVED)
        files = {row.file_id for row in earlier}
        for key, new in wanted.items():
            self._start(key, new, file_id, token.job_id)
        self._give_up_attempts(files)
        return StartOutcome.DONE

    def reserve(self, token: JobToken, file_ids: Sequence[uuid.UUID]) -> None:
        """See metastore.api.segments.SegmentApi.reserve_files."""
        self.assert_job(token)
        for file_id in file_ids:
            if file_id not in self.files:
                self.files[file_id] = self._new(FileState.RESERVED)
                self.reservations[file_id] = token

    def start_reserved(self, token: JobToken, file_id: uuid.UUID, segments: Sequence[NewSegment]) -> StartOutcome:
        """See metastore.api.segments.SegmentApi.start_reserved_segments."""
        self.assert_job(token)
        return self.start(token, file_id, segments) if self.reservations.get(file_id) == token else StartOutcome.REFUSED

    def _is_overtaken(self, key: RemoteSegmentKey) -> bool:
        """Return whether a key of the same end offset has a higher epoch, and is not deleted."""
        return any(
            row.range == key[:3] and row.key.epoch > key.epoch and row.tombstoned_ms is None
            and row.state < DELETE_STARTED
            for row in self.segments.values()
        )  # fmt: skip

    def _start(self, key: RemoteSegmentKey, new: NewSegment, file_id: uuid.UUID, job_id: int) -> None:
        before = self.segments.get(key)
        if before is not None and before.file_id == file_id:
            return
        now_ms = self.clock.wall_ms()
        self.segments[key] = row = SegmentRow(
            *(key, new.segment_id, file_id, new.partition_key, new.start_offset, new.leader_epoch, new.max_timestamp),
            *(new.size, STARTED, SegmentCause.UPLOAD, job_id),
            due_ms=now_ms,
        )
        self.logs.record(row, now_ms)
        self.files[file_id].segments += 1

    def _give_up_attempts(self, files: Iterable[uuid.UUID]) -> None:
        """Reserved files that another attempt took the place of."""
        for file_id in sorted(files):
            file = self.files.get(file_id)
            if file is None or file.state is not FileState.RESERVED:
                continue
            file.segments = len(
                self.rows(lambda r: r.file_id == file_id and r.state is STARTED and r.tombstoned_ms is None)  # noqa: B023
            )
            if not file.segments:
                self.condemn_reserved(file_id)

    def condemn_reserved(self, file_id: uuid.UUID) -> None:
        """Its object is the janitor's."""
        self.files[file_id].state, self.files[file_id].dead_ms = FileState.CONDEMNED, self.clock.wall_ms()
        self.condemned.add(file_id)

    def finish_lost(self, token: JobToken, file_id: uuid.UUID) -> int:
        """See metastore.api.segments.SegmentApi.finish_lost_upload."""
        found = self.rows(
            lambda r: r.state is STARTED and r.tombstoned_ms is None and r.file_id == file_id
            and (r.job_id, r.key.epoch) == token
        )  # fmt: skip
        self.logs.change(found, FINISHED, SegmentCause.UPLOAD, token.job_id, self.clock.wall_ms())
        for row in found:
            row.due_ms = row.event_ms
        return len(found)

    # -- swaps

    def swap(
        self, token: JobToken, file_id: uuid.UUID, swaps: Sequence[Swap]
    ) -> tuple[list[SwapOutcome], list[Extent]]:
        """Do the same as decide_swaps, and what it means for segments. NotFoundError: the file is not reserved for
        this.
        """
        self.assert_job(token)
        ends = self._ends(token, file_id, swaps)
        file = self.files.get(file_id)
        if file is not None and file.state is FileState.RESERVED and file.segments:
            file.state, file.dead_ms = FileState.LIVE, self.clock.wall_ms()
        if file is None or file.state is not FileState.LIVE or ends is None:
            raise NotFoundError(f"file id is not to be had: file={file_id}")
        before = self._keyed_places()
        closed = [s for s, key in zip(swaps, ends, strict=True) if key and self.segments[key].state is not STARTED]
        is_repeated = (token, file_id, tuple(swaps)) in self.swap_answers
        outcomes, new = self.decide_swaps(file_id, swaps, closed, token)
        assert outcomes is not None, "its file is live"
        if is_repeated:
            return outcomes, []
        done = {(extent.partition_key, extent.last_offset) for extent in new}
        self._settle_uploads(token, swaps, ends, done)
        self.end_removed(before, SegmentCause.REPLACED, token.job_id)
        return outcomes, new

    def _ends(self, token: JobToken, file_id: uuid.UUID, swaps: Sequence[Swap]) -> list[RemoteSegmentKey | None] | None:
        """The key of each swap's segment, None for one of a deleted partition; None if one has none."""
        found: list[RemoteSegmentKey | None] = []
        for swap in swaps:
            if swap.partition_key not in self.partitions:
                found.append(None)
                continue
            mine = self.rows(
                lambda r: r.key.of_partition == self.partition_of(swap.partition_key) and r.file_id == file_id  # noqa: B023
                and r.key.epoch == token.epoch and r.key.end_offset >= swap.last_offset  # noqa: B023
            )  # fmt: skip
            if not mine:
                return None
            found.append(mine[0].key)
        return found

    def _settle_uploads(
        self,
        token: JobToken,
        swaps: Sequence[Swap],
        ends: Sequence[RemoteSegmentKey | None],
        done: set[tuple[int, int]],
    ) -> None:
        """COPY_FINISHED for segments with a swap that was done now, DELETE_STARTED for those that lost all of them."""
        counted = Counter[RemoteSegmentKey]()
        for swap, key in zip(swaps, ends, strict=True):
            if key is not None:
                is_done = (swap.partition_key, swap.last_offset) in done
                counted[key] += is_done
                if is_done:
                    self.segment_of[swap.partition_key, swap.last_offset, self.segments[key].file_id] = key
        rows = [row for key in sorted(counted) if (row := self.segments[key]).state in (STARTED, FINISHED)]
        for row in rows:
            row.live_extents += counted[row.key]
        now_ms, open_rows = self.clock.wall_ms(), [row for row in rows if row.state is STARTED]
        self.logs.change([r for r in open_rows if counted[r.key]], FINISHED, SegmentCause.UPLOAD, token.job_id, now_ms)
        lost = [row for row in open_rows if not counted[row.key]]
        self.logs.change(lost, DELETE_STARTED, SegmentCause.LOST, token.job_id, now_ms)

    # -- removals

    def decide_log_starts(
        self, targets: Sequence[LogStartTarget], *, max_extents: int
    ) -> tuple[list[LogStartAnswer], list[LogStartMove]]:
        """See ModelRetention."""
        before = self._keyed_places()
        decided = super().decide_log_starts(targets, max_extents=max_extents)
        self.end_removed(before, SegmentCause.LOG_START, None)
        return decided

    def delete_topic(self, topic_number: int) -> None:
        """See ModelMetastore."""
        self.ends |= {
            key: partition.high_watermark
            for key, partition in self.partitions.items()
            if split_partition_key(key)[0] == topic_number
        }
        super().delete_topic(topic_number)

    def purge(self, limit: int) -> None:
        """See ModelWithFiles; a partition with keys gets its delete marker first."""
        if self.purges:
            self._begin_partition_delete(min(self.purges))
        before = self._keyed_places()
        super().purge(limit)
        self.end_removed(before, SegmentCause.PARTITION_DELETED, None)

    def _begin_partition_delete(self, key: int) -> None:
        partition = self.partition_of(key)
        if partition not in self.markers and any(k.of_partition == partition for k in self.segments):
            self.markers[partition] = marker = MarkerRow(partition, key, self.ends[key], self.next_epoch())
            state = RemotePartitionDeleteState.DELETE_PARTITION_STARTED
            self.logs.record_marker(marker, state, self.clock.wall_ms())

    def _keyed_places(self) -> set[Place]:
        return {p for e in self._all_extents() if (p := (e.partition_key, e.last_offset, e.file_id)) in self.segment_of}

    def end_removed(self, before: set[Place], cause: SegmentCause, job_id: int | None) -> None:
        """Do what end_segments.sql does for the extents that were there before, and are not now."""
        removed = Counter(self.segment_of.pop(place) for place in before - self._keyed_places())
        for key, extents in removed.items():
            self.segments[key].live_extents -= extents
        ended = [self.segments[key] for key in sorted(removed) if not self.segments[key].live_extents]
        now_ms = self.clock.wall_ms()
        if not ended:
            return
        if cause is SegmentCause.REPLACED:
            self.logs.change(ended, DELETE_STARTED, cause, job_id, now_ms)
            return
        epoch = self.next_epoch()
        for row in {row.range: row for row in ended}.values():  # of one end offset, the highest epoch
            key = row.key._replace(epoch=epoch)
            self.segments[key] = new = SegmentRow(
                *(key, row.segment_id, row.file_id, row.partition_key, row.start_offset, row.leader_epoch),
                *(row.max_timestamp, row.size, DELETE_STARTED, cause, job_id),
                reference=row.reference,
                due_ms=now_ms,
            )
            row.reference = ReferenceState.RELEASED
            self.logs.record(new, now_ms)
