"""What is sent of acquired records: whole batches that cover them, and the rest is given back. Planted bugs are found.

A client takes an acquired offset without a record for a gap, and acknowledges it: a record that was said to be acquired
and was not sent is lost.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest
from kio.schema.errors import ErrorCode

from headrace.agent.fetch.handler import ReplyClaim
from headrace.agent.fetch.share import deliver
from headrace.agent.fetch.share.deliver import AcquiredRange, ShareDelivery
from headrace.metastore.api.read import AbortedRange
from headrace.protocol.request import UnlimitedReplies
from headrace.storage.file_id import object_key
from headrace.storage.records.codec import Record, empty_batch, encode_batch, open_batch
from headrace.storage.records.compression import Codec
from headrace.storage.records.header import PATCHED_BYTES, read_header
from headrace.storage.segment.format import BODY_START
from tests.agent.fetch.fetch_world import World, split_sent
from tests.planted import PlantedBugs, Trial
from tests.storage.batches import plain_batch

SEEDS = range(25)


class Wrong(AssertionError):
    """A record would be lost, or is left acquired."""


async def _read(
    world: World,
    acquired: dict[int, Sequence[AcquiredRange]],
    max_bytes: int,
    needed_ends: dict[int, int] | None = None,
) -> dict[int, ShareDelivery]:
    memory = ReplyClaim(UnlimitedReplies())
    reading = world.service.share_reader.read(acquired, max_bytes, memory, committed=False, needed_ends=needed_ends)
    found: dict[int, ShareDelivery] = await world.clock.run(reading)
    return found


def _ranges(rng: random.Random, end: int) -> list[AcquiredRange]:
    """Ascending ranges below `end`, with holes and different numbers of attempts."""
    ranges: list[AcquiredRange] = []
    at = rng.randrange(end)
    while at < end and len(ranges) < 5:
        last = min(end - 1, at + rng.randint(0, 6))
        ranges.append((at, last, rng.randint(1, 3)))
        at = last + 1 + rng.randint(0, 4)
    return ranges


async def history(seed: int) -> None:
    """Raises Wrong."""
    rng, world = random.Random(seed), World(seed=seed)
    await world.service.start()
    try:
        keys = world.create_topic("t", 3)
        for _ in range(rng.randint(2, 6)):
            batches = [(rng.choice(keys), _batch(rng)) for _ in range(4)]
            await world.write(batches, own=rng.random() < 0.5)
        for _ in range(4):
            ends = {key: world.live[key][-1].last_offset + 1 for key in keys if world.live[key]}
            acquired = {key: _ranges(rng, end) for key, end in ends.items() if rng.random() < 0.8}
            if acquired:
                needed = {
                    key: rng.choice((0, rng.randint(each[0][0] + 1, each[-1][1] + 1))) for key, each in acquired.items()
                }
                found = await _read(world, acquired, rng.choice((1, 200, 700, 1 << 20)), needed)
                for key, ranges in acquired.items():
                    _check(ranges, found[key], _records(world, key))
    finally:
        await world.service.close()


def _batch(rng: random.Random) -> bytes:
    """One with a record at each offset; or as cleaning by key leaves it, with some or none."""
    count = rng.randint(1, 5)
    if rng.random() < 0.6:
        return plain_batch(count, b"x" * rng.randint(1, 300))
    left = [offset for offset in range(count) if rng.random() < 0.4]
    if not left:
        return empty_batch(0, count - 1, -1)
    records = [Record(offset, 0, b"k", b"x" * rng.randint(1, 300), []) for offset in left]
    return encode_batch(records, codec=Codec.NONE, base_offset=0, last_offset=count - 1)


def _records(world: World, key: int) -> set[int]:
    """The offsets of the partition that have a record, by the batches that were written."""
    offsets: set[int] = set()
    for live in world.live[key]:
        header = read_header(live.stored)
        if header.record_count:
            first = live.base_offset - header.base_offset
            offsets.update(first + record.offset for record in open_batch(memoryview(live.stored)))
    return offsets


def _check(acquired: Sequence[AcquiredRange], part: ShareDelivery, records: set[int]) -> None:
    sent: set[int] = set()
    for batch in split_sent(b"".join(part.records)):
        header = read_header(batch)
        sent.update(range(header.base_offset, header.base_offset + header.last_offset_delta + 1))
    kept = {offset: tries for first, last, tries in part.acquired for offset in range(first, last + 1)}
    asked = [offset for first, last, _ in acquired for offset in range(first, last + 1)]
    back = [o for each in part.returned for o in range(each.first, min(each.last, asked[-1]) + 1)]
    done = {o for each in part.returned if each.is_done for o in range(each.first, each.last + 1)}
    if done & records:
        raise Wrong(f"records are lost: {sorted(done & records)}")
    if kept.keys() - records:
        raise Wrong(f"acquired although there is no record: {sorted(kept.keys() - records)}")
    if kept.keys() - sent:
        raise Wrong(f"acquired and not sent: {sorted(kept.keys() - sent)}")
    if sorted([*kept, *back]) != asked:
        raise Wrong(f"neither sent nor given back, or both: {acquired} {part.acquired} {part.returned}")
    if any(kept.get(offset, tries) != tries for first, last, tries in acquired for offset in range(first, last + 1)):
        raise Wrong("another number of attempts")


@pytest.mark.requirement("X12")
def test_what_is_said_to_be_acquired_was_sent_and_the_rest_is_given_back() -> None:
    for seed in SEEDS:
        asyncio.run(history(seed))


def _untrimmed(right: Any) -> Any:
    def part(key: int, acquired: Any, *rest: Any) -> ShareDelivery:
        made: ShareDelivery = right(key, acquired, *rest)
        return ShareDelivery(made.error, made.records, list(acquired), [])

    return part


def _not_given_back(right: Any) -> Any:
    def part(*args: Any) -> ShareDelivery:
        made: ShareDelivery = right(*args)
        return ShareDelivery(made.error, made.records, made.acquired, [])

    return part


def _one_too_far(right: Any) -> Any:
    def part(key: int, acquired: Any, lookup: Any, outcome: Any, *rest: Any) -> ShareDelivery:
        if getattr(outcome, "next", None) is not None:
            outcome.next = outcome.next._replace(offset=outcome.next.offset + 1)
        made: ShareDelivery = right(key, acquired, lookup, outcome, *rest)
        return made

    return part


def _holes_too_wide(right: Any) -> Any:
    def part(*args: Any) -> ShareDelivery:
        made: ShareDelivery = right(*args[:-1], [(first, last + 1) for first, last in args[-1]])
        return made

    return part


def _neighbours_are_holes(right: Any) -> Any:
    """What follows the last batch that was read counts as a hole."""

    def part(*args: Any) -> ShareDelivery:
        made: ShareDelivery = right(*args)
        made.returned = [msgspec.structs.replace(each, is_done=True) for each in made.returned]
        return made

    return part


_BUGS: dict[str, Callable[[Any], Any]] = {
    "what is not sent stays acquired": _untrimmed,
    "what is not sent is not given back": _not_given_back,
    "one record more is acquired than was sent": _one_too_far,
    "a record next to a hole counts as one": _holes_too_wide,
    "what was not read counts as a hole": _neighbours_are_holes,
}
BUGS = PlantedBugs("share delivery")


@BUGS.cases(_BUGS)
def test_a_planted_bug_is_found(bug: str, trial: Trial) -> None:
    trial.plant(deliver, "_part", _BUGS[bug](deliver._part))
    for seed in trial.seeds():
        with trial.shown_by(Wrong):
            asyncio.run(history(seed))


def test_batches_of_aborted_transactions_are_taken_out() -> None:
    buffers: list[bytes | memoryview] = []
    for base, producer_id in ((0, 7), (2, 8), (4, 7), (6, -1)):
        batch = bytearray(plain_batch(2, b"x", producer_id=producer_id, producer_epoch=0, base_sequence=0))
        batch[0:8] = base.to_bytes(8, "big")
        batch[21:23] = (0x10 if producer_id >= 0 else 0).to_bytes(2, "big")
        buffers += [bytes(batch[:PATCHED_BYTES]), bytes(batch[PATCHED_BYTES:])]
    kept, gone = deliver._without_aborted(buffers, [AbortedRange(1, 7, 0, 3)])
    assert gone == [(0, 1)]
    assert [read_header(batch).base_offset for batch in split_sent(b"".join(kept))] == [2, 4, 6]


async def test_damaged_records_are_done_and_the_rest_is_given_back() -> None:
    world = World()
    await world.service.start()
    (key,) = world.create_topic("t", 1)
    file_id = await world.append(key, *(b"%d" % number * 50 for number in range(4)))
    body = await world.store.get(object_key(file_id))
    at = BODY_START + len(world.live[key][0].stored) + 80
    await world.store.rewrite(object_key(file_id), lambda _: body[:at] + bytes([body[at] ^ 1]) + body[at + 1 :])

    before = (await _read(world, {key: [(0, 3, 1)]}, 1 << 20))[key]
    damaged = (await _read(world, {key: [(1, 3, 1)]}, 1 << 20))[key]

    assert (before.error, before.acquired) == (ErrorCode.none, [(0, 0, 1)])
    assert [(each.first, each.last, each.is_done) for each in before.returned] == [(1, 3, False)]
    assert (damaged.error, damaged.acquired, damaged.records) == (ErrorCode.corrupt_message, [], [])
    assert sorted((each.first, each.last, each.is_done) for each in damaged.returned) == [(1, 1, True), (2, 3, False)]
    await world.service.close()


async def test_a_partition_that_is_gone_and_a_log_start_that_moved() -> None:
    world = World()
    await world.service.start()
    (key, other) = world.create_topic("t", 2)
    await world.append(key, *(b"%d" % number for number in range(6)))
    world.model.move_log_start(key, 4)
    found = await _read(world, {key: [(0, 3, 1)], other + 5: [(0, 0, 1)]}, 1 << 20)
    assert (found[key].error, found[key].acquired) == (ErrorCode.none, [])
    assert [(each.first, each.last) for each in found[key].returned] == [(0, 3)]
    assert found[other + 5].error == ErrorCode.unknown_topic_or_partition
    await world.service.close()
