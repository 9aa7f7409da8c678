"""Damage in the bucket: what is before and behind it is read, and bad transfers are not taken for it."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable

import pytest
from kio.schema.errors import ErrorCode

from headrace.agent.fetch.files import damage as damage_module
from headrace.agent.fetch.files.damage import AGAIN_S, Damage
from headrace.agent.fetch.loss_notes import REPEAT_S
from headrace.metastore.api.read import Extent, run_of
from headrace.storage.errors import UnavailableError
from headrace.storage.file_id import object_key
from headrace.storage.objects.store import ByteRange
from headrace.storage.segment.damage import Piece, damaged, pieces
from headrace.storage.segment.format import BODY_START
from tests.agent.fetch.fetch_world import World, expected, split_sent
from tests.planted import PlantedBugs, Trial
from tests.storage.batches import BASE_TIME_MS, plain_batch

RECORDS = 3


async def write(world: World, name: str = "t") -> tuple[int, uuid.UUID, int]:
    """A partition with five batches of three records in one file: its key, the file, the size of a batch."""
    (key,) = world.create_topic(name, 1)
    batches = [plain_batch(RECORDS, b"ABCDE"[n : n + 1] * 90, base_timestamp=BASE_TIME_MS + 100 * n) for n in range(5)]
    file_id = await world.write([(key, batch) for batch in batches])
    return key, file_id, len(batches[0])


async def flip(world: World, file_id: uuid.UUID, position: int, bits: int = 1) -> None:
    def change(body: bytes) -> bytes:
        return body[:position] + bytes([body[position] ^ bits]) + body[position + 1 :]

    await world.store.rewrite(object_key(file_id), change)


async def read_all(world: World, key: int, offset: int) -> tuple[list[bytes], int]:
    """Return what a consumer gets from an offset on, up to the first error: batches, and its code."""
    found: list[bytes] = []
    end = world.live[key][-1].last_offset + 1
    while offset < end:
        result = await world.fetch({key: offset}, partition_max_bytes=700)
        if result.code(key) or not result.records(key):
            return found, result.code(key)
        got = split_sent(result.records(key))
        found += got
        offset = next(one.last_offset + 1 for one in world.live[key] if one.sent() == got[-1])
    return found, 0


@pytest.mark.requirement("W5")
@pytest.mark.parametrize(
    ("number", "at"), [(0, 10), (0, 200), (2, 9), (2, 16), (2, 18), (2, 26), (2, 200), (4, 10), (4, 61)]
)
async def test_only_the_damaged_batch_cannot_be_read(world: World, number: int, at: int) -> None:
    key, file_id, size = await write(world)
    await flip(world, file_id, BODY_START + number * size + at)

    for offset in (0, 6, 7, 9, 13):
        sent, code = await read_all(world, key, offset)
        wanted = expected(world.live[key], offset)
        if offset // RECORDS > number:
            assert (sent, code) == (wanted, 0)
        else:
            before = number - offset // RECORDS
            assert (sent, code) == (wanted[:before], ErrorCode.corrupt_message)


async def test_a_reader_that_stays_at_damage_costs_no_requests(world: World) -> None:
    key, file_id, size = await write(world)
    await flip(world, file_id, BODY_START + size + 80)
    await world.fetch({key: 3})
    gets, asked = len(world.store.gets), world.metastore.asked["find_extents"]

    for _ in range(20):
        result = await world.fetch({key: 4})
        assert result.code(key) == ErrorCode.corrupt_message

    assert (len(world.store.gets), world.metastore.asked["find_extents"]) == (gets, asked)


async def test_an_answer_with_damage_alone_waits_a_little(world: World) -> None:
    key, file_id, size = await write(world)
    await flip(world, file_id, BODY_START + size + 80)
    await world.fetch({key: 3})

    for wait_ms, took in ((500, 0.1), (20, 0.02), (0, 0.0)):
        began = world.clock.monotonic()
        await world.fetch({key: 3}, max_wait_ms=wait_ms)
        assert world.clock.monotonic() - began == pytest.approx(took)
    began = world.clock.monotonic()
    await world.fetch({key: 0}, max_wait_ms=500)
    assert world.clock.monotonic() == began


async def test_a_response_waits_for_few_examinations(world: World) -> None:
    places = [await write(world, f"t{number}") for number in range(4)]
    for _, file_id, size in places:
        await flip(world, file_id, BODY_START + size + 80)
    asked = {key: 3 for key, _, _ in places}

    first, second = await world.fetch(asked), await world.fetch(asked)

    codes = sorted(first.code(key) for key in asked)
    assert codes == [ErrorCode.corrupt_message] * 2 + [ErrorCode.kafka_storage_error] * 2
    assert {second.code(key) for key in asked} == {ErrorCode.corrupt_message}


async def test_a_restored_object_is_read_again(world: World) -> None:
    key, file_id, size = await write(world)
    await flip(world, file_id, BODY_START + size + 80)
    assert (await world.fetch({key: 3})).code(key) == ErrorCode.corrupt_message
    await flip(world, file_id, BODY_START + size + 80)

    await world.clock.advance(AGAIN_S + 1)
    result = await world.fetch({key: 3})

    assert split_sent(result.records(key)) == expected(world.live[key], 3)


async def test_transfers_that_alter_bytes_are_never_damage(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    key, _, size = await write(world)
    rng = random.Random(7)
    untouched = world.store.get

    async def altering(object_id: str, byte_range: ByteRange | None = None) -> bytes:
        body = bytearray(await untouched(object_id, byte_range))
        body[rng.randrange(20, size)] ^= rng.randint(1, 255)
        return bytes(body)

    monkeypatch.setattr(world.store, "get", altering)
    assert (await world.fetch({key: 0})).code(key) == ErrorCode.kafka_storage_error
    assert world.metastore.noted == []
    monkeypatch.undo()

    assert split_sent((await world.fetch({key: 0})).records(key)) == expected(world.live[key], 0)


async def test_a_bad_copy_is_not_kept(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    key, _, size = await write(world)
    untouched, altered = world.store.get, 2

    async def altering(object_id: str, byte_range: ByteRange | None = None) -> bytes:
        nonlocal altered
        body = bytearray(await untouched(object_id, byte_range))
        if altered:
            altered -= 1
            body[size // 2] ^= 1
        return bytes(body)

    monkeypatch.setattr(world.store, "get", altering)
    first, second = await world.fetch({key: 0}), await world.fetch({key: 0})

    assert first.code(key) == ErrorCode.kafka_storage_error
    assert split_sent(second.records(key)) == expected(world.live[key], 0)


async def test_what_is_found_is_recorded_once(world: World) -> None:
    key, file_id, size = await write(world)
    await flip(world, file_id, BODY_START + 2 * size + 80)
    await world.fetch({key: 0})  # so that the metastore is not asked for the extent
    world.metastore.fail = UnavailableError("metastore down")
    await world.fetch({key: 6})
    await world.clock.advance(1)
    assert world.metastore.noted == []

    world.metastore.fail = None
    for _ in range(4):
        await world.clock.advance(AGAIN_S)
        await world.fetch({key: 6})

    (found,) = world.metastore.noted
    assert (found.first_offset, found.last_offset, found.extent.file_id) == (6, 8, file_id)
    await world.clock.advance(REPEAT_S)
    await world.fetch({key: 6})
    await world.clock.advance(1)
    assert len(world.metastore.noted) == 2


@pytest.mark.parametrize(
    ("timestamp", "offset"),
    [(0, 0), (BASE_TIME_MS + 101, 4), (BASE_TIME_MS + 103, 6), (BASE_TIME_MS + 201, 6), (BASE_TIME_MS + 203, 9)],
)
async def test_a_time_in_a_damaged_batch_is_its_first_offset(world: World, timestamp: int, offset: int) -> None:
    _, file_id, size = await write(world)
    await flip(world, file_id, BODY_START + 2 * size + 80)

    (found,) = await world.list_offsets([("t", 0, timestamp)])

    assert (found.error_code, found.offset) == (0, offset)


@pytest.mark.parametrize(("number", "offset"), [(0, 14), (3, 14), (4, 12)])
async def test_the_newest_record_next_to_damage_is_found(world: World, number: int, offset: int) -> None:
    _, file_id, size = await write(world)
    await flip(world, file_id, BODY_START + number * size + 80)

    (found,) = await world.list_offsets([("t", 0, -3)])

    assert (found.error_code, found.offset) == (0, offset)


async def story(seed: int) -> None:
    """Read at any offsets around damage, through transfers that alter bytes: readers get the real batches or an error,
    and CORRUPT_MESSAGE only at damage.
    """
    world, rng = World(seed=seed), random.Random(seed)
    await world.service.start()
    keys = world.create_topic("t", 2)
    hurt: set[tuple[int, int]] = set()
    for _ in range(rng.randint(1, 3)):
        values = [(key, rng.randbytes(rng.choice((5, 90)))) for key in keys for _ in range(rng.randint(1, 4))]
        before = {key: len(world.live[key]) for key in keys}
        file_id = await world.write([(key, plain_batch(rng.randint(1, 3), value)) for key, value in values])
        fresh = [(key, one) for key in keys for one in world.live[key][before[key] :]]
        if rng.random() < 0.6:
            key, one = rng.choice(fresh)
            at = rng.choice((9, 16, 18, 26, 61, len(one.stored) - 1))
            position = BODY_START + sum(len(each.stored) for _, each in fresh[: fresh.index((key, one))]) + at
            await flip(world, file_id, position)
            hurt |= {(key, offset) for offset in range(one.base_offset, one.last_offset + 1)}
    untouched, rate = world.store.get, rng.choice((0.0, 0.3))

    async def altering(object_id: str, byte_range: ByteRange | None = None) -> bytes:
        body = bytearray(await untouched(object_id, byte_range))
        if rng.random() < rate:
            body[rng.randrange(len(body))] ^= rng.randint(1, 255)
        return bytes(body)

    world.store.get = altering  # type: ignore[method-assign]
    for _ in range(12):
        key = rng.choice(keys)
        offset = rng.randrange(world.live[key][-1].last_offset + 1)
        result = await world.fetch({key: offset}, partition_max_bytes=rng.choice((100, 1_000)))
        wanted = expected(world.live[key], offset)
        sent = split_sent(result.records(key))
        assert sent == wanted[: len(sent)]
        if result.code(key) == ErrorCode.corrupt_message:
            assert (key, offset) in hurt
        elif not rate and (key, offset) not in hurt:
            assert (result.code(key), bool(sent)) == (0, True)
        assert not any((key, one.base_offset) in hurt for one in world.live[key] if one.sent() in sent)
    await world.service.close()


@pytest.mark.parametrize("seed", range(6))
async def test_any_reader_around_damage_gets_what_is_sound(seed: int) -> None:
    await story(seed)


async def _one_bad_read(self: Damage, extent: Extent) -> list[Piece]:
    """Planted: one bad read is damage."""
    key, marks = object_key(extent.file_id), await self._index.marks(extent)
    body = await self._store.get(key, ByteRange(extent.position, extent.length))
    return damaged(pieces(memoryview(body), run_of(extent), marks))


def _nothing_behind(self: Damage, extent: Extent, offset: int) -> None:
    """Planted: who wants what is behind damage reads the damage first."""


async def _kept(self: Damage, extent: Extent) -> bool:
    """Planted: one bad read is damage from then on."""
    found = await _one_bad_read(self, extent)
    self._known[damage_module._key(extent)] = damage_module._Known(found, 1e18)
    return bool(found)


BUGS = PlantedBugs("reading around damage", most=300)
PLANTED: dict[str, tuple[type, str, Callable[..., object]]] = {
    "one bad read is damage": (Damage, "_found", _one_bad_read),
    "what is behind damage is not read": (Damage, "floor", _nothing_behind),
    "a bad transfer is damage from then on": (Damage, "find", _kept),
}


@BUGS.cases(PLANTED)
async def test_planted_bugs_are_caught(bug: str, trial: Trial) -> None:
    trial.plant(*PLANTED[bug])
    for seed in trial.seeds():
        with trial.shown_by(AssertionError):
            await story(seed)
