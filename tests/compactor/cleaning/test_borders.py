"""Check where the active part and the cleaned part of a partition end, when log starts move and merges continue."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

import pytest

from headrace.cli.doctor import postgres
from headrace.compactor.cleaning.policy import CleaningTask, in_jobs, read_bytes
from headrace.config.settings import Settings
from headrace.jobs.kinds import CLEAN, COMPACT
from headrace.metastore.api.retention import LogStartTarget
from headrace.storage.clock import SystemClock
from headrace.storage.file_id import object_key
from tests.compactor.cleaning.test_guarantees import EAGER, HOUR_MS, rolled
from tests.compactor.cleaning.test_merges_meanwhile import end_jobs
from tests.compactor.cleaning.world import CleaningWorld
from tests.compactor.world import LEASE_MS
from tests.metastore.sessions import session
from tests.metastore.sql_sources import plant
from tests.overlay import Overlay

BOTH = {"cleanup_policy": "compact,delete", "min_cleanable_dirty_ratio": "0.01"}


async def move_log_start(world: CleaningWorld, key: int, offset: int, max_extents: int = 100) -> None:
    await world.postgres.retention.move_log_starts([LogStartTarget(key, offset)], max_extents=max_extents)


@pytest.mark.requirement("L4")
@pytest.mark.parametrize("merged", [False, True])
async def test_the_age_of_the_active_part_is_that_of_its_first_record(world: CleaningWorld, merged: bool) -> None:
    (key,) = await world.topic("t", 1, **BOTH, segment_ms=str(10 * HOUR_MS))
    await world.send(key, ("old", "1"))
    await world.plan()  # notes since when the active part has records
    await world.wait(3)
    await world.send(key, ("a", "0"))
    if merged:
        await world.compact(1, extent_bytes=1)
    await move_log_start(world, key, 1)
    await world.plan()
    noted = (await world.state(key)).active_since_ms
    assert (noted or 0) >= world.now_ms() - 60_000, "the record that was there before it is gone"
    await world.wait(9.9)
    await world.send(key, ("a", "1"))
    assert await world.clean() == 0
    assert [offset for offset, _, _ in await world.seen(key, 1)] == [1, 2]
    assert (await world.state(key)).active_since_ms == noted, "noted once, and kept"
    await world.wait(0.2)
    assert await world.clean() == 1
    assert [offset for offset, _, _ in await world.seen(key, 1)] == [2]


@pytest.mark.requirement("L4")
async def test_a_part_that_lost_its_old_records_is_not_ended_by_an_earlier_decision(world: CleaningWorld) -> None:
    """A log start moves between the planner's look and its call."""
    (key,) = await world.topic("t", 1, **BOTH, segment_ms=str(HOUR_MS))
    await world.send(key, ("old", "1"))
    await world.plan()
    await world.wait(2)
    await world.send(key, ("a", "1"))
    rolling = world.postgres.cleaning.roll_partitions

    async def too_late(*decided: object, **more: object) -> None:
        await move_log_start(world, key, 1)
        await rolling(*decided, **more)  # type: ignore[arg-type]

    world.postgres.cleaning.roll_partitions = too_late  # type: ignore[method-assign]
    await world.plan()
    state = await world.state(key)
    assert (state.roll_offset, state.is_noted) == (0, True)
    assert (state.active_since_ms or 0) >= world.now_ms() - 60_000


@pytest.mark.requirement("L4")
async def test_bytes_below_the_log_start_are_not_active(world: CleaningWorld) -> None:
    (key,) = await world.topic("t", 1, **BOTH, segment_bytes="300")
    for number in range(3):
        await world.send(key, ("a", f"{number}" * 20))
    (first, second, third) = [extent.length for extent in await world.extents(key)]
    assert first + second + third < 300
    await move_log_start(world, key, 2, max_extents=1)
    assert (await world.state(key)).active_bytes == third, "also while retention has not removed all below"
    await world.send(key, ("a", "3" * 20))
    await world.plan()
    assert (await world.state(key)).roll_offset == 0, "the four of them would have 300 bytes"
    await move_log_start(world, key, 2)
    assert (await world.state(key)).active_bytes == third + (await world.extents(key))[-1].length


