"""The history test of cleaning by key fails under each of these bugs: a bug replaces one attribute."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from hypothesis import given, seed
from hypothesis import strategies as st

from headrace.compactor import merge, take_over
from headrace.compactor.cleaning import job, rewrite
from headrace.compactor.cleaning.key_map import KeyMap
from headrace.metastore.api.compaction import SwapInput
from headrace.metastore.api.read import Extent
from headrace.storage.errors import CorruptError
from tests.compactor.model_api import ModelCleaningApi
from tests.generated_examples import FEW, by_seed_alone
from tests.planted import PlantedBugs, Trial
from tests.properties.cleaning_story import Story
from tests.properties.test_cleaning import STORIES, steps

Wrong = Callable[[Any], Any]


def a_marker_goes_before_its_horizon(right: Any) -> Any:
    return lambda batches, rule: right(batches, rule._replace(now_ms=1 << 62))


def a_marker_goes_while_an_earlier_record_is_left(right: Any) -> Any:
    return lambda batches, rule: right(batches, rule._replace(cleaned_offset=1 << 62))


def the_horizon_of_an_unfinished_pass_counts(right: Any) -> Any:
    def judge(batch: Any, rule: Any) -> Any:
        judged = right(batch, rule)
        old = batch.header.delete_horizon_ms
        return judged._replace(horizon_ms=old) if old is not None and judged.horizon_ms is not None else judged

    return judge


def a_marker_gets_no_horizon(right: Any) -> Any:
    return property(lambda judged: bool(judged.removed))


def records_without_a_key_stay(right: Any) -> Any:
    def judge(batch: Any, rule: Any) -> Any:
        keyless = [record for record in rewrite.open_sound(batch)[0] if record.key is None]
        judged = right(batch, rule)
        return judged._replace(records=sorted([*judged.records, *keyless]), keyless=0)

    return judge


def the_last_record_of_a_batch_is_lost(right: Any) -> Any:
    return lambda records, **options: right(records[:-1] or records, **options)


def a_hole_before_a_batch_is_not_covered(right: Any) -> Any:
    return lambda records, **options: right(records, **{**options, "base_offset": records[0].offset})


def no_empty_batch_covers_a_hole(right: Any) -> Any:
    return lambda base_offset, last_offset, epoch: right(last_offset, last_offset, epoch)


def the_last_value_counts_as_superseded(right: Any) -> Any:
    return lambda self, digests: right(self, digests) + 1


def keys_share_a_digest(right: Any) -> Any:
    return lambda self, keys: right(self, [b"" for _ in keys])


def a_full_map_is_ignored(right: Any) -> Any:
    async def keys(self: Any, plan: Any, cleaned_offset: int, end: int, *more: Any) -> Any:
        found, _ = await right(self, plan, cleaned_offset, end, *more)
        return found, end

    return keys


def extents_are_joined_across_leader_epochs(right: Any) -> Any:
    def joins(before: list[Extent], extent: Extent) -> bool:
        return extent.base_offset == before[-1].last_offset + 1

    return joins


def the_active_part_is_cleaned(right: Any) -> Any:
    async def cleanable(self: ModelCleaningApi, ends: Any) -> Any:
        kept = dict(self.roll_offsets)
        self.roll_offsets.update({key: 1 << 62 for key, _ in ends})
        found = await right(self, ends)
        self.roll_offsets = kept
        return found

    return cleanable


def a_lost_swap_is_forgotten(right: Any) -> Any:
    async def finish(self: ModelCleaningApi, token: Any, cleaned: Any) -> bool:
        live = [e for e in self.model.partitions[cleaned.partition_key].visible_extents if e.base_offset < cleaned.end]
        there = tuple((e.last_offset, e.source) for e in live)
        return bool(await right(self, token, cleaned._replace(extents=there_as_inputs(there))))

    return finish


def there_as_inputs(there: Any) -> Any:
    """Return what is live, as if the pass had left it."""
    return tuple(SwapInput(*entry) for entry in there)


BUGS: list[tuple[Wrong, Any, str]] = [
    (a_marker_goes_before_its_horizon, job, "judge"),
    (a_marker_goes_while_an_earlier_record_is_left, job, "judge"),
    (the_horizon_of_an_unfinished_pass_counts, rewrite, "_judge"),
    (a_marker_gets_no_horizon, rewrite.JudgedBatch, "is_changed"),
    (records_without_a_key_stay, rewrite, "_judge"),
    (the_last_record_of_a_batch_is_lost, rewrite, "encode_batch"),
    (a_hole_before_a_batch_is_not_covered, rewrite, "encode_batch"),
    (no_empty_batch_covers_a_hole, rewrite, "empty_batch"),
    (the_last_value_counts_as_superseded, KeyMap, "newest"),
    (keys_share_a_digest, KeyMap, "digests"),
    (a_full_map_is_ignored, job.Cleaner, "_keys"),
    (extents_are_joined_across_leader_epochs, merge, "joins"),
    (the_active_part_is_cleaned, ModelCleaningApi, "cleanable_extents"),
    (a_lost_swap_is_forgotten, ModelCleaningApi, "finish_cleaning"),
]


PLANTED = PlantedBugs("cleaning", most=500)


def _found_by(prove: Callable[[], None]) -> str:
    try:
        prove()
    except (AssertionError, CorruptError, KeyError, BaseExceptionGroup) as found:
        return f"{type(found).__name__}: {found}"
    return ""


def _tell_known_histories() -> None:
    for history in STORIES.values():
        asyncio.run(Story(0).tell(history))


@PLANTED.cases(BUGS, lambda bug: bug[0].__name__)
def test_a_planted_bug_is_caught(bug: tuple[Wrong, Any, str], trial: Trial) -> None:
    """By a known history, or by one that is generated."""
    wrong, owner, name = bug
    trial.plant(take_over, "SWAP_ATTEMPTS", 1)
    trial.plant(owner, name, wrong(getattr(owner, name)))
    if wrong is a_lost_swap_is_forgotten:
        trial.plant(job.Pass, "is_lost", property(lambda _: False, lambda _, value: None))

    @FEW
    @given(steps, st.integers(0, 2**32))
    def prove(history: list[Any], world_seed: int) -> None:
        asyncio.run(Story(world_seed).tell(history))

    known = _found_by(_tell_known_histories)
    for number in trial.seeds():
        with by_seed_alone():
            trial.saw(known or _found_by(seed(number)(prove)))
