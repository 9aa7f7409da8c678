"""A plan under a read pin, while everything it names is compacted, expires and would be deleted. Without Spark.

Fault model: the read begins late, or is repeated; the janitor runs as early as it may.
"""

from __future__ import annotations

import asyncio

import pytest

pytest.importorskip("pyarrow", reason="pyarrow is needed: make setup")

from headrace.scan import plan
from headrace.scan.columns import arrow_schema, record_batches
from headrace.scan.errors import UnreadableFileError
from headrace.scan.partitions import ScanPartition, Subscribe, TopicCatalog, select
from headrace.scan.plan import WantedOffsets
from headrace.scan.read import SplitReader
from tests.metastore.sql_sources import plant
from tests.spark.world import OLD_SECONDS, ScanWorld
from tests.storage.altered_reads import reads_of

PIN_MS = 4 * 3_600_000


async def read_late(world: ScanWorld, *, before: float = 0.0) -> list[list[int]]:
    """Plan now, and read twice after all planned files were replaced, expired and released for deletion."""
    (key,) = await world.topic("orders", 1)
    for number in range(5):
        await world.write(key, number)
    await world.compact(1)
    await world.pass_time(before)
    await plan.pin(world.postgres.jobs, "late", PIN_MS)
    partitions: list[ScanPartition] = select(
        Subscribe(("orders",)), await TopicCatalog(world.postgres.cluster).refresh()
    )
    planned = await plan.plan(
        world.postgres.index, {partitions[0]: WantedOffsets(0, 15)}, fail_on_data_loss=True, committed=True
    )
    await world.pass_time(before + OLD_SECONDS)
    await world.delete_dead_files()
    await world.compact(2)
    await world.delete_records(key, 15)
    await world.delete_dead_files()

    def read() -> list[list[int]]:
        reader = SplitReader(reads_of(world.store), pin_hint="readPinMs")
        try:
            schema = arrow_schema(["offset"])
            return [
                [row["offset"] for batch in record_batches(reader.batches(tuple(planned)), schema)
                 for row in batch.to_pylist()]
                for _ in range(2)
            ]  # fmt: skip
        finally:
            reader.close()

    return await asyncio.to_thread(read)


@pytest.mark.requirement("X6.1")
async def test_a_late_read_and_its_repetition_find_every_file(world: ScanWorld) -> None:
    assert await read_late(world) == [list(range(15))] * 2


async def test_a_pin_that_was_taken_after_hours_covers_what_is_live_then(world: ScanWorld) -> None:
    assert await read_late(world, before=10 * 3_600) == [list(range(15))] * 2


BUGS = {
    "the janitor ignores pins": ("read_horizon", "AND period_ms IS NULL", "AND period_ms IS NULL AND kind <> 'read'"),
    "a pin has no term": ("pin_reads", "v_now + p_term,", "v_now,"),
    "a pin's term begins in the past": ("pin_reads", "v_now := wall_time();", "v_now := wall_time() - p_term;"),
}


@pytest.mark.parametrize("bug", BUGS)
async def test_each_planted_bug_is_caught(bug: str, world: ScanWorld) -> None:
    plant(world.url, *BUGS[bug])
    with pytest.raises(UnreadableFileError, match=r"segment file is gone: topic=orders partition=0 .* readPinMs"):
        await read_late(world)