@pytest.mark.requirement("L5")
async def test_merges_do_not_join_what_is_cleaned_and_what_is_not(world: CleaningWorld) -> None:
    """Planned before or after the cleaned offset moved there."""
    (key,) = await world.topic("t", 1, **EAGER)
    for value in "12":
        await world.send(key, (value, "1"))
    await rolled(world, key)
    assert await world.clean(extent_bytes=1) == 1
    assert (await world.state(key)).cleaned_offset == 2
    await world.send(key, ("3", "1"))
    await rolled(world, key)
    await world.plan()
    await end_jobs(world, CLEAN.name, COMPACT.name)
    await world.run(await world.claim(sorted({e.file_id for e in await world.extents(key)}), 2))
    assert [(e.base_offset, e.last_offset) for e in await world.extents(key)] == [(0, 1), (2, 2)]

    async def as_it_was(files: object) -> object:
        """The plan of a worker is from before the end of the pass."""
        found = await world.postgres.compaction.live_extents(files)  # type: ignore[arg-type]
        return found._replace(partitions=[live._replace(cleaned_offset=0) for live in found.partitions])

    old = world.compactor(metastore=Overlay(world.postgres, live_extents=as_it_was))
    await world.run(await world.claim(sorted({e.file_id for e in await world.extents(key)}), 2), old)
    assert [(e.base_offset, e.last_offset) for e in await world.extents(key)] == [(0, 1), (2, 2)]


@pytest.mark.requirement("L6")
async def test_a_pass_ends_before_an_extent_that_crosses_the_cleaned_offset(world: CleaningWorld) -> None:
    """As merges of the release before made them: a horizon passes, and what is dirty is too young."""
    (key,) = await world.topic("t", 1, **EAGER, delete_retention_ms=str(HOUR_MS))
    for pair in (("a", "1"), ("a", None), ("k", "1")):
        await world.send(key, pair)
    await rolled(world, key)
    assert await world.clean(extent_bytes=1) == 1
    await world.send(key, ("b", "1"))
    await rolled(world, key)
    await world.plan()
    await end_jobs(world, CLEAN.name, COMPACT.name)
    await set_cleaned(world, key, 2)
    await world.run(await world.claim(sorted({e.file_id for e in await world.extents(key)}), 1), world.compactor())
    await set_cleaned(world, key, 3)
    assert [(e.base_offset, e.last_offset) for e in await world.extents(key)] == [(0, 1), (2, 3)]
    await world.set_topic("t", min_compaction_lag_ms=str(100 * HOUR_MS))
    passes = 0
    for _ in range(3):
        await world.wait(0.01)
        passes += await world.clean()
    assert passes <= 1, await world.state(key)


async def set_cleaned(world: CleaningWorld, key: int, offset: int) -> None:
    async with session(world.url) as raw:
        await raw.execute("UPDATE cleaned_partitions SET cleaned_offset = %s WHERE partition_key = %s", (offset, key))


@pytest.mark.requirement("L6")
async def test_a_pass_for_a_horizon_costs_what_it_reads(world: CleaningWorld) -> None:
    (key,) = await world.topic("t", 1, **EAGER, delete_retention_ms=str(HOUR_MS))
    await world.send(key, ("a", "1" * 5000))
    await world.send(key, ("b", None), ("c", "1"))
    await rolled(world, key)
    assert await world.clean() == 1
    assert read_bytes(await world.state(key)) == 0, "nothing to do yet"
    await world.wait(2)
    live = sum(extent.length for extent in await world.extents(key))
    assert read_bytes(await world.state(key)) == live > 5000
    many = in_jobs((CleaningTask(number, 1, 1), 1 << 30) for number in range(3))
    assert [len(job.tasks) for job in many] == [1, 1, 1]


