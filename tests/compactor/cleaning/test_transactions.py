"""Log compaction of transactional records on real Postgres, by Kafka's rules (KIP-98, KIP-534).

Invariant checked: in any history of transactions, passes and merges, a read_committed consumer of a cleaned partition
sees the last committed record of each key, in order, under its offset; nothing at or behind the last stable offset is
touched; a marker stays while a record of its transaction is there, and for delete.retention.ms; when it goes, no later
record of its producer is hidden. Each planted bug must be caught by the same histories.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from typing import Any

import pytest

from headrace.compactor.cleaning import rewrite
from headrace.compactor.cleaning import rewrite as transactions
from headrace.compactor.cleaning.passes import Output
from headrace.compactor.plan import make_plan
from headrace.metastore.api.read import Extent, ExtentQuery
from headrace.metastore.transaction_markers import marker_of
from headrace.storage.records.codec import decode_records
from headrace.storage.records.header import read_header
from tests.compactor.cleaning.test_guarantees import rolled
from tests.compactor.cleaning.world import CleaningWorld
from tests.metastore.sessions import rows, session
from tests.metastore.sql_sources import Throwaway
from tests.planted import PlantedBugs, Trial
from tests.transactional_world import SeenRecord, Truth, Writer, committed, send, some_history

HOUR_MS = 3_600_000
CONFIGS = {
    "cleanup_policy": "compact",
    "segment_ms": str(HOUR_MS),
    "min_cleanable_dirty_ratio": "0.01",
    "delete_retention_ms": str(2 * HOUR_MS),
}


async def log_of(world: CleaningWorld, key: int) -> tuple[list[str], int, int]:
    """(what each extent is, last stable offset, aborted ranges that readers learn of)."""
    (found,) = await world.postgres.index.find_extents([ExtentQuery(key, 0, 1 << 40)])
    kinds = ["marker" if marker_of(extent.source) else "data" for extent in found.extents]
    return kinds, found.last_stable_offset, len(found.aborted)


async def kept_markers(world: CleaningWorld, key: int) -> set[Extent]:
    """Markers that the next pass may not remove: it is the first to meet them, or their time is not over."""
    cleaned_offset, young_ms = (await world.state(key)).cleaned_offset, world.now_ms() - 2 * HOUR_MS
    markers = [extent for extent in await world.extents(key) if marker_of(extent.source)]
    return {marker for marker in markers if marker.base_offset >= cleaned_offset or marker.position > young_ms}


async def offsets_from(world: CleaningWorld, key: int, start: int) -> list[int]:
    """Return the offsets of all records that are not markers."""
    batches = [batch for batch in await world.batches(key, start) if not read_header(batch).is_control]
    offsets = [record.offset for batch in batches for record in decode_records(memoryview(batch))]
    return [offset for offset in offsets if offset >= start]


def check(seen: list[SeenRecord], truth: Truth, key: int) -> None:
    """Check what a read_committed consumer may see of a compacted partition."""
    everything = truth.committed(key)
    assert set(seen) <= set(everything), "aborted, open or changed records"
    assert seen == sorted(seen), "order"
    last = {record.key: record for record in everything}
    missing = [record for record in last.values() if record.value is not None and record not in seen]
    assert not missing, f"the last committed record of a key is gone: {missing}"
    live = {record.key for record in seen}
    for record in everything:
        if record.key in live and last[record.key].value is None:
            assert last[record.key] in seen, f"a delete marker went before what it deletes: {record}"


_names = itertools.count()


async def history(world: CleaningWorld, seed: int) -> None:
    """Transactions, passes and merges; at the end all transactions end, and all that can go is gone."""
    rng = random.Random(seed)
    (key,) = await world.topic(f"t{next(_names)}", 1, **CONFIGS)
    truth, writers = Truth(), []
    for _ in range(3):
        _, more = await some_history(world, [key], rng, 10, truth)
        writers += more
        await rolled(world, key)
        _, stable, _ = await log_of(world, key)
        behind = [record for record in truth.all(key) if record.offset >= stable]
        must_stay = await kept_markers(world, key)
        await world.clean(extent_bytes=rng.choice([1, 300, 1 << 20]))
        assert must_stay <= set(await world.extents(key)), "a marker went too early"
        await world.check_accounts()
        check(await committed(world, key, max_bytes=rng.choice([1, 500, 1 << 20])), truth, key)
        assert await offsets_from(world, key, stable) == [record.offset for record in behind], "cleaned too far"
    for writer in writers:
        await writer.end(commits=rng.random() < 0.5)
    await send(world, truth, key, [("z", "last")])  # markers alone do not end an active part
    for _ in range(3):
        await rolled(world, key)
        await world.wait(3)
        await world.clean()
        check(await committed(world, key), truth, key)
    kinds, _, aborted = await log_of(world, key)
    seen = await committed(world, key)
    assert len({record.key for record in seen}) == len(seen), "a superseded record stays"
    assert ("marker" in kinds, aborted) == (False, 0), "ends of transactions stay"
    assert not any(read_header(batch).is_transactional for batch in await world.batches(key))


async def histories(world: CleaningWorld, seeds: range) -> None:
    """One after the other."""
    for seed in seeds:
        await history(world, seed)


async def test_consumers_see_the_last_committed_record_of_each_key(world: CleaningWorld) -> None:
    await histories(world, range(3))


def _no_range_counts(ended: Any, batch: Any) -> bool:
    return False


def _every_transaction_was_aborted(ended: Any, batch: Any) -> bool:
    return bool(batch.header.is_transactional)


def _others_are_hidden_too(ended: Any, batch: Any) -> bool:
    return any(first <= batch.offset < last for ranges in ended._ranges.values() for first, last in ranges)


async def _markers_join(output: Output, extent: Any, rule: rewrite.CleaningPass) -> None:
    """A marker that has to stay is part of the extent that is being written."""
    batch = transactions.marker_batch(extent)
    await output.add(extent, [batch], [rewrite.JudgedBatch(batch, [], 0, None, 0, 0, 0)])


_add_marker = Output.add_marker


async def _markers_go_at_once(output: Output, extent: Any, rule: rewrite.CleaningPass) -> None:
    await _add_marker(output, extent, rule._replace(cleaned_offset=1 << 62, now_ms=1 << 62, kept_offset=-1))


def _keys_of_aborted_records_count(batch: Any, ended: Any) -> Any:
    return [(r.key, r.offset) for r in rewrite.open_sound(batch)[0] if r.key is not None]


BUGS: dict[str, tuple[Any, str, Any]] = {
    "aborted records stay": (transactions.EndedTransactions, "hide", _no_range_counts),
    "committed records go": (transactions.EndedTransactions, "hide", _every_transaction_was_aborted),
    "records of others go": (transactions.EndedTransactions, "hide", _others_are_hidden_too),
    "an aborted record supersedes": (rewrite, "keyed_records", _keys_of_aborted_records_count),
    "a marker is lost in an extent": (Output, "add_marker", _markers_join),
    "a marker goes while its data may be there": (Output, "add_marker", _markers_go_at_once),
}


PLANTED = PlantedBugs("cleaning of transactions", most=500)


@PLANTED.cases(BUGS)
async def test_each_planted_bug_is_caught(
    bug: str,
    trial: Trial,
    throwaway: Throwaway,
) -> None:
    trial.plant(*BUGS[bug])
    for seed in trial.seeds():
        trial.saw(await found_by(seed, throwaway))


async def found_by(seed: int, databases: Throwaway, planted: Sequence[tuple[str, str, str]] = ()) -> str:
    """Return what a history finds, in a new database."""
    async with databases.store() as (url, store):
        world = CleaningWorld(store, url)
        await world.begin()
        for function, old, new in planted:
            await plant_sql(world, function, old, new)
        try:
            await history(world, seed)
        except AssertionError as found:
            return f"found: {found}"
        finally:
            await world.service.close()
    return ""


async def plant_sql(world: CleaningWorld, function: str, old: str, new: str) -> None:
    """Replace a part of an installed function."""
    async with session(world.url) as raw:
        ((text,),) = await rows(raw, f"SELECT pg_get_functiondef(oid) FROM pg_proc WHERE proname = '{function}'")
        assert text.count(old), f"{old} is not in {function}"
        await raw.execute(text.replace(old, new).encode())


SQL_BUGS = {
    "a pass reads behind the last stable offset": [
        ("find_parts_to_clean", "c.roll_offset, h.first_open_offset", "c.roll_offset"),
        ("describe_cleaning", "least(c.roll_offset, h.first_open_offset)", "c.roll_offset"),
    ],
    "a range stays without its marker": [("swap_cleaned_extents", "v_outcomes[i.swap] = swap_done()", "false")],
}


@PLANTED.cases(SQL_BUGS)
async def test_each_planted_sql_bug_is_caught(bug: str, trial: Trial, throwaway: Throwaway) -> None:
    for seed in trial.seeds():
        trial.saw(await found_by(seed, throwaway, SQL_BUGS[bug]))


async def test_a_forgotten_range_with_a_marker_that_is_gone_would_hide_later_records(world: CleaningWorld) -> None:
    """A producer's aborted transaction is cleaned away; its next one, behind the cleaned part, is committed."""
    (key,) = await world.topic("t", 1, **CONFIGS)
    truth = Truth()
    writer = Writer(world, truth, "copy")
    await writer.begin()
    await writer.send(key, ("a", "no"))
    await writer.end(commits=False)
    await rolled(world, key)
    await world.clean()
    assert await log_of(world, key) == (["data", "marker"], 2, 1), "the marker stays for delete.retention.ms"
    await world.wait(2.1)
    await writer.send(key, ("a", "yes"))
    await writer.end(commits=True)
    await rolled(world, key)
    await world.clean()
    kinds, _, aborted = await log_of(world, key)
    assert (kinds.count("marker"), aborted) == (1, 0)
    assert await committed(world, key) == [SeenRecord(2, "a", "yes")]


