"""Random histories against random readers: exactly the live batches, in order, within the limits.

Deliberate bugs that were tried and are caught here: reading on past an extent's end (into a dead
batch), patching a wrong offset, ignoring the response's limit, sending nothing when the first batch
is larger than the limit.
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.agent.fetch.fetch_world import NEVER_SEEN, World, expected, split_sent
from tests.seeds import examples
from tests.storage.batches import plain_batch

PARTITIONS = 3


class Written(NamedTuple):
    partition: int
    records: int
    value_bytes: int
    dead: bool


class Reader(NamedTuple):
    offsets: tuple[int, ...]
    """The place where to begin, in thousandths of each partition's length."""
    partition_max_bytes: int
    max_bytes: int


written = st.builds(
    Written,
    partition=st.integers(0, PARTITIONS - 1),
    records=st.integers(1, 4),
    value_bytes=st.sampled_from([0, 1, 30, 400]),
    dead=st.booleans(),
)
histories = st.lists(st.tuples(st.lists(written, min_size=1, max_size=8), st.booleans()), max_size=8)
readers = st.builds(
    Reader,
    offsets=st.tuples(*[st.integers(0, 1000)] * PARTITIONS),
    partition_max_bytes=st.sampled_from([0, 61, 150, 600, 5_000, 1_000_000]),
    max_bytes=st.sampled_from([0, 150, 1_000, 5_000, 1_000_000]),
)


@pytest.mark.requirement("W5", "W8")
@settings(max_examples=examples(60))
@given(histories, st.lists(readers, min_size=1, max_size=4), st.booleans(), st.integers(0, 2**32))
def test_readers_get_exactly_the_live_batches(
    history: list[tuple[list[Written], bool]], asks: list[Reader], late_start: bool, seed: int
) -> None:
    asyncio.run(_read_all(history, asks, late_start, seed))


async def _read_all(history: list[tuple[list[Written], bool]], asks: list[Reader], late_start: bool, seed: int) -> None:
    world = World(seed=seed)
    keys = world.create_topic("t", PARTITIONS)
    if not late_start:
        await world.service.start()
        await world.fetch(dict.fromkeys(keys, 0))
    for number, (batches, own) in enumerate(history):
        await world.write([(keys[b.partition], _batch(b, number)) for b in batches], own=own)
    if late_start:
        await world.service.start()
    await world.clock.advance(0.05)
    for ask in asks:
        await _read_to_the_end(world, keys, ask)
    await world.service.close()


async def _read_to_the_end(world: World, keys: list[int], ask: Reader) -> None:
    ends = {key: world.live[key][-1].last_offset + 1 if world.live[key] else 0 for key in keys}
    at = {key: ends[key] * part // 1000 for key, part in zip(keys, ask.offsets, strict=True)}
    begun = dict(at)
    got: dict[int, list[bytes]] = {key: [] for key in keys}
    while at != ends:
        result = await world.fetch(at, partition_max_bytes=ask.partition_max_bytes, max_bytes=ask.max_bytes)
        taken = {key: split_sent(result.records(key)) for key in keys}
        _check_limits(list(taken.values()), ask)
        for key, batches in taken.items():
            assert result.code(key) == 0
            assert result.partitions[key].high_watermark == ends[key]
            got[key] += batches
            at[key] = _next_offset(world, key, batches, at[key])
    for key in keys:
        assert got[key] == expected(world.live[key], begun[key])


def _check_limits(taken: list[list[bytes]], ask: Reader) -> None:
    """Something is always sent, and more than one batch only within the limits."""
    sizes = [sum(map(len, batches)) for batches in taken]
    batch_count = sum(map(len, taken))
    assert batch_count >= 1
    assert batch_count == 1 or sum(sizes) <= ask.max_bytes
    over = [batches for batches, size in zip(taken, sizes, strict=True) if size > ask.partition_max_bytes]
    assert len(over) <= 1
    assert all(len(batches) == 1 for batches in over)


def _next_offset(world: World, key: int, batches: list[bytes], offset: int) -> int:
    if not batches:
        return offset
    last = next(live for live in world.live[key] if live.sent() == batches[-1])
    return last.last_offset + 1


def _batch(batch: Written, number: int) -> bytes:
    value = (b"%d-%d:" % (number, batch.partition)).ljust(batch.value_bytes, b".")
    return plain_batch(batch.records, value, **(NEVER_SEEN if batch.dead else {}))
