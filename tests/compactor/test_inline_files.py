"""Inline files from their commit to an empty slot, on real Postgres, read back through Fetch (X13)."""

from __future__ import annotations

import asyncio
import dataclasses
import random
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from headrace.compactor.compact import PATIENT_ATTEMPTS
from headrace.metastore.api.commit import BatchOutcome, FileCommit, StagedBatch
from headrace.metastore.api.compaction import DamageKind
from headrace.metastore.api.inline import InlineRange
from headrace.metastore.api.retention import LogStartTarget
from headrace.metastore.log.snapshot import load_image
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.metastore.topic_restore import kept_records
from headrace.storage.errors import CorruptError, HeadraceError, InvalidError, NotFoundError, UnavailableError
from headrace.storage.file_id import is_inline, new_file_id, new_inline_file_id, object_key
from headrace.storage.objects.store import ByteRange
from tests.compactor.inline_world import InlineWorld
from tests.inline_slots import inline_slot
from tests.metastore.sessions import rows, session, set_for_cluster
from tests.metastore.sql_sources import plant
from tests.storage.batches import plain_batch

pytestmark = pytest.mark.requirement("X13")
SLOTS = 16


@pytest.fixture
async def world(metastore: PostgresMetastore, metastore_url: str) -> AsyncIterator[InlineWorld]:
    async with InlineWorld.running(metastore, metastore_url) as world:
        await world.raise_level()
        yield world


async def filled(world: InlineWorld, files: int = 6) -> tuple[int, int]:
    """Commit inline files and two of the bucket between them, of two partitions; their keys."""
    a, b = await world.topic("t", 2)
    slot = await world.slot()
    for number in range(files):
        value = b"value-%d " % number * 20
        batches = [(a, plain_batch(3, value)), (a, plain_batch(1, value)), (b, plain_batch(2, value))]
        await world.commit(*batches, slot=None if number in (1, 4) else slot)
    return a, b