async def test_an_open_transaction_holds_cleaning_back_and_no_pass_is_planned_for_it(world: CleaningWorld) -> None:
    (key,) = await world.topic("t", 1, **CONFIGS)
    truth = Truth()
    writer = Writer(world, truth, "copy")
    await writer.begin()
    await writer.send(key, ("a", "open"))
    await send(world, truth, key, [("a", "1")])
    await send(world, truth, key, [("a", "2")])
    await rolled(world, key)
    assert await world.clean() == 0
    state = await world.state(key)
    assert (state.cleanable_end, state.dirty_bytes) == (0, 0)
    await writer.end(commits=True)
    await rolled(world, key)
    assert await world.clean() == 1
    assert await committed(world, key) == [SeenRecord(2, "a", "2")]


async def test_no_merge_takes_a_marker(world: CleaningWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor an extent across one: a merge that tried is refused by the swap."""
    (key,) = await world.topic("t", 1)
    truth, _ = await some_history(world, [key], random.Random(7), 30)
    before = [extent for extent in await world.extents(key) if marker_of(extent.source)]
    for level in (1, 2):
        await world.compact(level)
    after = await world.extents(key)
    assert [extent for extent in after if marker_of(extent.source)] == before
    assert await committed(world, key) == truth.committed(key)
    live = await world.postgres.compaction.live_extents(await world.live_files())
    assert not [e for partition in make_plan(1, live).partitions for e in partition.extents if marker_of(e.source)]