@pytest.mark.requirement("L8")
async def test_an_unreadable_flush_file_is_set_aside(world: CleaningWorld) -> None:
    """Its partition is counted, and named by the doctor; the merge is not planned again for a day."""
    (key,) = await world.topic("t", 1, **EAGER)
    for value in "123":
        await world.send(key, ("a", value))
    lost = (await world.extents(key))[0].file_id
    await world.store.delete_many([object_key(lost)])
    await rolled(world, key)
    merges = []
    for hours in [0.0] * 3 + [1.1, 23.0]:
        await world.wait(hours)
        await world.plan()
        merges.append(0)
        while (merge := await world.postgres.jobs.claim_job("test", [COMPACT.name], LEASE_MS)) is not None:
            await world.run(merge, world.compactor(extent_bytes=1))
            merges[-1] += 1
        assert await world.postgres.jobs.claim_job("test", [CLEAN.name], LEASE_MS) is None
    assert merges == [1, 0, 0, 0, 1], "and again after a day"
    await world.plan()
    shown = world.cleaning_registry.get_sample_value("headrace_log_cleaner_uncleanable_partitions_count")
    assert shown == 1
    findings = await postgres.examine(Settings(metastore_url=world.url), SystemClock())
    found = [finding.found for finding in findings if finding.check == "compaction"]
    assert any(f"partition t-0: an extent is damaged: file={lost}" in line for line in found), found
    assert any(str(lost) in line for line in found if line.startswith("file ")), found


Proof = Callable[[CleaningWorld], Awaitable[None]]
BUGS: dict[str, tuple[str, str, str, Proof]] = {
    "the age of a record that is gone counts": (
        "describe_cleaning",
        "CASE WHEN p_log_start <= coalesce(p_row.active_offset, p_row.roll_offset) THEN",
        "CASE WHEN true THEN",
        partial(test_the_age_of_the_active_part_is_that_of_its_first_record, merged=False),
    ),
    "an end that was decided by a record that is gone": (
        "roll_partitions",
        "t.rolls AND n.since_ms <= t.since_ms",
        "t.rolls",
        test_a_part_that_lost_its_old_records_is_not_ended_by_an_earlier_decision,
    ),
    "bytes that retention removes later are active": (
        "describe_cleaning",
        "h.appended_bytes - p.removed_bytes - g.bytes",
        "h.appended_bytes - p.removed_bytes",
        test_bytes_below_the_log_start_are_not_active,
    ),
    "removed bytes are active": (
        "describe_cleaning",
        "CASE WHEN p.log_start_offset > c.roll_offset THEN",
        "CASE WHEN false THEN",
        test_bytes_below_the_log_start_are_not_active,
    ),
    "an old plan joins across the cleaned offset": (
        "swap_extents",
        "i.last + 1 IS DISTINCT FROM c.cleaned_offset",
        "true",
        test_merges_do_not_join_what_is_cleaned_and_what_is_not,
    ),
    "the planner does not know the cleaned offset": (
        "find_mergeable_extents",
        "coalesce(c.cleaned_offset, 0)",
        "0::bigint",
        test_merges_do_not_join_what_is_cleaned_and_what_is_not,
    ),
    "a crossing extent is of the pass": (
        "finish_cleaning",
        "AND last_offset >= v_log_start AND last_offset < p_end) AS live",
        "AND last_offset >= v_log_start AND base_offset < p_end) AS live",
        test_a_pass_ends_before_an_extent_that_crosses_the_cleaned_offset,
    ),
    "a pass for a horizon costs nothing": (
        "describe_cleaning",
        "WHEN b.dirty_bytes > 0 OR c.horizon_ms <= v_now",
        "WHEN b.dirty_bytes > 0",
        test_a_pass_for_a_horizon_costs_what_it_reads,
    ),
    "a file that cannot be read is merged again": (
        "damaged_parts",
        "is_held_back(d.checked_at)",
        "false",
        test_an_unreadable_flush_file_is_set_aside,
    ),
}
"""What is wrong -> (SQL function or file, right text, wrong text, the proof that fails)."""
QUICK = {"the age of a record that is gone counts", "an old plan joins across the cleaned offset"}


@pytest.mark.parametrize("bug", [pytest.param(bug, marks=[] if bug in QUICK else [pytest.mark.slow]) for bug in BUGS])
async def test_a_planted_bug_is_caught(bug: str, world: CleaningWorld) -> None:
    function, right, wrong, proof = BUGS[bug]
    plant(world.url, function, right, wrong)
    with pytest.raises(AssertionError):
        await proof(world)
