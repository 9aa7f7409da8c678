"""A metastore rebuilt from the bucket after transactions: no record shows that was not committed.

Invariant checked: after any history, with merges and objects of outcomes at any moment, a rebuild shows exactly the
records that a read_committed consumer saw, without those of transactions that ended after the last run of the recorder;
also to read_uncommitted. Each planted bug must be caught by the same histories.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable
from typing import Any

import pytest

from headrace.compactor import outcomes as recording
from headrace.compactor import rebuild
from headrace.compactor.lost import find_lost_ends
from headrace.compactor.outcomes import OutcomeJob
from headrace.jobs.kinds import RECORD_OUTCOMES
from headrace.jobs.lease import Lease
from headrace.metastore import transaction_outcomes
from headrace.metastore.api.outcomes import TransactionOutcome
from headrace.metastore.api.read import ExtentQuery
from headrace.metastore.api.transactions import ProducerEpoch
from headrace.metastore.life.forgotten import write_forgotten
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.metastore.recorded_objects import write_entries
from headrace.metastore.transaction_markers import marker_of
from headrace.metastore.transaction_outcomes import BatchOwner, PartitionOutcomes, list_outcomes, read_outcomes
from headrace.storage.file_id import object_key
from headrace.storage.objects.store import ByteRange
from headrace.storage.records.codec import decode_records
from headrace.storage.segment.reader import walk_batches
from tests.compactor.test_rebuild import Lost, lost  # noqa: F401 -- the fixture
from tests.compactor.world import LEASE_MS, CompactionWorld
from tests.metastore.sessions import claim, rows, session
from tests.patch import Patch
from tests.seeds import seeds
from tests.transactional_world import Truth, Writer, committed, send, some_history

TOPIC = uuid.UUID(int=5)


async def record(world: CompactionWorld, metastore: PostgresMetastore | None = None) -> None:
    """One run of the job."""
    metastore = metastore or world.postgres
    job = await claim(metastore, RECORD_OUTCOMES.name)
    lease = Lease(metastore.jobs, job, world.clock, claimed_at=world.clock.monotonic(), lease_ms=LEASE_MS)
    await OutcomeJob(metastore, world.store, world.rng, world.clock)(job, lease)
    await metastore.jobs.finish_job(job.token)


async def shown(world: CompactionWorld, metastore: PostgresMetastore, key: int) -> list[tuple[int, str]]:
    """(offset, value) of every record that a read_uncommitted reader of the rebuilt partition gets."""
    (answer,) = await metastore.index.find_extents([ExtentQuery(key, 0, 1 << 40)])
    assert (answer.aborted, answer.last_stable_offset) == ([], answer.high_watermark)
    found = []
    for extent in answer.extents:
        if marker_of(extent.source) is None:
            data = await world.store.get(object_key(extent.file_id), ByteRange(extent.position, extent.length))
            offset = extent.base_offset
            for position, header in walk_batches(data):
                records = decode_records(memoryview(data)[position : position + header.size])
                found += [(offset + r.offset - header.base_offset, (r.value or b"-").decode()) for r in records]
                offset += header.last_offset_delta + 1
    return found


async def check_a_rebuild(world: CompactionWorld, lost: Lost, seed: int) -> None:  # noqa: F811
    """A history, the loss, a rebuild, and another rebuild of that."""
    rng = random.Random(seed)
    (key,) = await world.topic("t", 1)
    truth, known = Truth(), dict[ProducerEpoch, bool]()
    for part in range(3):
        await some_history(world, [key], rng, 12, truth)
        if part < 2:
            await record(world)
            known = dict(truth.outcomes)
            await world.compact(rng.choice([1, 1, 2]))
    expected = [
        (found.offset, found.value or "-") for found, owner in truth.sent[key] if owner is None or known.get(owner)
    ]
    assert truth.committed(key) == await committed(world, key)
    result = await lost.rebuild()
    (again,) = [k for k in await lost.keys() if k is not None][:1]
    values = sorted(await shown(world, lost.metastore, again), key=lambda one: one[0])
    assert sorted(value for _, value in values) == sorted(value for _, value in expected), f"{seed=}"
    assert (result.aborted_records > 0) == (False in known.values())
    merged = {offset for extent in await world.extents(key) if extent.source.version == 8
              for offset in range(extent.base_offset, extent.last_offset + 1)}  # fmt: skip
    assert {(o, v) for o, v in expected if o in merged} <= set(values), "known offsets stay"
    await record(world, lost.metastore)
    kept = {one for found in await list_outcomes(world.store) for one in await read_outcomes(world.store, found.key)}
    assert {one.marker_offset for one in kept if one.commits} <= await markers(lost.metastore, again)
    assert bool(kept) == bool(known), "another rebuild knows the outcomes, too"


async def markers(metastore: PostgresMetastore, key: int) -> set[int]:
    """Offsets of the partition's markers."""
    (answer,) = await metastore.index.find_extents([ExtentQuery(key, 0, 1 << 40)])
    return {extent.base_offset for extent in answer.extents if marker_of(extent.source) is not None}


@pytest.mark.parametrize("seed", seeds(range(2), range(2, 8)))
async def test_a_rebuild_shows_what_was_committed(world: CompactionWorld, lost: Lost, seed: int) -> None:  # noqa: F811
    await check_a_rebuild(world, lost, seed)


def _unknown_is_shown(right: Callable[..., Any]) -> Callable[..., Any]:
    return lambda ended, owner: right(ended, owner) is not False


