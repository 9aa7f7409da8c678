"""Housekeeping runs permanently, finishes what is large in chunks, and survives a metastore that is away."""

from __future__ import annotations

import asyncio
import random

from prometheus_client import CollectorRegistry

from headrace.agent.serve.housekeeping import CHUNK_ROWS, IDLE_ROUNDS_MAX, INTERVAL_SECONDS, Housekeeper
from headrace.storage.errors import UnavailableError
from tests.manual_clock import ManualClock


class ScriptedMetastore:
    """Fault model: the eighth round fails. Chunks of expired producers (2.5), offsets, jobs,
    bulk writes (3) wait in the first."""

    def __init__(self) -> None:
        self.left = CHUNK_ROWS * 5 // 2
        self.rotations = 0
        self.deleted_partitions = 5
        self.old_offsets = CHUNK_ROWS * 3
        self.old_jobs = CHUNK_ROWS * 3
        self.old_blocks = CHUNK_ROWS * 3
        self.bulk_chunks = 3
        self.old_bulk_rows = CHUNK_ROWS * 3

    async def rotate_log_slots(self) -> str | None:
        self.rotations += 1
        if self.rotations == 8:
            raise UnavailableError("away")
        return None

    async def overdue_slots(self) -> dict[str, int]:
        return {"commit_log": 3, "commit_answers": 0}

    async def expire_producer_state(self, limit: int) -> int:
        done = min(limit, self.left)
        self.left -= done
        return done

    async def expire_group_offsets(self, limit: int) -> int:
        done = min(limit, self.old_offsets)
        self.old_offsets -= done
        return done

    async def prune_jobs(self, limit: int) -> int:
        done = min(limit, self.old_jobs)
        self.old_jobs -= done
        return done

    async def merge_producer_id_blocks(self, limit: int) -> int:
        done = min(limit - 1, self.old_blocks)
        self.old_blocks -= done
        return done

    async def finish_bulk_writes(self) -> int:
        self.bulk_chunks -= 1
        return 1 if self.bulk_chunks >= 0 else 0

    async def prune_bulk_writes(self, limit: int) -> int:
        done = min(limit, self.old_bulk_rows)
        self.old_bulk_rows -= done
        return done

    async def held_snapshot(self) -> int:
        return 42

    async def oldest_bulk_write(self) -> float:
        return 7.5

    async def oldest_audit_block(self) -> float:
        return 8.5

    async def purge_deleted_partitions(self, limit: int) -> int:
        self.deleted_partitions -= 1
        return 1 if self.deleted_partitions >= 0 else 0


async def test_works_in_chunks_and_goes_on_after_a_failure() -> None:
    clock, metastore, registry = ManualClock(), ScriptedMetastore(), CollectorRegistry()
    task = asyncio.create_task(Housekeeper(metastore, clock, random.Random(7), registry).run())
    while metastore.rotations == 0:
        await clock.advance(INTERVAL_SECONDS / 10)
    assert metastore.left == 0, "all expired producers in one go"
    assert metastore.old_offsets == metastore.old_jobs == metastore.old_blocks == 0
    assert metastore.deleted_partitions < 0, "all deleted partitions in one go, one a call"
    assert registry.get_sample_value("headrace_metastore_held_snapshot_transactions") == 42
    assert registry.get_sample_value("headrace_bulk_write_waits_seconds") == 7.5
    assert registry.get_sample_value("headrace_audit_trail_waits_seconds") == 8.5
    assert registry.get_sample_value("headrace_metastore_slots_overdue", {"log": "commit_log"}) == 3
    while metastore.rotations < 9:  # the eighth fails
        assert not task.done()
        await clock.advance(INTERVAL_SECONDS / 10)
    task.cancel()


class Broken(ScriptedMetastore):
    """Fault model: a bug in the first step and in the third, in every round."""

    async def rotate_log_slots(self) -> str | None:
        self.rotations += 1
        raise KeyError("a bug")

    async def purge_deleted_partitions(self, limit: int) -> int:
        raise ZeroDivisionError


async def test_a_step_that_breaks_does_not_starve_the_others() -> None:
    clock, metastore, registry = ManualClock(), Broken(), CollectorRegistry()
    task = asyncio.create_task(Housekeeper(metastore, clock, random.Random(7), registry).run())
    while metastore.rotations < 3:
        assert not task.done()
        await clock.advance(INTERVAL_SECONDS / 10)
    assert metastore.left == metastore.old_offsets == metastore.old_jobs == 0
    for step in ("rotate_log_slots", "purge_deleted_partitions"):
        failures = registry.get_sample_value("headrace_housekeeping_failures_total", {"step": step})
        assert failures is not None
        assert failures >= 2
    task.cancel()


async def test_more_agents_do_no_more_work_together() -> None:
    clock, rounds = ManualClock(), []
    for agents in (1, 10):
        metastore = ScriptedMetastore()
        keeper = Housekeeper(metastore, clock, random.Random(7), CollectorRegistry(), lambda agents=agents: agents)
        task = asyncio.create_task(keeper.run())
        await clock.advance(100 * INTERVAL_SECONDS)
        task.cancel()
        rounds.append(metastore.rotations)
    alone, one_of_ten = rounds
    assert 80 < alone < 120
    assert 7 < one_of_ten < 13


async def test_a_step_without_work_has_its_turn_rarely_until_there_is_some() -> None:
    clock, metastore = ManualClock(), Counting()
    task = asyncio.create_task(Housekeeper(metastore, clock, random.Random(7), CollectorRegistry()).run())
    await clock.advance(20 * INTERVAL_SECONDS)
    rotations, looks = metastore.rotations, metastore.looks
    await clock.advance(80 * INTERVAL_SECONDS)
    assert metastore.looks - looks <= (metastore.rotations - rotations) / IDLE_ROUNDS_MAX + 1
    metastore.old_jobs = CHUNK_ROWS // 2
    await clock.advance(2 * IDLE_ROUNDS_MAX * INTERVAL_SECONDS)
    assert metastore.old_jobs == 0
    metastore.error = UnavailableError("away")
    await clock.advance(2 * IDLE_ROUNDS_MAX * INTERVAL_SECONDS)
    rotations, looks = metastore.rotations, metastore.looks
    await clock.advance(10 * INTERVAL_SECONDS)
    assert metastore.looks - looks == metastore.rotations - rotations, "what failed is tried in each round"
    task.cancel()


class Busy(ScriptedMetastore):
    """One partition is deleted before each round; `turns`: how often that was seen."""

    turns = 0

    async def rotate_log_slots(self) -> str | None:
        self.deleted_partitions = 1
        return await super().rotate_log_slots()

    async def purge_deleted_partitions(self, limit: int) -> int:
        purged = await super().purge_deleted_partitions(limit)
        self.turns += purged
        return purged


async def test_a_step_with_work_has_its_turn_in_each_round() -> None:
    clock, metastore = ManualClock(), Busy()
    task = asyncio.create_task(Housekeeper(metastore, clock, random.Random(7), CollectorRegistry()).run())
    await clock.advance(20 * INTERVAL_SECONDS)
    task.cancel()
    assert metastore.rotations > 10
    assert metastore.turns == metastore.rotations


class Counting(ScriptedMetastore):
    """`error`: raised by each look for old jobs."""

    def __init__(self) -> None:
        super().__init__()
        self.looks = 0
        self.error: UnavailableError | None = None

    async def prune_jobs(self, limit: int) -> int:
        self.looks += 1
        if self.error:
            raise self.error
        return await super().prune_jobs(limit)
