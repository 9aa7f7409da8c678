"""The life of a damaged batch on a real Postgres: found, repaired from a file that is still there, or skipped."""

from __future__ import annotations

import random
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from kio.schema.errors import ErrorCode
from prometheus_client import CollectorRegistry

from headrace.compactor.audit import audit
from headrace.compactor.mending.mend import Mending
from headrace.metastore.api.compaction import DamagedExtent, DamageKind, FoundDamage, SwapOutcome
from headrace.metastore.api.read import Extent
from headrace.metastore.api.reports import PartitionName
from headrace.storage.errors import InvalidError, NotFoundError, UnavailableError
from headrace.storage.file_id import object_key
from headrace.storage.objects.store import ByteRange
from headrace.storage.records.header import read_header
from headrace.storage.segment.rereading import VerifiedReads
from tests.agent.fetch.fetch_world import split_sent
from tests.compactor.world import CompactionWorld
from tests.metastore.sessions import rows
from tests.storage.batches import plain_batch


def mending(world: CompactionWorld) -> Mending:
    return Mending(world.postgres, world.store, world.postgres.commit_shards, world.clock, random.Random(5))


def name(world: CompactionWorld, key: int) -> PartitionName:
    return PartitionName(world.view.image.topics_by_number[key >> 24].topic_id, key & 0xFFFFFF)


async def fill(world: CompactionWorld, level: int) -> list[int]:
    """Two partitions with three batches of each in three files, merged up to a level."""
    keys = await world.topic("t", 2)
    for number in range(3):
        await world.commit(*((key, plain_batch(2 + number, b"%d-%d" % (number, key & 1) * 20)) for key in keys))
    for step in range(1, level + 1):
        await world.compact(step)
    return keys


async def damage(world: CompactionWorld, key: int, number: int, at: int = 80) -> Extent:
    """Alter a byte of one batch of a partition that has one extent; return that."""
    (extent,) = await world.extents(key)
    body = await world.store.get(object_key(extent.file_id))
    position = extent.position
    for _ in range(number):
        position += read_header(body, position).size
    position += at
    flipped = body[:position] + bytes([body[position] ^ 1]) + body[position + 1 :]
    await world.store.rewrite(object_key(extent.file_id), lambda _: flipped)
    return extent


async def readable(world: CompactionWorld, key: int) -> tuple[list[bytes], list[int]]:
    """Every batch that a new agent delivers, and the offsets at which it says that the log is damaged."""
    service = world.new_service(CollectorRegistry())
    await service.start()
    sent: list[bytes] = []
    damaged: list[int] = []
    offset, end = 0, 9
    while offset < end:
        result = await world.request_fetch({key: offset}, service=service)
        if result.code(key) == ErrorCode.corrupt_message:
            damaged.append(offset)
            offset += 1
            continue
        assert result.code(key) == 0
        sent += split_sent(result.records(key))
        header = read_header(sent[-1])
        offset = header.base_offset + header.last_offset_delta + 1
    await service.close()
    return sent, damaged


async def violations(world: CompactionWorld) -> list[str]:
    reads = VerifiedReads(world.store, world.clock, world.rng)
    found = await audit(world.postgres, reads, deep=True, on_progress=lambda *_: None)
    return [f"{one.kind} {one.detail}" for one in found.violations]


@pytest.mark.slow
@pytest.mark.requirement("W5")
async def test_what_was_merged_is_repaired_from_its_sources(world: CompactionWorld) -> None:
    keys = await fill(world, 1)
    before = [await world.records(key) for key in keys]
    extent = await damage(world, keys[0], 1)
    sent, damaged = await readable(world, keys[0])
    assert [read_header(batch).base_offset for batch in sent] == [0, 5]
    assert damaged == [2, 3, 4]
    assert len(await violations(world)) == 1

    look = await mending(world).look(name(world, keys[0]), keys[0], 3)
    assert not look.lost
    assert await mending(world).replace(look, name(world, keys[0]), skips=False) is SwapOutcome.DONE

    assert [await world.records(key) for key in keys] == before
    assert [e.file_id == extent.file_id for e in await world.extents(*keys)] == [False, True]
    await world.check_accounts()
    assert await violations(world) == []


@pytest.mark.requirement("W5")
async def test_what_is_lost_is_skipped_and_nothing_else(world: CompactionWorld) -> None:
    keys = await fill(world, 1)
    before = [await world.records(key) for key in keys]
    await damage(world, keys[0], 1)
    for file_id, row in (await world.file_rows()).items():
        if row["dead_at"]:
            await world.store.rewrite(object_key(file_id), lambda _: None)

    look = await mending(world).look(name(world, keys[0]), keys[0], 0)
    assert [one.piece.base_offset for one in look.lost] == [2]
    with pytest.raises(InvalidError, match="no sound copy"):
        await mending(world).replace(look, name(world, keys[0]), skips=False)
    assert await mending(world).replace(look, name(world, keys[0]), skips=True) is SwapOutcome.DONE

    wanted = [item for item in before[0] if not 2 <= item[2].offset <= 4]
    assert [await world.records(key) for key in keys] == [wanted, before[1]]
    assert (await readable(world, keys[0]))[1] == []
    await world.check_accounts()
    assert await violations(world) == []


async def test_records_that_a_merge_encoded_again_are_found_by_their_offsets(world: CompactionWorld) -> None:
    keys = await fill(world, 2)
    before = await world.records(keys[0])
    await damage(world, keys[0], 0)

    look = await mending(world).look(name(world, keys[0]), keys[0], 8)
    assert [(one.piece.base_offset, one.piece.last_offset, len(one.batches)) for one in look.found] == [(0, 8, 3)]
    await mending(world).replace(look, name(world, keys[0]), skips=False)

    assert await world.records(keys[0]) == before
    assert await violations(world) == []


