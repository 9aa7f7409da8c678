"""Deliberate bugs in the lifecycle of remote segments: each must be caught in suites.SEGMENTS."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

from headrace.metastore.api.compaction import Swap
from headrace.metastore.api.files import FileState
from headrace.metastore.api.segment_states import RemoteLogSegmentState
from headrace.metastore.api.segments import ReferenceState, SegmentCause
from tests.model.segment_end_model import ModelLifecycle
from tests.model.segment_model import ModelWithSegments
from tests.model.segment_rows import SegmentLogs, SegmentRow
from tests.patch import Patch
from tests.simulation.bug import bug
from tests.simulation.problems import Kind


@bug("R6", Kind.LIFECYCLE)
def a_tombstone_before_the_object_is_gone(patch: Patch) -> None:
    """A key does not wait for the object that it was the last to refer to."""

    def finish(self: ModelLifecycle, keys: Sequence[SegmentRow]) -> None:
        ranges = {row.range for row in keys}
        for row in self.rows(lambda r: r.range in ranges and r.reference is ReferenceState.AWAITS_OBJECT):
            row.reference = ReferenceState.RELEASED
        original(self, keys)

    original = patch.replace(ModelLifecycle, "finish_deletions", finish)


@bug("R6", Kind.LIFECYCLE)
def a_higher_epoch_is_ignored(patch: Patch) -> None:
    """A lease starts what one with a higher epoch has copied, or is copying."""
    patch.replace(ModelWithSegments, "_is_overtaken", lambda self, key: False)


@bug("R11", Kind.LIFECYCLE)
def an_orphan_is_never_reclaimed(patch: Patch) -> None:
    """The cleanup leaves uploads without a lease alone."""
    patch.replace(ModelLifecycle, "end_orphans", lambda self, token, limit: 0)


@bug("R6", Kind.LIFECYCLE)
def a_reference_is_released_twice(patch: Patch) -> None:
    """The object goes although another key refers to it."""

    def release(self: ModelLifecycle, file_id: uuid.UUID, keys: int) -> None:
        original(self, file_id, keys)
        if file_id in self.files and self.files[file_id].segments:
            original(self, file_id, 1)

    original = patch.replace(ModelLifecycle, "_release_file", release)


@bug("R6", Kind.LIFECYCLE)
def a_zombie_swaps_under_an_id_that_is_not_its_own(patch: Patch) -> None:
    """Neither its lease nor the reservation of the file is asked for: any key of the range will do."""

    def ends(self: ModelWithSegments, token: Any, file_id: uuid.UUID, swaps: Sequence[Any]) -> Any:
        found = []
        for swap in swaps:
            partition = self.partition_of(swap.partition_key)
            mine = self.rows(
                lambda r: r.key.of_partition == partition and r.key.end_offset >= swap.last_offset  # noqa: B023
            )
            found.append(mine[0].key if mine and swap.partition_key in self.partitions else None)
        file = self.files.get(file_id)
        if file is not None:
            file.state = FileState.LIVE
        return found

    patch.replace(ModelWithSegments, "assert_job", lambda self, token: None)
    patch.replace(ModelWithSegments, "_ends", ends)


@bug("R6", Kind.LIFECYCLE)
def a_worker_without_a_lease_goes_on(patch: Patch) -> None:
    """The cleanup ends its upload, and then it swaps: the swap does not look at its segment either."""
    patch.replace(ModelWithSegments, "assert_job", lambda self, token: None)
    swap_what_was_settled(patch)


@bug("R6", Kind.LIFECYCLE)
def finished_is_recorded_outside_the_swap(patch: Patch) -> None:
    """With the next records that there are: a crash in between leaves readable records without COPY_FINISHED."""
    late: list[Any] = []
    swapping: list[bool] = []

    def settle(self: ModelWithSegments, *more: Any) -> None:
        swapping.append(True)
        settled(self, *more)
        swapping.clear()

    def change(self: SegmentLogs, rows: Sequence[SegmentRow], state: Any, *more: Any) -> None:
        if swapping and state is RemoteLogSegmentState.COPY_SEGMENT_FINISHED:
            late.append((self, rows, state, *more))
            return
        while late and not swapping:
            changed(*late.pop(0))
        changed(self, rows, state, *more)

    settled = patch.replace(ModelWithSegments, "_settle_uploads", settle)
    changed = patch.replace(SegmentLogs, "change", change)


@bug("R11", Kind.LIFECYCLE)
def a_failed_attempts_object_stays(patch: Patch) -> None:
    """A file that no key refers to any more keeps its reservation, for the cleanup too."""
    patch.replace(ModelWithSegments, "condemn_reserved", lambda self, file_id: None)
    patch.replace(ModelLifecycle, "end_reservations", lambda self, token, limit: 0)


@bug("R6", Kind.LIFECYCLE)
def the_cleanup_ends_an_upload_under_way(patch: Patch) -> None:
    """It takes every upload for an orphan, and the swap does not look at its segment."""
    patch.replace(ModelWithSegments, "is_leased", lambda self, row: False)
    swap_what_was_settled(patch)


@bug("R6", Kind.LIFECYCLE)
def retention_records_nothing(patch: Patch) -> None:
    """What a log start removes keeps its keys."""

    def end(self: ModelWithSegments, before: Any, cause: SegmentCause, job_id: int | None) -> None:
        if cause is not SegmentCause.LOG_START:
            original(self, before, cause, job_id)

    original = patch.replace(ModelWithSegments, "end_removed", end)


@bug("R11", Kind.LIFECYCLE)
def a_lost_swap_is_done_when_it_is_repeated(patch: Patch) -> None:
    """A call is judged again, and an input that is missing below the log start is not looked for."""

    def stands(self: ModelWithSegments, swap: Swap) -> bool:
        partition = self.partitions.get(swap.partition_key)
        if partition is None or swap.last_offset < partition.log_start_offset:
            return False
        there = {(extent.last_offset, extent.file_id) for extent in partition.extents}
        return all(last < partition.log_start_offset or (last, file_id) in there for last, file_id in swap.inputs)

    def swap(self: ModelWithSegments, *asked: Any) -> Any:
        self.swap_answers.clear()
        return swapped(self, *asked)

    swapped = patch.replace(ModelWithSegments, "swap", swap)
    swap_what_was_settled(patch)
    patch.replace(ModelWithSegments, "_stands", stands)


def swap_what_was_settled(patch: Patch) -> None:
    """Swaps are judged by their inputs alone."""
    patch.wrap(
        ModelWithSegments,
        "decide_swaps",
        lambda right: lambda self, file_id, swaps, closed=(), token=None: right(self, file_id, swaps, (), token),
    )