class TestCommit:
    """Bytes and order are one transaction."""

    async def test_small_files_are_read_from_the_metastore_and_never_asked_of_the_bucket(
        self, world: InlineWorld
    ) -> None:
        a, b = await filled(world)
        assert [len(await world.records(key)) for key in (a, b)] == [24, 12]
        keys = {key for key, _ in world.bucket.gets}
        assert len(keys) == 2
        files = await world.live_files()
        assert sum(map(is_inline, files)) == 4 == await world.held_rows()
        assert not keys & {object_key(file_id) for file_id in files if is_inline(file_id)}

    async def test_a_repeated_commit_gets_its_answer_and_stores_nothing_twice(
        self, world: InlineWorld, metastore_url: str
    ) -> None:
        (key,) = await world.topic("t", 1)
        file_id = await world.commit((key, plain_batch(3)), slot=await world.slot())
        (body,) = await world.postgres.inline.read_inline([InlineRange(file_id, 0, 0)])
        assert body is not None
        again = FileCommit(file_id, len(body), [StagedBatch(key, 0, len(body) - 100, 3, 0)], body)
        first = await world.postgres.commits.commit_files(world.node_id, world.broker_epoch, [again])
        assert (first[0].batches[0].outcome, first[0].batches[0].base_offset) == (BatchOutcome.APPENDED, 0)
        assert await world.held_rows() == 1
        async with session(metastore_url) as raw:  # also after its slot was emptied
            await raw.execute(b"TRUNCATE inline_files")
        second = await world.postgres.commits.commit_files(world.node_id, world.broker_epoch, [again])
        assert second == first
        assert await world.held_rows() == 0

    async def test_two_calls_with_one_file_at_once_store_it_once(self, world: InlineWorld) -> None:
        (key,) = await world.topic("t", 1)
        body = b"x" * 5_000
        file_id = new_inline_file_id(time.time_ns() // 1_000_000, await world.slot(), world.rng)
        commit = FileCommit(file_id, len(body), [StagedBatch(key, 0, 4_000, 1, 0)], body)
        call = world.postgres.commits.commit_files
        answers = await asyncio.gather(*(call(world.node_id, world.broker_epoch, [commit]) for _ in range(8)))
        assert {answer.batches[0].base_offset for (answer,) in answers} == {0}
        assert await world.held_rows() == 1
        assert len(await world.extents(key)) == 1

    async def test_what_fails_later_in_the_call_takes_the_bytes_back(
        self, world: InlineWorld, metastore_url: str
    ) -> None:
        (key,) = await world.topic("t", 1)
        file_id = new_inline_file_id(time.time_ns() // 1_000_000, await world.slot(), world.rng)
        commit = FileCommit(file_id, 10, [StagedBatch(key, 0, 10, 1, 0)], b"0123456789")
        call = world.postgres.commits.commit_files
        async with session(metastore_url) as raw:
            await raw.execute(b"ALTER TABLE commit_answers ADD CONSTRAINT fails CHECK (false) NOT VALID")
            with pytest.raises(Exception, match="fails"):
                await call(world.node_id, world.broker_epoch, [commit])
            assert await world.held_rows() == 0
            await raw.execute(b"ALTER TABLE commit_answers DROP CONSTRAINT fails")
        (answer,) = await call(world.node_id, world.broker_epoch, [commit])
        assert answer.batches[0].outcome is BatchOutcome.APPENDED
        assert await world.held_rows() == 1

    async def test_an_id_that_says_another_place_is_refused(self, world: InlineWorld) -> None:
        (key,) = await world.topic("t", 1)
        now = time.time_ns() // 1_000_000
        inline, other = new_inline_file_id(now, await world.slot(), world.rng), new_file_id(now, world.rng)
        staged = [StagedBatch(key, 0, 4, 1, 0)]
        for wrong in (
            FileCommit(inline, 4, staged),
            FileCommit(other, 4, staged, b"body"),
            FileCommit(inline, 5, staged, b"body"),
        ):
            with pytest.raises(InvalidError):
                await world.postgres.commits.commit_files(world.node_id, world.broker_epoch, [wrong])
        assert await world.held_rows() == 0


class TestMoving:
    """A merge moves what is live; then the slot can be emptied, and not before."""

    async def test_a_merge_moves_them_and_the_slot_is_emptied(self, world: InlineWorld) -> None:
        a, b = await filled(world)
        before = [await world.records(key) for key in (a, b)]
        await world.compact(1)
        (merged,) = await world.live_files()
        assert not is_inline(merged)
        assert [await world.records(key) for key in (a, b)] == before
        await world.check_accounts()
        assert await world.rotate() == 0, "readers that located them a moment ago may still come"
        await world.later()
        await world.rotate(until=SLOTS - 1)
        assert await world.held_rows() == 0
        assert [await world.records(key) for key in (a, b)] == before

    async def test_an_unmoved_file_keeps_its_slot_and_nothing_else(self, world: InlineWorld) -> None:
        (key,) = await world.topic("t", 1)
        slots = []
        for number in range(4):
            slots.append(await world.slot())
            await world.commit((key, plain_batch(1, b"%d" % number)), slot=slots[-1])
            await world.later()
            await world.rotate()
        assert len(set(slots)) == 4
        first, *others = await world.live_files()
        await world.run(await world.claim(others, 1))
        await world.later()
        await world.rotate(until=SLOTS - 2)
        assert await world.live_files() != others
        assert await world.held_rows() == 1
        assert inline_slot(first) == slots[0]
        assert len(await world.records(key)) == 4

    async def test_without_an_empty_slot_no_slot_takes_files(self, world: InlineWorld) -> None:
        (key,) = await world.topic("t", 1)
        for _ in range(SLOTS):
            await world.commit((key, plain_batch(1)), slot=await world.slot())
            await world.rotate(slot_bytes=1)
        state = await world.postgres.inline.inline_state()
        assert (state.slot, state.free_slots) == (-1, 0)
        assert state.held_bytes > 0
        await world.compact(1)
        await world.later()
        await world.rotate()
        assert (await world.postgres.inline.inline_state()).free_slots == 1
        await world.slot()

    async def test_removed_records_free_their_slot(self, world: InlineWorld) -> None:
        (key,) = await world.topic("t", 1)
        await world.commit((key, plain_batch(1)), slot=await world.slot())
        await world.rotate(slot_bytes=1)
        await world.postgres.retention.move_log_starts([LogStartTarget(key, 1)], max_extents=100)
        await world.later()
        await world.rotate(until=SLOTS - 1)
        assert await world.held_rows() == 0

    async def test_what_a_restore_could_need_is_kept_while_slots_are_free_and_holds_up_no_file(
        self, world: InlineWorld
    ) -> None:
        await set_for_cluster(world.postgres, "file.delete.delay.ms", 3_600_000)
        (key,) = await world.topic("t", 1)
        (other,) = await world.topic("other", 1)
        await world.commit((key, plain_batch(1)), slot=await world.slot())
        await world.rotate(slot_bytes=1)
        image = await load_image(world.postgres.cluster)
        topic = image.topics_by_name["t"]
        kept = {topic.topic_id: kept_records(image, topic)}
        assert await world.postgres.topics.delete_topics(image.offset, [topic.topic_id], kept)
        assert await world.postgres.housekeeping.purge_deleted_partitions(1_000)
        await world.later(600)
        await world.rotate()
        state = await world.postgres.inline.inline_state()
        assert (await world.held_rows(), state.oldest_ms) == (1, 0), "nothing waits to be moved"
        for _ in range(12):
            await world.commit((other, plain_batch(1)), slot=await world.slot())
            await world.rotate(slot_bytes=1)
        await world.later()
        await world.rotate()
        assert await world.held_rows() == 12

    async def test_the_oldest_file_is_one_that_is_not_moved(self, world: InlineWorld) -> None:
        (key,) = await world.topic("t", 1)
        first = await world.commit((key, plain_batch(1)), slot=await world.slot())
        await world.later(5)
        await world.commit((key, plain_batch(1)), slot=await world.slot())
        await world.rotate()
        assert (await world.postgres.inline.inline_state()).oldest_ms >= 5_000
        await world.run(await world.claim([first], 1))
        await world.rotate()
        assert (await world.postgres.inline.inline_state()).oldest_ms < 5_000

    async def test_a_file_that_is_being_committed_keeps_its_slot(self, world: InlineWorld, metastore_url: str) -> None:
        (key,) = await world.topic("t", 1)
        slot = await world.slot()
        async with session(metastore_url) as late:
            await late.execute(b"BEGIN")
            await late.execute("INSERT INTO inline_files VALUES (%s, gen_random_uuid(), 'x')", (slot,))
            other = await world.commit((key, plain_batch(1)), slot=slot)
            await world.run(await world.claim([other], 1))
            await world.later()
            for _ in range(3):
                assert await world.rotate(slot_bytes=1) == 0
            await late.execute(b"ROLLBACK")
        await world.rotate(slot_bytes=1, until=SLOTS - 1)

    async def test_a_late_file_in_an_emptied_slot_is_drained_too(self, world: InlineWorld) -> None:
        """A commit of unknown outcome may be repeated for an hour."""
        (key,) = await world.topic("t", 1)
        used = await world.slot()
        other = next(slot for slot in range(SLOTS) if slot != used)
        late = await world.commit((key, plain_batch(1)), slot=other)
        await world.rotate()
        assert (await world.postgres.inline.inline_state()).free_slots == SLOTS - 2
        await world.run(await world.claim([late], 1))
        await world.later()
        await world.rotate(until=SLOTS - 1)
        assert await world.held_rows() == 0
        assert (await world.postgres.inline.inline_state()).oldest_ms == 0

    async def test_an_asked_move_is_seen_for_an_hour(self, world: InlineWorld) -> None:
        assert (await world.postgres.inline.inline_state()).asked_ms == -1
        await world.postgres.inline.ask_inline_move()
        assert 0 <= (await world.postgres.inline.inline_state()).asked_ms < 60_000
        await world.later(3_601)
        assert (await world.postgres.inline.inline_state()).asked_ms == -1


@pytest.mark.parametrize(
    ("function", "right", "wrong"),
    [
        ("rotate_inline_slots", "f.dead_at IS NULL)", "false)"),
        ("rotate_inline_slots", "CONTINUE WHEN v_live IS NOT NULL;", ""),
    ],
)
async def test_the_slots_keep_two_locks_on_a_live_file(
    world: InlineWorld, metastore_url: str, function: str, right: str, wrong: str
) -> None:
    """A slot keeps its live file with one of the two broken: extents are probed, too, and again under the lock."""
    a, b = await filled(world)
    plant(metastore_url, function, right, wrong)
    await world.later()
    assert await world.rotate(slot_bytes=1) == 0
    assert [len(await world.records(key)) for key in (a, b)] == [24, 12]


async def test_the_planted_bug_empties_a_slot_with_an_unmoved_file(world: InlineWorld, metastore_url: str) -> None:
    (key,) = await world.topic("t", 1)
    await world.commit((key, plain_batch(3)), slot=await world.slot())
    plant(metastore_url, "rotate_inline_slots", "RETURN (SELECT i.file_id", "RETURN (SELECT NULL::uuid")
    await world.later()
    await world.rotate(slot_bytes=1)
    with pytest.raises(AssertionError):
        await world.records(key)


class TestOlderCompactors:
    """A worker of the release before looks for inline files in the bucket."""

    @pytest.mark.parametrize("error", [None, UnavailableError("403")], ids=["missing", "refused"])
    async def test_its_job_changes_nothing_and_the_next_one_moves_them(
        self, world: InlineWorld, monkeypatch: pytest.MonkeyPatch, error: HeadraceError | None
    ) -> None:
        """With rights that do not allow it to list the bucket, a missing object is refused."""
        a, b = await filled(world)
        before = [await world.extents(key) for key in (a, b)]
        if error is not None:
            monkeypatch.setattr(world.bucket, "get", failing(world.bucket.get, error))
        inline = await work_as_before(world)
        monkeypatch.undo()
        assert [await world.extents(key) for key in (a, b)] == before
        assert await world.postgres.compaction.list_damage(10) == ([], 0)
        await world.run(await world.claim(inline, 1))
        assert not any(map(is_inline, await world.live_files()))
        assert [len(await world.records(key)) for key in (a, b)] == [24, 12]

    async def test_without_a_look_for_their_rows_it_calls_them_damaged(
        self, world: InlineWorld, metastore_url: str
    ) -> None:
        await filled(world)
        plant(metastore_url, "mark_damaged", "OR NOT is_inline(e.file_id)", "OR true")
        await work_as_before(world)
        assert (await world.postgres.compaction.list_damage(10))[0]

    async def test_bytes_that_are_altered_are_damage(self, world: InlineWorld, metastore_url: str) -> None:
        (key,) = await world.topic("t", 1)
        file_id = await world.commit((key, plain_batch(3)), slot=await world.slot())
        async with session(metastore_url) as raw:
            await raw.execute(b"UPDATE inline_files SET body = set_byte(body, 70, 1)")
        await world.run(await world.claim([file_id], 1))
        (found,), _ = await world.postgres.compaction.list_damage(10)
        assert (found.extent.file_id, found.kind) == (file_id, DamageKind.ALTERED)


async def work_as_before(world: InlineWorld) -> list[uuid.UUID]:
    """Run the job of all inline files as a worker that knows the bucket only, and has no more patience; the files."""
    inline = [file_id for file_id in await world.live_files() if is_inline(file_id)]
    job = await world.claim(inline, 1)
    await world.run(dataclasses.replace(job, attempts=PATIENT_ATTEMPTS + 1), world.compactor(store=world.bucket))
    return inline


def failing(get: Callable[..., Awaitable[bytes]], error: HeadraceError) -> Callable[..., Awaitable[bytes]]:
    """Return a `get` that refuses what is not there."""

    async def call(key: str, byte_range: ByteRange | None = None) -> bytes:
        try:
            return await get(key, byte_range)
        except NotFoundError:
            raise error from None

    return call


class TestReading:
    """One statement for many ranges; what is not there is located again."""

    async def test_ranges_that_wait_share_a_statement(
        self, world: InlineWorld, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (key,) = await world.topic("t", 1)
        file_id = await world.commit((key, plain_batch(200, b"v" * 50)), slot=await world.slot())
        read, calls = world.postgres.inline.read_inline, list[int]()

        async def counted(ranges: list[InlineRange]) -> list[bytes | None]:
            calls.append(len(ranges))
            return await read(ranges)

        monkeypatch.setattr(world.postgres.inline, "read_inline", counted)
        whole = await world.store.get(object_key(file_id))
        wanted = [ByteRange(at, 10) for at in range(0, 5_000, 10)]
        assert await world.store.get_many(object_key(file_id), wanted) == [
            whole[each.start : each.start + each.length] for each in wanted
        ]
        assert sum(calls[1:]) == 500
        assert len(calls) <= 4

    async def test_beyond_the_end_is_an_error_and_what_is_gone_not_found(
        self, world: InlineWorld, metastore_url: str
    ) -> None:
        (key,) = await world.topic("t", 1)
        file_id = await world.commit((key, plain_batch(1)), slot=await world.slot())
        size = len(await world.store.get(object_key(file_id)))
        with pytest.raises(CorruptError):
            await world.store.get(object_key(file_id), ByteRange(size - 1, 2))
        gone = new_inline_file_id(0, 3, random.Random(0))
        with pytest.raises(NotFoundError):
            await world.store.get(object_key(gone))
        assert await world.postgres.inline.inline_bytes([gone, file_id]) == [file_id]
        assert await world.store.delete_many([object_key(gone)]) == [object_key(gone)]

    async def test_a_reader_with_the_old_place_locates_again(self, world: InlineWorld, metastore_url: str) -> None:
        """Its agent has the extents of before the move, and the rows are gone."""
        (key,) = await world.topic("t", 1)
        for _ in range(3):
            await world.commit((key, plain_batch(2)), slot=await world.slot())
        before = await world.records(key)
        await world.compact(1)
        async with session(metastore_url) as raw:
            await raw.execute(b"TRUNCATE inline_files")
        for file_id in await rows_of_files(metastore_url):
            world.service.on_flushed(file_id, b"")  # nothing of them is cached
        result = await world.request_fetch({key: 0})
        assert result.code(key) == 0
        assert result.records(key)
        assert await world.records(key) == before


async def rows_of_files(url: str) -> list[object]:
    async with session(url) as raw:
        return [row[0] for row in await rows(raw, "SELECT file_id FROM segment_files")]