def _aborted_is_shown(right: Callable[..., Any]) -> Callable[..., Any]:
    return lambda ended, owner: right(ended, owner) is not None


def _epochs_do_not_matter(right: Callable[..., Any]) -> Callable[..., Any]:
    def committed_(ended: PartitionOutcomes, owner: BatchOwner) -> bool:
        return any(one.commits for one in ended.outcomes if one.producer_id == owner.producer_id)

    return committed_


BUGS = [(_unknown_is_shown, 0), (_aborted_is_shown, 0), (_epochs_do_not_matter, 2)]


@pytest.mark.parametrize(("plant", "seed"), BUGS)
async def test_each_planted_bug_is_caught(
    world: CompactionWorld,
    lost: Lost,  # noqa: F811
    plant: Callable[..., Any],
    seed: int,
    patch: Patch,
) -> None:
    patch.wrap(PartitionOutcomes, "committed", plant)
    with pytest.raises(AssertionError):
        await check_a_rebuild(world, lost, seed)


async def test_a_rebuild_that_forgets_markers_is_caught(
    world: CompactionWorld,
    lost: Lost,  # noqa: F811
    patch: Patch,
) -> None:
    shown = rebuild.visible

    def without(batches: Any, ended: Any) -> Any:
        shown_ = shown(batches, ended)
        return shown_._replace(batches=[batch for batch in shown_.batches if batch.marker is None])

    patch.replace(rebuild, "visible", without)
    with pytest.raises(AssertionError):
        await check_a_rebuild(world, lost, 0)


def outcome(sequence: int, marker: int, *, commits: bool, epoch: int = 0) -> TransactionOutcome:
    """Return the outcome of one producer."""
    return TransactionOutcome(TOPIC, 0, 7, epoch, sequence, marker, 1, commits)


@pytest.mark.parametrize(
    ("sequence", "committed_"), [(0, True), (4, True), (5, False), (9, False), (10, True), (11, None), (99, None)]
)
def test_sequences_separate_the_transactions_of_one_epoch(sequence: int, committed_: bool | None) -> None:
    """Producers before KIP-890 keep their epoch."""
    ended = PartitionOutcomes(
        [outcome(11, 30, commits=True), outcome(5, 6, commits=True), outcome(10, 12, commits=False)]
    )
    assert ended.committed(BatchOwner(7, 0, sequence)) is committed_
    assert ended.committed(BatchOwner(7, 1, sequence)) is None
    assert ended.committed(BatchOwner(8, 0, sequence)) is None


def test_outcomes_that_contradict_each_other_are_not_believed() -> None:
    ended = PartitionOutcomes([outcome(10, 20, commits=True), outcome(5, 20, commits=False)])
    assert ended.committed(BatchOwner(7, 0, 7)) is None
    assert ended.committed(BatchOwner(7, 0, 2)) is None
    same = PartitionOutcomes([outcome(10, 20, commits=True), outcome(10, 20, commits=False)])
    assert same.committed(BatchOwner(7, 0, 7)) is None


async def test_objects_are_joined_and_lose_what_is_not_in_the_log(world: CompactionWorld) -> None:
    (key,) = await world.topic("t", 1)
    truth = Truth()
    writer = Writer(world, truth, "copy")
    await writer.begin()
    for number in range(recording.JOIN_AT + 2):
        await writer.send(key, ("a", str(number)))
        await writer.end(commits=number % 2 == 0)
        await record(world)
    foreign = outcome(3, 1, commits=True)
    await write_entries(world.store, transaction_outcomes.PREFIX, -1, uuid.UUID(int=1), [foreign])
    await record(world)
    found = await list_outcomes(world.store)
    assert len(found) < recording.JOIN_AT
    known = [one for found_ in found for one in await read_outcomes(world.store, found_.key)]
    assert len(known) == len(set(known)) == recording.JOIN_AT + 2 + (foreign in known)
    await send(world, truth, key, [("b", "1")])
    async with session(world.url) as raw:
        assert await rows(raw, "SELECT count(*) FROM transaction_outcomes") == [(0,)]


async def test_a_crash_between_object_and_row_leaves_it_twice(world: CompactionWorld) -> None:
    (key,) = await world.topic("t", 1)
    writer = Writer(world, Truth(), "copy")
    await writer.begin()
    await writer.send(key, ("a", "1"))
    await writer.end(commits=True)
    (ended,) = await world.postgres.outcomes.ended_transactions(10)
    assert ended.outcome is not None
    await write_entries(world.store, transaction_outcomes.PREFIX, 0, uuid.UUID(int=1), [ended.outcome])
    await record(world)
    (ended_twice,) = (await rebuild.all_outcomes(world.store)).values()
    assert ended_twice.outcomes == [ended.outcome]
    assert ended_twice.committed(BatchOwner(*writer.who[:1], writer.who.epoch - 1, 0)) is True
    assert transaction_outcomes.PREFIX == "metastore/transactions/"


async def test_ends_that_a_promotion_lost_are_listed(world: CompactionWorld) -> None:
    """Agents record markers, too; those that are in the log were not lost."""
    (key,) = await world.topic("t", 1)
    writer = Writer(world, Truth(), "copy")
    await writer.begin()
    await writer.send(key, ("a", "1"))
    await writer.end(commits=True)
    there = (await world.extents(key))[-1]
    gone = there._replace(base_offset=7, last_offset=7)
    await write_forgotten(world.store, uuid.UUID(int=1), [there, gone])
    (end,) = await find_lost_ends(world.postgres.index, world.store)
    assert (end.partition_key, end.offset, end.marker.commits) == (key, 7, True)