@pytest.mark.slow
async def test_a_batch_with_damaged_framing_needs_no_source(world: CompactionWorld) -> None:
    keys = await fill(world, 0)
    await world.compact(1)
    before = await world.records(keys[0])
    await damage(world, keys[0], 0, at=10)
    for file_id, row in (await world.file_rows()).items():
        if row["dead_at"]:
            await world.store.rewrite(object_key(file_id), lambda _: None)

    look = await mending(world).look(name(world, keys[0]), keys[0], 0)
    assert "its own bytes" in look.found[0].source
    await mending(world).replace(look, name(world, keys[0]), skips=False)

    assert await world.records(keys[0]) == before


async def test_a_sound_extent_is_not_replaced(world: CompactionWorld) -> None:
    keys = await fill(world, 1)

    look = await mending(world).look(name(world, keys[0]), keys[0], 0)

    assert look.found == []
    with pytest.raises(InvalidError, match="is sound"):
        await mending(world).replace(look, name(world, keys[0]), skips=True)


async def test_reads_that_differ_are_not_damage(world: CompactionWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = await fill(world, 1)
    untouched, rng = world.store.get, random.Random(3)

    async def altering(key: str, byte_range: ByteRange | None = None) -> bytes:
        body = bytearray(await untouched(key, byte_range))
        body[rng.randrange(len(body) // 2)] ^= rng.randint(1, 255)
        return bytes(body)

    monkeypatch.setattr(world.store, "get", altering)
    with pytest.raises(UnavailableError, match="differ"):
        await mending(world).look(name(world, keys[0]), keys[0], 0)


@pytest.mark.slow
async def test_what_the_store_refuses_is_neither_lost_nor_no_source(world: CompactionWorld) -> None:
    """With rights that were taken away for a while, a skip would give up records that are there."""
    keys = await fill(world, 1)
    (extent,) = await world.extents(keys[0])
    with _refused(world, object_key(extent.file_id)), pytest.raises(InvalidError, match="AccessDenied"):
        await mending(world).look(name(world, keys[0]), keys[0], 0)

    await damage(world, keys[0], 1)
    dead = {object_key(file_id) for file_id, row in (await world.file_rows()).items() if row["dead_at"]}
    with _refused(world, *dead), pytest.raises(InvalidError, match="AccessDenied"):
        await mending(world).look(name(world, keys[0]), keys[0], 3)
    assert not (await mending(world).look(name(world, keys[0]), keys[0], 3)).lost


@contextmanager
def _refused(world: CompactionWorld, *keys: str) -> Iterator[None]:
    """The store answers reads of these objects as S3 does to a user without the right."""
    get = world.store.get

    async def refuse(key: str, byte_range: ByteRange | None = None) -> bytes:
        if key in keys:
            raise InvalidError(f"store refused: operation=get key={key} status=403 code=AccessDenied")
        return await get(key, byte_range)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(world.store, "get", refuse)
        yield


async def test_an_offset_without_a_file_is_refused(world: CompactionWorld) -> None:
    keys = await fill(world, 1)

    with pytest.raises(NotFoundError):
        await mending(world).look(name(world, keys[0]), keys[0], 9)


async def test_an_extent_that_was_replaced_meanwhile_is_left_alone(world: CompactionWorld) -> None:
    keys = await fill(world, 1)
    before = await world.records(keys[0])
    await damage(world, keys[0], 1)
    first, second = [await mending(world).look(name(world, keys[0]), keys[0], 0) for _ in range(2)]
    await mending(world).replace(first, name(world, keys[0]), skips=False)

    other = Mending(world.postgres, world.store, world.postgres.commit_shards, world.clock, random.Random(6))
    assert await other.replace(second, name(world, keys[0]), skips=True) is SwapOutcome.LOST

    assert await world.records(keys[0]) == before
    await world.check_accounts()


async def test_sources_are_kept_while_damage_is_known(world: CompactionWorld) -> None:
    keys = await fill(world, 1)
    extent = await damage(world, keys[0], 1)
    found = DamagedExtent(*_place(extent), kind=DamageKind.ALTERED, why="checksum mismatch")
    await world.postgres.compaction.note_damage([FoundDamage(found, 2, 4)])
    await world.postgres.compaction.note_damage([FoundDamage(found, 2, 4)])
    ((listed,), total) = await world.postgres.compaction.list_damage(10)
    assert (listed.topic, listed.partition_index, listed.first_offset, listed.last_offset) == ("t", 0, 2, 4)
    assert (listed.extent, total) == (extent, 1)

    held = await _held(world)
    await world.postgres.compaction.clear_damage(extent.file_id, extent.position)

    assert held == {file_id for file_id, row in (await world.file_rows()).items() if row["dead_at"]}
    assert len(held) == 3
    assert await _held(world) == set()


def _place(extent: Extent) -> tuple[uuid.UUID, int, int, int, int, int]:
    key, base, last, file_id, position, length, _, _ = extent
    return file_id, position, length, key, base, last


async def _held(world: CompactionWorld) -> set[uuid.UUID]:
    async with world.postgres.pool.connection() as connection:
        found = await rows(connection, "SELECT file_id FROM segment_files f WHERE held_for_repair(f)")
    return {file_id for (file_id,) in found}
