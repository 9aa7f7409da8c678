"""Questions for offsets: together where they come together, answered each to the one who asked."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import Any

import pytest

from headrace.agent.fetch.offsets import offset_requests
from headrace.agent.fetch.offsets.offset_requests import JoinedOffsets
from headrace.metastore.api.read import OffsetAnswer, OffsetKind, OffsetQuery
from headrace.storage.errors import UnavailableError
from tests.agent.fetch.fetch_world import World
from tests.patch import Patch
from tests.storage.batches import plain_batch

EARLIEST, LATEST = int(OffsetKind.EARLIEST), int(OffsetKind.LATEST)
PARTITIONS = 12


async def ask_in_many_requests(world: World, rng: random.Random) -> None:
    keys = world.create_topic("t", PARTITIONS)
    for key in keys:
        if records := rng.randrange(5):
            await world.write([(key, plain_batch(records, b"a"))])
    asked = [[(index, rng.choice((EARLIEST, LATEST))) for index in rng.sample(range(PARTITIONS), 3)] for _ in range(20)]
    requests = [world.request_offsets([("t", index, stamp) for index, stamp in one]) for one in asked]
    before = world.metastore.asked["list_offsets"]

    answers = await world.clock.run(asyncio.gather(*requests))

    ends = [sum(live.last_offset - live.base_offset + 1 for live in world.live[key]) for key in keys]
    expected = [[(index, ends[index] if stamp == LATEST else 0) for index, stamp in one] for one in asked]
    assert [[(each.partition_index, each.offset) for each in answer] for answer in answers] == expected
    assert world.metastore.asked["list_offsets"] - before == 1


@pytest.mark.parametrize("seed", range(10))
async def test_requests_that_come_together_share_a_call(world: World, seed: int) -> None:
    await ask_in_many_requests(world, random.Random(seed))


async def test_a_planted_bug_is_caught(world: World, patch: Patch) -> None:
    """Planted: the last to ask gets the first answers."""

    async def call(self: JoinedOffsets, asked: list[Any]) -> None:
        answers = [answer for _, answer in reversed(asked)]
        asked[:] = [(queries, answer) for (queries, _), answer in zip(asked, answers, strict=True)]
        await original(self, asked)

    original = JoinedOffsets._call
    patch.replace(JoinedOffsets, "_call", call)
    with pytest.raises(AssertionError):
        await ask_in_many_requests(world, random.Random(0))


async def test_a_later_question_does_not_wait_for_the_call_of_an_earlier_one(world: World) -> None:
    world.create_topic("t", 1)
    may_end = asyncio.Event()
    list_offsets = world.metastore.list_offsets

    async def slow(*args: object) -> object:
        world.metastore.list_offsets = list_offsets  # type: ignore[method-assign]
        await may_end.wait()
        return await list_offsets(*args)  # type: ignore[arg-type]

    world.metastore.list_offsets = slow  # type: ignore[method-assign,assignment]
    earlier = asyncio.ensure_future(world.request_offsets([("t", 0, LATEST)]))
    await world.clock.settle()
    (answer,) = await world.list_offsets([("t", 0, EARLIEST)])
    assert (answer.offset, earlier.done()) == (0, False)
    may_end.set()
    assert [each.offset for each in await earlier] == [0]


@pytest.mark.parametrize("seed", range(10))
async def test_a_call_has_a_largest_size(world: World, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offset_requests, "QUERIES_MAX", 7)
    rng = random.Random(seed)
    world.create_topic("t", PARTITIONS)
    list_offsets, sizes = world.metastore.list_offsets, []

    async def counted(queries: Sequence[OffsetQuery]) -> list[OffsetAnswer]:
        sizes.append(len(queries))
        return await list_offsets(queries)

    world.metastore.list_offsets = counted  # type: ignore[method-assign]
    asked = [rng.sample(range(PARTITIONS), rng.choice((1, 3, 12))) for _ in range(20)]
    answers = await world.clock.run(
        asyncio.gather(*(world.request_offsets([("t", index, LATEST) for index in one]) for one in asked))
    )
    assert [[(each.partition_index, each.error_code) for each in answer] for answer in answers] == [
        [(index, 0) for index in one] for one in asked
    ]
    assert sum(sizes) == sum(map(len, asked))
    assert all(size <= 7 or size == 12 for size in sizes), "one with more is alone"


@pytest.mark.parametrize("stamp", [1_700_000_000_000, int(OffsetKind.MAX_TIMESTAMP)])
async def test_a_search_neither_delays_nor_fails_the_others(world: World, stamp: int) -> None:
    world.create_topic("t", 2)
    list_offsets, may_end = world.metastore.list_offsets, asyncio.Event()

    async def search(queries: Sequence[OffsetQuery]) -> list[OffsetAnswer]:
        if any(query.timestamp == stamp for query in queries):
            await may_end.wait()
            raise UnavailableError("the search takes too long")
        return await list_offsets(queries)

    world.metastore.list_offsets = search  # type: ignore[method-assign]
    requests = [[("t", 0, LATEST)], [("t", 0, stamp), ("t", 1, LATEST)], [("t", 1, EARLIEST)]]
    first, slow, last = (asyncio.ensure_future(world.request_offsets(one)) for one in requests)
    await world.clock.settle()
    assert [each.error_code for future in (first, last) for each in future.result()] == [0, 0]
    assert not slow.done()
    may_end.set()
    assert all(each.error_code != 0 for each in await slow)


async def test_a_failure_is_everyones_who_asked_and_nobodys_later(world: World) -> None:
    world.create_topic("t", 1)
    world.metastore.fail = UnavailableError("down")
    answers = await world.clock.run(asyncio.gather(*(world.request_offsets([("t", 0, LATEST)]) for _ in range(3))))
    assert all(each.error_code != 0 for (each,) in answers)
    world.metastore.fail = None
    (answer,) = await world.list_offsets([("t", 0, LATEST)])
    assert (answer.error_code, answer.offset) == (0, 0)


async def test_one_that_gives_up_does_not_keep_the_others_from_their_answers(world: World) -> None:
    world.create_topic("t", 1)
    gone, stays = (asyncio.ensure_future(world.request_offsets([("t", 0, LATEST)])) for _ in range(2))
    await asyncio.sleep(0)
    gone.cancel()
    assert [each.offset for each in await world.clock.run(stays)] == [0]
