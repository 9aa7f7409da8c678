"""A rebuild shows of Spark's writes what was decided, and nothing of attempts that were not.

Invariant checked: after any history of attempts that fail, are decided, half committed or complete, with merges and
runs of the recording job at any moment, a rebuild shows exactly the rows of decided attempts, once.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from headrace.compactor import rebuild
from headrace.compactor.outcomes import BulkDecisionRecorder
from headrace.compactor.rebuild import BulkFiles
from headrace.metastore.api.commit import BulkFile, BulkOutcome
from headrace.metastore.api.read import Extent, ExtentQuery
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.metastore.recorded_objects import (
    PREFIX,
    RECORDED,
    are_recorded,
    list_in_force,
    list_recorded,
    read_entries,
    write_entries,
)
from headrace.scan.bulk.commit import BulkCommit, BulkWrite
from headrace.scan.bulk.task import Rows
from headrace.storage.file_id import new_bulk_file_id, term_ms
from tests.compactor.test_rebuild import Lost, lost, read_all  # noqa: F401 -- the fixture
from tests.compactor.test_rebuild_transactions import record
from tests.metastore.sql_sources import plant
from tests.patch import Patch
from tests.scan.test_bulk_write import Attempts
from tests.seeds import seeds
from tests.spark.world import ScanWorld

WRITES = 12


@pytest.fixture
async def world(metastore: PostgresMetastore, metastore_url: str, tmp_path: Path) -> AsyncIterator[ScanWorld]:
    """Files in a directory."""
    world = ScanWorld(metastore, metastore_url, tmp_path / "bucket")
    await world.begin()
    yield world
    await world.service.close()


class Writes:
    """Attempts at batches; `decided` has the values of those that were decided."""

    def __init__(self, world: ScanWorld, seed: int) -> None:
        self.world, self.rng = world, random.Random(seed)
        self.attempts = Attempts(world)
        self.decided: set[bytes] = set()
        self.files = 0

    async def one(self, number: int) -> None:
        """A task fails, perhaps; then another attempt gets somewhere."""
        stored, values = [], []
        for attempt in range(self.rng.randint(1, 3)):
            values = [b"%d-%d-%d" % (number, attempt, row) for row in range(6)]
            stored = await self.attempts.stored(*[Rows(values=values[n : n + 3]) for n in (0, 3)], file_bytes=1)
            self.files += len(stored)
        end = self.rng.choice(["failed", "staged", "decided", "half", "committed", "committed"])
        if end == "committed":
            bucket = self.world.store if self.rng.random() < 0.5 else None
            commit = BulkCommit(
                *(self.world.postgres, BulkWrite(f"writer-{number}", 0), self.attempts.clock, self.rng),
                bucket=bucket,
                chunk_runs=1,
            )
            assert await commit.commit(stored)
        elif end != "failed":
            await self._killed(f"writer-{number}", stored, end)
        if end not in ("failed", "staged"):
            self.decided.update(values)

    async def _killed(self, writer: str, files: list[BulkFile], end: str) -> None:
        """The driver is, after this step."""
        store, attempt = self.world.postgres, uuid.UUID(int=self.rng.getrandbits(128), version=4)
        for chunk, file in enumerate(files):
            await store.commits.stage_bulk_chunk(attempt, chunk, [file])
        if end == "staged":
            return
        assert (await store.commits.decide_bulk_write(writer, 0, attempt, len(files))).outcome is BulkOutcome.DECIDED
        if end == "half":
            await store.commits.commit_bulk_chunk(writer, attempt, 0)


async def some_writes(world: ScanWorld, seed: int) -> Writes:
    """A history; at its end all is recorded."""
    writes = Writes(world, seed)
    await world.topic("orders", 2)
    for number in range(WRITES):
        await writes.one(number)
        if writes.rng.random() < 0.3:
            await record(world)
        if writes.rng.random() < 0.2:
            await world.compact(1)
    await record(world)
    return writes


async def readable(world: ScanWorld, again: Lost) -> list[bytes]:
    return sorted([found.value for key in await again.keys() for found in await read_all(world, again.metastore, key)])


async def recorded(world: ScanWorld) -> list[uuid.UUID]:
    return [one for found in await list_in_force(world.store, PREFIX)
            for one in await read_entries(world.store, found.key, uuid.UUID)]  # fmt: skip


async def check_a_rebuild(world: ScanWorld, again: Lost, seed: int) -> None:
    writes = await some_writes(world, seed)
    foreign = new_bulk_file_id(1_700_000_000_000, 3, writes.rng)
    await write_entries(world.store, PREFIX, -1, uuid.UUID(int=1), [foreign])  # of a life that was lost
    found = await again.rebuild()
    assert await readable(world, again) == sorted(writes.decided), f"{seed=}"
    assert (found.undecided_records > 0, found.unsure_records) == (writes.files * 3 > len(writes.decided), 0)
    await record(world, again.metastore)
    kept = await recorded(world)
    assert foreign not in kept, "a decision that the new life lacks"
    assert len(kept) > 0, "another rebuild knows them, too"
    shown = {extent.file_id for key in await again.keys() for extent in await extents(again.metastore, key)}
    assert {file_id for file_id in shown if term_ms(file_id)} <= set(kept)


async def extents(metastore: PostgresMetastore, key: int) -> list[Extent]:
    (answer,) = await metastore.index.find_extents([ExtentQuery(key, 0, 1 << 40)])
    return list(answer.extents)


@pytest.mark.requirement("X6.3")
@pytest.mark.parametrize("seed", seeds(range(2), range(2, 20)))
async def test_a_rebuild_shows_only_what_was_decided(world: ScanWorld, lost: Lost, seed: int) -> None:  # noqa: F811
    await check_a_rebuild(world, lost, seed)


async def test_a_bucket_of_an_older_version_shows_every_attempt_and_says_so(
    world: ScanWorld,
    lost: Lost,  # noqa: F811
) -> None:
    writes = await some_writes(world, 1)
    await world.store.delete_many([RECORDED, *[found.key for found in await list_recorded(world.store, PREFIX)]])
    found = await lost.rebuild()
    assert set(await readable(world, lost)) > writes.decided
    assert (found.undecided_records, found.unsure_records > 0) == (0, True)
    assert not await are_recorded(world.store)
    await record(world, lost.metastore)
    assert await are_recorded(world.store)
    shown = {extent.file_id for key in await lost.keys() for extent in await extents(lost.metastore, key)}
    assert shown <= set(await recorded(world)) | {one for one in shown if one.int >> 72 & 0xF}, (
        "the next one shows them"
    )


async def test_a_driver_records_before_its_first_chunk(world: ScanWorld, lost: Lost) -> None:  # noqa: F811
    """A rebuild shows the rows of a job that has just succeeded."""
    await world.topic("orders", 2)
    await record(world)
    attempts = Attempts(world)
    for _ in range(3):
        await attempts.stored(Rows(values=[b"failed"]))
    assert await attempts.commit(0, await attempts.stored(Rows(values=[b"good"])), bucket=world.store)
    found = await lost.rebuild()
    assert await readable(world, lost) == [b"good"]
    assert found.undecided_records == 3


async def test_what_was_decided_just_before_the_loss_is_left_out_and_counted(
    world: ScanWorld,
    lost: Lost,  # noqa: F811
) -> None:
    await world.topic("orders", 2)
    await record(world)
    writes = Writes(world, 1)
    while not writes.decided:
        await writes.one(0)
    found = await lost.rebuild()
    assert await readable(world, lost) == []
    assert found.undecided_records >= len(writes.decided)


@pytest.mark.parametrize(
    "bug",
    [
        "decisions are not kept",
        "every attempt is shown",
        "what the index has is forgotten",
        "a lost life is believed",
        "a rebuild records nothing",
    ],
)
async def test_a_planted_bug_is_caught(
    bug: str,
    world: ScanWorld,
    lost: Lost,  # noqa: F811
    patch: Patch,
) -> None:
    async def all_decided(*_: Any) -> BulkFiles:
        return BulkFiles((), ())

    async def answers(self: BulkDecisionRecorder, entries: list[uuid.UUID]) -> list[bool]:
        return [bug == "a lost life is believed"] * len(entries)

    match bug:
        case "decisions are not kept":
            plant(world.url, "decide_bulk_write", "c.attempt = p_attempt ORDER BY id\n", "false ORDER BY id\n")
        case "every attempt is shown":
            patch.replace(rebuild, "bulk_files", all_decided)
        case "a rebuild records nothing":
            plant(
                lost.world.url.replace("/test_", "/rebuilt_"),
                "rebuild_files",
                "WHERE live_bytes > 0 AND",
                "WHERE false AND",
            )
        case _:
            patch.replace(BulkDecisionRecorder, "in_use", answers)
    if bug == "a rebuild records nothing":
        proof = test_a_bucket_of_an_older_version_shows_every_attempt_and_says_so(world, lost)
    else:
        proof = check_a_rebuild(world, lost, 1)
    with pytest.raises(AssertionError):
        await proof
