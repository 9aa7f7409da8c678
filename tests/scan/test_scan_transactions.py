"""Scans and exports of transactional records on real Postgres: what Kafka's consumers of either isolation see.

Invariant checked: in any history, a scan with read_committed has the committed records up to the last stable offset,
one with read_uncommitted all records; neither has markers; in splits of any size, from and to any offset, before and
after merges. Each planted bug must be caught by the same histories.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="pyarrow is needed: make setup")

from headrace.metastore.api.read import OffsetKind
from headrace.scan import offsets, plan, read
from headrace.scan.columns import arrow_schema, record_batches
from headrace.scan.errors import DataLossError
from headrace.scan.offsets import first_offset_since
from headrace.scan.options import parse_options
from headrace.scan.partitions import ScanPartition, Subscribe, TopicCatalog, select
from headrace.scan.plan import WantedOffsets, make_splits
from headrace.scan.read import SplitReader
from headrace.storage.clock import SystemClock
from headrace.storage.objects.memory import MemoryStore
from tests.planted import PlantedBugs, Trial
from tests.scan.test_export import export, exported
from tests.scan.thrown_away import ThrownAway
from tests.spark.world import ScanWorld
from tests.storage.altered_reads import reads_of
from tests.storage.batches import BASE_TIME_MS
from tests.transactional_world import SeenRecord, Truth, Writer, committed, send, some_history

EARLIEST, LATEST = int(OffsetKind.EARLIEST), int(OffsetKind.LATEST)


async def partition_of(world: ScanWorld, name: str) -> ScanPartition:
    (partition,) = select(Subscribe((name,)), await TopicCatalog(world.postgres.cluster).refresh())
    return partition


async def scanned(
    world: ScanWorld, partition: ScanPartition, *, isolated: bool, rng: random.Random, start: int | None = None
) -> list[SeenRecord]:
    """The rows from `start` (None: the earliest) to the latest offset."""
    first = (await offsets.special_offsets(world.postgres.index, {partition: EARLIEST}, committed=isolated))[partition]
    last = (await offsets.special_offsets(world.postgres.index, {partition: LATEST}, committed=isolated))[partition]
    wanted = WantedOffsets(first if start is None else start, last)
    planned = await plan.plan(world.postgres.index, {partition: wanted}, fail_on_data_loss=True, committed=isolated)
    splits = make_splits(planned, rng.choice([200, 2_000, 1 << 26]), rng.choice([None, 1, 5]))

    def rows() -> list[SeenRecord]:
        reader = SplitReader(reads_of(world.store), pin_hint="")
        try:
            return [_row(row) for split in splits for batch in record_batches(reader.batches(split), SCHEMA)
                    for row in batch.to_pylist()]  # fmt: skip
        finally:
            reader.close()

    return sorted(await asyncio.to_thread(rows))


SCHEMA = arrow_schema(["offset", "key", "value"])


def _row(row: dict[str, Any]) -> SeenRecord:
    key, value = row["key"], row["value"]
    return SeenRecord(row["offset"], key and key.decode(), None if value is None else value.decode())


async def check(world: ScanWorld, name: str, key: int, truth: Truth, rng: random.Random) -> None:
    """Both isolations, from the beginning and from a random offset."""
    partition = await partition_of(world, name)
    assert await scanned(world, partition, isolated=True, rng=rng) == truth.committed(key)
    assert await scanned(world, partition, isolated=False, rng=rng) == truth.all(key)
    stable = (await offsets.special_offsets(world.postgres.index, {partition: LATEST}, committed=True))[partition]
    start = rng.randint(0, stable)
    assert await scanned(world, partition, isolated=True, rng=rng, start=start) == truth.committed(key, start)


_names = itertools.count()


async def histories(world: ScanWorld, seeds: Iterable[int]) -> None:
    """A topic and a history for each seed, read as it grows."""
    for seed in seeds:
        rng = random.Random(seed)
        name = f"t{next(_names)}"
        (key,) = await world.topic(name, 1)
        truth = Truth()
        for part in range(3):
            await some_history(world, [key], rng, 12, truth)
            await check(world, name, key, truth, rng)
            if part == 1:
                await world.compact(1)
                await world.compact(2)
        assert await committed(world, key) == truth.committed(key), "as a consumer"


async def test_a_scan_returns_what_a_consumer_of_its_isolation_reads(world: ScanWorld) -> None:
    await histories(world, range(3))


def _aborted_is_read(*_: Any) -> bool:
    return False


def _plain_batches_in_a_range_are_aborted(batch: Any, aborted: Any) -> bool:
    return any(one.first_offset <= batch.offset < one.last_offset for one in aborted)


def _only_whole_ranges(aborted: Any, start: int, end: int) -> Any:
    return tuple(one for one in aborted if start <= one.first_offset and one.last_offset < end)


def _latest_is_the_high_watermark(right: Any) -> Any:
    async def special(metastore: Any, kinds: Any, *, committed: bool) -> Any:
        return await right(metastore, kinds, committed=False)

    return special


BUGS: dict[str, tuple[Any, str, Any]] = {
    "aborted records are read": (read, "_is_aborted", _aborted_is_read),
    "others' records in a range are lost": (read, "_is_aborted", _plain_batches_in_a_range_are_aborted),
    "a range that crosses an extent is forgotten": (plan, "_inside", _only_whole_ranges),
    "open transactions are read": (
        offsets, "special_offsets", _latest_is_the_high_watermark(offsets.special_offsets)
    ),
    "markers are read as files": (plan, "is_in_file", lambda extent: True),
}  # fmt: skip


PLANTED = PlantedBugs("scans of transactions", most=500)


@PLANTED.cases(BUGS)
async def test_each_planted_bug_is_caught(bug: str, trial: Trial, thrown_away: ThrownAway) -> None:
    trial.plant(*BUGS[bug])

    async def history(world: ScanWorld, folder: Path, seed: int) -> None:
        await histories(world, [seed])

    await thrown_away.look_for(trial, history, Exception)


async def open_behind(world: ScanWorld) -> tuple[int, Truth, Writer]:
    """A plain record, a committed one, an aborted one, and an open transaction with a plain record behind it."""
    (key,) = await world.topic("orders", 1)
    truth = Truth()
    writer = Writer(world, truth, "copy")
    await writer.begin()
    await send(world, truth, key, [("a", "plain")])
    for value, commits in (("yes", True), ("no", False)):
        await writer.send(key, ("a", value))
        await writer.end(commits=commits)
    await writer.send(key, ("a", "open"))
    await send(world, truth, key, [("b", "behind")])
    return key, truth, writer


async def test_an_export_continues_when_the_transaction_has_ended(world: ScanWorld) -> None:
    _, _, writer = await open_behind(world)
    target, whole = MemoryStore(SystemClock()), MemoryStore(SystemClock())
    assert await export(world, target) == 2
    assert await export(world, whole, committed=False) == 5
    assert [row["value"] for row in await exported(target)] == [b"plain", b"yes"]
    await writer.end(commits=True)
    assert await export(world, target) == 2
    assert [row["value"] for row in await exported(target)] == [b"plain", b"yes", b"open", b"behind"]


async def test_explicit_bounds_and_times_stay_below_the_last_stable_offset(world: ScanWorld) -> None:
    await open_behind(world)
    partition = await partition_of(world, "orders")
    wanted = {partition: WantedOffsets(0, 7)}
    with pytest.raises(DataLossError, match=r"the log has 0 to 4"):
        await plan.plan(world.postgres.index, wanted, fail_on_data_loss=True, committed=True)
    (planned,) = await plan.plan(world.postgres.index, wanted, fail_on_data_loss=True, committed=False)
    assert [one.base_offset for one in planned.slices] == [0, 1, 3, 5, 6]
    for isolated, times in ((True, [0, None]), (False, [0, None])):
        assert [
            await first_offset_since(world.postgres.index, reads_of(world.store), partition, at, committed=isolated)
            for at in (BASE_TIME_MS, BASE_TIME_MS + 9)
        ] == times


@pytest.mark.parametrize(
    ("given", "isolated"),
    [
        ({}, True),
        ({"isolation.level": "read_uncommitted"}, False),
        ({"Isolation.Level": "READ_COMMITTED"}, True),
        ({"kafka.isolation.level": "read_uncommitted"}, False),
    ],
)
def test_the_option_has_kafkas_values(given: dict[str, str], isolated: bool) -> None:
    assert parse_options({"subscribe": "t", **given}, streaming=False).committed is isolated
