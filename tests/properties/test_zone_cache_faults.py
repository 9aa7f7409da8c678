"""Under all faults of the zone's agents and links, a reader gets the right bytes or the store's error."""

from __future__ import annotations

import asyncio
import random
import uuid

import pytest

from headrace.storage.errors import NotFoundError, UnavailableError
from headrace.storage.file_id import object_key
from headrace.storage.segment.file_range import FileRange, RangeBytes
from tests.agent.fetch.zone_cache.zone_world import Member, Zone
from tests.seeds import seeds

STEPS = 60
FILES = 25


def _mangled(rng: random.Random) -> bytes:
    return rng.randbytes(rng.randrange(0, 200))


def _disturb(rng: random.Random, member: Member) -> None:
    """Another state of the link to this agent."""
    member.down = rng.random() < 0.15
    member.silent = rng.random() < 0.1
    member.skew_ms = rng.choice([0, 0, 0, 30_000, -200_000])
    member.bend = member.bend_question = lambda data: data
    match rng.randrange(8):
        case 0:
            member.bend = lambda data: data[: rng.randrange(len(data) + 1)]
        case 1:
            member.bend = lambda data: _flip(rng, data)
        case 2:
            member.bend = lambda data: _mangled(rng)
        case 3:
            member.bend_question = lambda data: data[:10] + _flip(rng, data[10:])


def _flip(rng: random.Random, data: bytes) -> bytes:
    at = rng.randrange(len(data))
    return data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :]


@pytest.mark.requirement("W12")
@pytest.mark.parametrize("seed", seeds(range(4), range(4, 16)))
async def test_bytes_are_right_under_all_faults_of_the_zone(seed: int) -> None:
    rng = random.Random(seed)
    zone = Zone(["a", "a", "a", "b"])
    files = [await zone.put(number, rng.randrange(80, 4000) // 8 * 8) for number in range(1, FILES)]
    store_down, gone = False, set[uuid.UUID]()

    async def before_get(_: str) -> None:
        if store_down and rng.random() < 0.5:
            raise UnavailableError("store down")

    zone.store.before_get = before_get
    for _ in range(STEPS):
        for member in zone.members.values():
            if rng.random() < 0.2:
                _disturb(rng, member)
        if rng.random() < 0.2:
            zone.show({node_id: rng.random() < 0.3 for node_id in zone.members})
        store_down = rng.random() < 0.15
        if rng.random() < 0.05:  # the janitor's: neighbours may hold some of it
            file_id, _ = rng.choice(files)
            await zone.store.rewrite(object_key(file_id), lambda _: None)
            gone.add(file_id)
        reads = [_read(zone, rng, files, gone, store_down=store_down) for _ in range(rng.randrange(1, 4))]
        await zone.clock.run(asyncio.gather(*reads))
        if rng.random() < 0.3:
            await zone.clock.advance(rng.choice([0.2, 1, 5]))
    sent = sum(member.metric("zone_cache_rpcs_total", direction="sent") for member in zone.members.values())
    assert sent > STEPS / 4, "the zone was asked"


async def _read(
    zone: Zone, rng: random.Random, files: list[tuple[uuid.UUID, bytes]], gone: set[uuid.UUID], *, store_down: bool
) -> None:
    """One reader of one agent, several slices of several files."""
    wanted, expected = [], []
    for file_id, data in rng.sample(files, rng.randrange(1, 8)):
        start = rng.randrange(len(data))
        end = rng.randrange(start, len(data)) + 1
        wanted.append(FileRange(file_id, start, end, len(data), recent=rng.random() < 0.9))
        expected.append(data[start:end])
    bodies = await zone.members[rng.randrange(1, 5)].reader.read(wanted)
    for body, right, part in zip(bodies, expected, wanted, strict=True):
        if isinstance(body, RangeBytes):
            assert bytes(body.data) == right
        elif isinstance(body, NotFoundError):
            assert part.file_id in gone
        else:
            assert store_down, body
            assert isinstance(body, UnavailableError)
