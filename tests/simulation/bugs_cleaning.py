"""Deliberate bugs in cleaning by key: each must be caught in the schedules of suites.CLEANING."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headrace.compactor.cleaning import job, rewrite
from headrace.compactor.cleaning.passes import Pass
from headrace.metastore.api.cleaning import CleanedPartition
from headrace.metastore.api.compaction import SwapInput
from headrace.metastore.api.jobs import JobToken
from tests.compactor.model_api import ModelCleaningApi
from tests.patch import Patch
from tests.simulation.bug import bug
from tests.simulation.cleaner import CleaningDatabase
from tests.simulation.problems import Kind


@bug("L6", Kind.LOST)
def the_cleaned_offset_moves_on_after_a_lost_swap(patch: Patch) -> None:
    """A merge put an extent back that holds earlier records of a delete marker's key."""

    async def finish(self: ModelCleaningApi, token: JobToken, cleaned: CleanedPartition) -> bool:
        extents = self.model.partitions[cleaned.partition_key].visible_extents
        live = tuple(SwapInput(e.last_offset, e.source) for e in extents if e.base_offset < cleaned.end)
        return bool(await original(self, token, cleaned._replace(extents=live)))

    original = patch.replace(ModelCleaningApi, "finish_cleaning", finish)
    patch.replace(job, "Pass", type("Pass", (Pass,), {"is_lost": property(lambda _: False, lambda _, value: None)}))


@bug("L2", Kind.LOST)
def the_last_record_before_a_batch_border_goes(patch: Patch) -> None:
    """Also if it is the last value of its key."""
    patch.wrap(
        rewrite, "encode_batch", lambda right: lambda records, **options: right(records[:-1] or records, **options)
    )


@bug("L6", Kind.LOST)
def a_delete_marker_goes_before_its_horizon(patch: Patch) -> None:
    """Readers that saw an earlier record of its key keep it."""
    patch.wrap(job, "judge", lambda right: lambda batches, rule: right(batches, rule._replace(now_ms=1 << 62)))


@bug("L6", Kind.LOST)
def a_delete_marker_goes_while_earlier_records_are_left(patch: Patch) -> None:
    """The pass that removes them may lose its swap."""
    patch.wrap(job, "judge", lambda right: lambda batches, rule: right(batches, rule._replace(cleaned_offset=1 << 62)))


@bug("L6", Kind.LOST)
def the_horizon_of_an_unfinished_pass_counts(patch: Patch) -> None:
    """Its swaps were lost: readers still saw the earlier records."""

    def judge(batch: Any, rule: rewrite.CleaningPass) -> rewrite.JudgedBatch:
        judged = original(batch, rule)
        old = batch.header.delete_horizon_ms
        found: rewrite.JudgedBatch = judged
        return found._replace(horizon_ms=old) if old is not None and found.horizon_ms is not None else found

    original = patch.replace(rewrite, "_judge", judge)


@bug("L3", Kind.GAP, Kind.UNACCOUNTED)
def a_batch_does_not_cover_the_offsets_before_its_records(patch: Patch) -> None:
    """A reader at such an offset finds no batch."""
    patch.wrap(
        rewrite,
        "encode_batch",
        lambda right: lambda records, **options: right(records, **{**options, "base_offset": records[0].offset}),
    )


@bug("L4", Kind.LOST)
def the_active_part_is_cleaned(patch: Patch) -> None:
    """Everything that is committed counts as rolled."""

    async def cleanable(self: CleaningDatabase, ends: Sequence[tuple[int, int]]) -> Any:
        rolled = self.roll_offsets
        self.roll_offsets = {key: 1 << 62 for key, _ in ends}
        found = await original(self, ends)
        self.roll_offsets = rolled
        return found

    original = patch.replace(ModelCleaningApi, "cleanable_extents", cleanable)
