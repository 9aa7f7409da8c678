"""After a restore to an hour ago, records of inline files are in merged files that the metastore does not know (X13).

A restore here puts every row of an earlier moment back, and begins a new life. The bucket keeps all.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from pathlib import Path

import pytest

from headrace.agent.fetch.loss_notes import ForgottenExtents
from headrace.cli import lost as cli_lost
from headrace.cli.main import main
from headrace.compactor import moved, take_over
from headrace.compactor import put_back as planning
from headrace.compactor.lost import Lost, find_lost
from headrace.compactor.put_back import files_put_back
from headrace.metastore.api.compaction import Swap
from headrace.metastore.api.read import PartitionExtents
from headrace.metastore.life.forgotten import OffsetRange, write_forgotten
from headrace.metastore.life.moved import (
    MovedRange,
    keys_of,
    moved_key,
    moved_ranges,
    read_moved,
    write_moved,
)
from headrace.metastore.log.snapshot import load_image
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.storage.clock import SystemClock
from headrace.storage.cluster_properties import write_cluster_id
from headrace.storage.errors import CorruptError
from headrace.storage.file_id import is_inline, object_key
from headrace.storage.objects.directory import DirectoryStore
from headrace.storage.objects.store import ObjectStore
from headrace.storage.records.header import BatchHeader
from headrace.storage.segment.format import PartitionEntry
from headrace.storage.segment.reader import walk_batches
from tests.compactor.earlier_rows import EarlierRows, PutBackHere, new_life
from tests.compactor.inline_world import InlineWorld
from tests.compactor.test_rebuild import read_all
from tests.metastore.sessions import session
from tests.patch import Patch
from tests.storage.altered_reads import reads_of
from tests.storage.batches import plain_batch

pytestmark = pytest.mark.requirement("X13", "X4")


@pytest.fixture
async def world(
    metastore: PostgresMetastore, metastore_url: str, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[InlineWorld]:
    """What its agent would save of a life that is over, the tests put there themselves: it comes at any time."""
    monkeypatch.setattr(ForgottenExtents, "note", lambda *_: None)
    async with InlineWorld.running(metastore, metastore_url) as world:
        await world.raise_level()
        await new_life(world)
        yield world


async def sent(world: InlineWorld, keys: Sequence[int], numbers: Sequence[int], *, inline: bool = True) -> None:
    """A file for each number: two batches of the first partition, one of each other."""
    for number in numbers:
        value = b"%d" % number
        batches = [(key, plain_batch(2, value)) for key in (keys[0], *keys)]
        await world.commit(*batches, slot=await world.slot() if inline else None)


async def lost_now(world: InlineWorld) -> Lost:
    now_ms = time.time_ns() // 1_000_000 + 60_000
    return await find_lost(world.postgres, reads_of(world.store), now_ms, now_ms, lambda *_: None)


async def put_back(world: InlineWorld, life: int) -> int:
    found, image = await lost_now(world), await load_image(world.postgres.cluster)
    args = argparse.Namespace(put_back="agent:9092", command_config=None, yes=True)
    return await cli_lost.put_back(world.postgres.index, reads_of(world.store), image, life, found, args)


def twice(numbers: Sequence[int], times: int = 4) -> list[bytes]:
    return [b"%d" % number for number in numbers for _ in range(times)]


async def check_what_was_moved(world: InlineWorld, patch: Patch) -> None:
    """Three were there at the backup, three came later; the merge after it mixes them."""
    keys = await world.topic("t", 2)
    await sent(world, keys, [0, 1, 2])
    async with EarlierRows.taken(world) as backup:
        await sent(world, keys, [3, 4, 5])
        await world.compact(1)
        (merged,) = await world.live_files()
        life = await backup.restore(world)
        found = await lost_now(world)
        assert list(found.moved) == [merged]
        assert [(p.partition_index, p.files, p.records, p.certain_records, p.offsets) for p in found.in_order()] == [
            (0, 1, 12, 12, [(12, 23)]),
            (1, 1, 6, 6, [(6, 11)]),
        ]
        produced = PutBackHere(world, patch)
        assert await put_back(world, life) == 0
        assert [produced.values(index) for index in (0, 1)] == [twice([3, 4, 5]), twice([3, 4, 5], 2)]


async def check_orphan(world: InlineWorld, patch: Patch) -> None:
    """The row of an inline file goes an hour after its merge; a merged file without a row may stay for longer."""
    keys = await world.topic("t", 2)
    await sent(world, keys, [0, 1])
    inline = await world.live_files()
    job = await world.claim(inline, 1)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("headrace.compactor.take_over.Swapper.swap_in", _killed)
        with pytest.raises(KeyboardInterrupt):
            await world.run(job)
    await world.postgres.jobs.finish_job(job.token)
    await world.compact(1)
    (named,) = await world.live_files()
    (orphan,) = [info.key async for info in world.bucket.list_objects("segments/") if info.key != object_key(named)]
    async with session(world.url) as raw:
        await raw.execute("DELETE FROM segment_files WHERE file_id <> %s", (named,))
    await new_life(world)
    found = await lost_now(world)
    assert await read_moved(world.bucket, uuid.UUID(orphan.rpartition("/")[2]))
    assert (found.moved, found.partitions) == ({}, {})


async def check_other_records(world: InlineWorld, patch: Patch) -> None:
    """The new life has appended others there, and merged them."""
    keys = await world.topic("t", 1)
    async with EarlierRows.taken(world) as backup:
        await sent(world, keys, [0, 1])
        await world.compact(1)
        life = await backup.restore(world)
        await sent(world, keys, [7, 8, 9], inline=False)
        await world.compact(1)
        produced = PutBackHere(world, patch)
        assert await put_back(world, life) == 0
        assert produced.values(0) == twice([0, 1])


async def check_saved_and_moved(world: InlineWorld, patch: Patch) -> None:
    """The merged file is taken; a part that was not moved is taken from the file that was saved."""
    keys = await world.topic("t", 2)
    async with EarlierRows.taken(world) as backup:
        await sent(world, keys, [0, 1])
        extents = await world.extents(*keys)
        bodies = {file_id: await world.store.get(object_key(file_id)) for file_id in await world.live_files()}
        await world.compact(1)
        (merged,) = await world.live_files()
        await backup.restore(world)
        for file_id, body in bodies.items():
            await world.bucket.put(object_key(file_id), body)
        await write_forgotten(world.bucket, uuid.UUID(int=1), extents)
        found = await lost_now(world)
        assert (found.file_ids, list(found.moved), found.nowhere) == ([], [merged], [])
        assert [(p.records, p.certain_records) for p in found.in_order()] == [(8, 8), (4, 4)]
        first, *others = await read_moved(world.bucket, merged)
        await write_moved(world.bucket, merged, others)
        found = await lost_now(world)
        assert found.file_ids == [first.source]
        assert [(p.records, p.certain_records) for p in found.in_order()] == [(8, 8), (4, 4)]
        await world.bucket.delete_many([object_key(file_id) for file_id in bodies])
        found = await lost_now(world)
        assert found.nowhere == [OffsetRange(*first[1:4])]


class TestRebuild:
    """From the bucket alone only what no merge had moved is lost, and the command says which."""

    async def test_what_was_moved_is_there_and_what_was_not_is_named(
        self, world: InlineWorld, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        keys = await world.topic("t", 2)
        await world.topic("never", 1)
        await sent(world, keys, [0, 1])
        before = [[read[:2] for read in await read_all(world, world.postgres, key)] for key in keys]
        await world.compact(1)
        slot = await world.slot()
        await sent(world, keys, [2])
        await sent(world, keys[1:], [3], inline=False)
        (other,) = [key for key, name in world.names.items() if name == "never"]
        await world.commit((other << 24, plain_batch(1)), slot=slot)
        extents = await world.extents(*keys, other << 24)
        await write_forgotten(world.bucket, uuid.UUID(int=1), extents)
        for table in ("segment_files", "extents", "inline_files"):
            await _truncate(world, table)
        bucket = DirectoryStore(tmp_path / "bucket", SystemClock())
        await write_cluster_id(bucket, world.postgres.cluster_id)
        async for info in world.bucket.list_objects():
            await bucket.put(info.key, await world.bucket.get(info.key))
        words = ["audit", "--rebuild-index", f"--metastore-url={world.url}", f"--bucket=file://{tmp_path}/bucket"]
        assert await _run(*words) == 0
        out = capsys.readouterr().out
        assert "acknowledged, not moved into the bucket yet, lost: t partition=0 offsets=8-11" in out
        assert "acknowledged, not moved into the bucket yet, lost: t partition=1 offsets=4-5" in out
        assert "lost: (topic number" in out
        assert out.count("acknowledged, not moved") == 3
        after = [[read[:2] for read in await read_all(world, world.postgres, key)] for key in keys]
        assert after[0] == before[0]
        assert after[1][:4] == before[1]
        assert [value for _, value in after[1][4:]] == twice([3])


async def _truncate(world: InlineWorld, table: str) -> None:
    async with session(world.url) as raw:
        await raw.execute(f"TRUNCATE {table}".encode())
        await raw.execute(b"UPDATE partition_heads SET high_watermark = 0, appended_bytes = 0")


class TestAnOlderRestore:
    """An hour of merges is in the bucket, and the metastore knows none of them."""

    async def test_what_was_moved_is_found_and_put_back_once(self, world: InlineWorld, patch: Patch) -> None:
        await check_what_was_moved(world, patch)

    async def test_rows_that_are_back_in_their_slot_are_not_lost(self, world: InlineWorld) -> None:
        """Their copy is in the bucket as well; the next merge moves them again."""
        keys = await world.topic("t", 2)
        await sent(world, keys, [0, 1])
        async with EarlierRows.taken(world) as backup:
            await world.compact(1)
            await backup.restore(world)
        assert await world.held_rows() == 2
        found = await lost_now(world)
        assert (found.moved, found.partitions, found.nowhere) == ({}, {}, [])
        await world.compact(1)
        assert [len(await world.records(key)) for key in keys] == [8, 4]

    async def test_two_merges_of_a_source_and_one_of_the_next_level_give_it_back_once(
        self, world: InlineWorld, patch: Patch
    ) -> None:
        keys = await world.topic("t", 2)
        await sent(world, keys, [0])
        async with EarlierRows.taken(world) as backup:
            await sent(world, keys, [1, 2])
            inline = [file_id for file_id in await world.live_files() if is_inline(file_id)]
            for _ in range(2):  # a worker that lost its lease before its swap leaves a merged file
                job = await world.claim(inline, 1)
                with pytest.MonkeyPatch.context() as patched:
                    patched.setattr("headrace.compactor.take_over.Swapper.swap_in", _killed)
                    with pytest.raises(KeyboardInterrupt):
                        await world.run(job)
                await world.postgres.jobs.finish_job(job.token)
            await world.compact(1)
            await world.compact(2)
            stored = [info async for info in world.bucket.list_objects("segments/")]
            assert len(stored) == 4
            life = await backup.restore(world)
            found = await lost_now(world)
            assert [p.records for p in found.in_order()] == [8, 4]
            produced = PutBackHere(world, patch)
            assert await put_back(world, life) == 0
            assert produced.values(0) == twice([1, 2])

    async def test_an_interrupted_run_continues_and_a_finished_one_is_not_repeated(
        self, world: InlineWorld, patch: Patch
    ) -> None:
        keys = await world.topic("t", 1)
        async with EarlierRows.taken(world) as backup:
            await sent(world, keys, [0, 1])
            sources = set(await world.live_files())
            await world.compact(1)
            life = await backup.restore(world)
            produced = PutBackHere(world, patch)
            produced.fails_after = 1
            with pytest.raises(KeyboardInterrupt):
                await put_back(world, life)
            assert await files_put_back(world.bucket, finished=True) == set()
            produced.fails_after = 100
            for _ in range(2):
                assert await put_back(world, life) == 0
            assert produced.values(0) == twice([0, 1])
            assert await files_put_back(world.bucket, finished=True) == sources
            again = await backup.restore(world)
            assert await put_back(world, again) == 0
            assert produced.values(0) == twice([0, 1]), "it was put back in an earlier life"

    async def test_what_the_log_of_the_same_life_has_is_not_lost(self, world: InlineWorld, patch: Patch) -> None:
        await check_orphan(world, patch)

    async def test_records_of_another_life_at_the_same_offsets_hide_none(
        self, world: InlineWorld, patch: Patch
    ) -> None:
        await check_other_records(world, patch)

    async def test_a_file_that_an_agent_saved_and_a_merge_moved_counts_once(
        self, world: InlineWorld, patch: Patch
    ) -> None:
        await check_saved_and_moved(world, patch)

    async def test_a_merged_file_goes_with_what_it_names(self, world: InlineWorld) -> None:
        keys = await world.topic("t", 1)
        await sent(world, keys, [0])
        await world.compact(1)
        (merged,) = await world.live_files()
        assert [place.last_offset for place in await read_moved(world.bucket, merged)] == [3]
        await world.compact(2)
        await world.advance(3 * 3_600)
        await world.clean_up()
        await world.janitor()
        left = {info.key async for info in world.bucket.list_objects()}
        assert not left & set(keys_of(merged))
        assert len([key for key in left if key.startswith("segments/")]) == 1

    async def test_names_that_are_damaged_are_not_taken_for_none(self, world: InlineWorld) -> None:
        await world.bucket.put(moved_key(uuid.UUID(int=1)), b"{")
        with pytest.raises(CorruptError, match="names of inline files are damaged"):
            await read_moved(world.bucket, uuid.UUID(int=1))
        assert await read_moved(world.bucket, uuid.UUID(int=2)) == []

    async def test_the_command_lists_exports_and_asks(
        self, world: InlineWorld, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        keys = await world.topic("t", 1)
        bucket = DirectoryStore(tmp_path / "bucket", SystemClock())
        await write_cluster_id(bucket, world.postgres.cluster_id)
        async with EarlierRows.taken(world) as backup:
            await sent(world, keys, [0, 1])
            await world.compact(1)
            (merged,) = await world.live_files()
            await backup.restore(world)
        async for info in world.bucket.list_objects():
            await bucket.put(info.key, await world.bucket.get(info.key))
        words = ["audit", f"--metastore-url={world.url}", f"--bucket=file://{tmp_path}/bucket"]
        assert await _run(*words, "--lost", f"--export={tmp_path}/lost") == 1
        out = capsys.readouterr().out
        assert "t partition=0 records=8 batches=4 files=1" in out
        assert "certain=8 offsets=0-7" in out
        assert "inline files that were moved: 2, all of them committed, in 1 merged files" in out
        assert [path.name for path in (tmp_path / "lost").iterdir()] == [f"{merged}.segment"]
        assert await _run(*words, "--lost", "--json") == 1
        assert [len(sources) for sources in json.loads(capsys.readouterr().out)["moved"].values()] == [2]
        assert await _run(*words, "--resume-janitor") == 1
        assert "lost the commits of 2 files" in capsys.readouterr().err


def _from_the_first(swaps: Iterable[Swap]) -> list[MovedRange]:
    """Each input begins where the first one does."""
    bases = {(swap.partition_key, old.last_offset): swap.base_offset for swap in swaps for old in swap.inputs}
    found = moved_ranges(swaps)
    return [place._replace(base_offset=bases[place.partition_key, place.last_offset]) for place in found]


async def _of_one_file(store: ObjectStore, merged_id: uuid.UUID) -> list[MovedRange]:
    """The merged file is taken for a file that was lost, in the place of what it names."""
    return [place._replace(source=merged_id) for place in await read_moved(store, merged_id)]


def _any_life(answer: PartitionExtents, place: MovedRange) -> bool:
    return answer.known and place.base_offset < answer.high_watermark


def _all_batches(
    body: memoryview, entry: PartitionEntry, lost: Sequence[MovedRange]
) -> Iterator[tuple[int, BatchHeader, uuid.UUID]]:
    for position, header in walk_batches(body[: entry.position + entry.length], entry.position):
        yield position, header, lost[0].source


Check = Callable[[InlineWorld, Patch], Awaitable[None]]
BUGS: dict[str, tuple[Check, object, str, object]] = {
    "merged files name no inline file": (check_what_was_moved, take_over, "moved_ranges", lambda swaps: []),
    "each input begins where the first one does": (check_what_was_moved, take_over, "moved_ranges", _from_the_first),
    "what was not lost is taken from a merged file, too": (
        check_what_was_moved,
        planning,
        "lost_batches",
        _all_batches,
    ),
    "ids of inline files are ignored": (check_saved_and_moved, moved, "read_moved", _of_one_file),
    "the log is not asked": (check_orphan, moved, "has", lambda answer, place: False),
    "offsets of another life count": (check_other_records, moved, "has", _any_life),
}


@pytest.mark.parametrize("bug", BUGS)
async def test_a_planted_bug_loses_or_doubles(bug: str, world: InlineWorld, patch: Patch) -> None:
    check, owner, name, wrong = BUGS[bug]
    patch.replace(owner, name, wrong)
    with pytest.raises(AssertionError):
        await check(world, patch)


async def _killed(*_: object) -> AsyncIterator[None]:
    """The worker ends before its first swap."""
    raise KeyboardInterrupt
    yield


async def _run(*words: str) -> int:
    return await asyncio.to_thread(main, list(words))
