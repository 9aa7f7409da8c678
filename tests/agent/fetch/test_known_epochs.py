"""A reader that names its leader epoch gets no record of a later one: else it sees a truncation that did not happen.

librdkafka asks for the end of its epoch when the epoch rises, and compares the answer with its position at that time.
A fetch that waited meanwhile must not move that position into the new epoch.
"""

from __future__ import annotations

import asyncio

import pytest
from kio.schema.errors import ErrorCode

from headrace.agent.fetch import deliver, handler
from headrace.agent.fetch.index.tail import Lookup
from headrace.storage.file_id import object_key
from tests.agent.fetch.fetch_world import FetchResult, World, expected, split_sent
from tests.agent.fetch.test_leader_epochs import ask
from tests.patch import Patch

FENCED = int(ErrorCode.fenced_leader_epoch)


async def _wait_while_the_epoch_rises(world: World, leader_epoch: int) -> tuple[FetchResult, int, int]:
    """The answer to a fetch at offset 1 that waited; the key; and the end of epoch 0 as the primary says it."""
    (key,) = world.create_topic("t", 1)
    await world.append(key, b"a")
    waiting = asyncio.ensure_future(world.request_fetch({key: 1}, max_wait_ms=10_000, leader_epoch=leader_epoch))
    await world.clock.advance(1.0)
    assert not waiting.done()
    world.model.set_leader_epoch(key, 3)
    await world.append(key, b"b")  # the agent's image does not know the epoch yet
    await world.clock.advance(world.settings.feed_poll_interval_ms / 1000)
    assert waiting.done()
    ((_, _, end_offset),) = await ask(world, ("t", 0, 0))
    return waiting.result(), key, end_offset


def _as_found(lookup: Lookup, leader_epoch: int) -> Lookup:
    """Planted: the rule is left out."""
    return lookup


async def _position_stays_in_its_epoch(world: World) -> None:
    result, key, end_offset = await _wait_while_the_epoch_rises(world, 0)
    position = 1 + len(split_sent(result.records(key)))
    assert position <= end_offset, "the client takes this for a truncation"
    assert result.code(key) == FENCED


async def test_a_waiting_fetch_does_not_move_its_reader_into_a_later_epoch(world: World) -> None:
    await _position_stays_in_its_epoch(world)


async def test_a_planted_bug_is_caught(world: World, patch: Patch) -> None:
    patch.replace(handler, "known_part", _as_found)
    with pytest.raises(AssertionError, match="truncation"):
        await _position_stays_in_its_epoch(world)


async def test_a_reader_that_names_no_epoch_gets_everything(world: World) -> None:
    result, key, _ = await _wait_while_the_epoch_rises(world, -1)
    assert (result.code(key), len(split_sent(result.records(key)))) == (0, 1)


async def test_what_its_epoch_has_comes_first(world: World, key: int) -> None:
    await world.append(key, b"a")
    await world.append(key, b"b")
    world.model.set_leader_epoch(key, 3)
    await world.append(key, b"c")
    result = await world.fetch({key: 0}, leader_epoch=0)
    assert (result.code(key), split_sent(result.records(key))) == (0, expected(world.live[key], 0)[:2])
    assert (await world.fetch({key: 2}, leader_epoch=0)).code(key) == FENCED


@pytest.mark.parametrize("looks", [True, False], ids=["as it is", "planted bug"])
async def test_a_second_look_for_a_lost_file_keeps_to_the_epoch_too(
    world: World, key: int, monkeypatch: pytest.MonkeyPatch, looks: bool
) -> None:
    """Its file is gone, and what the primary has in its place is of a later epoch."""
    lost = await world.append(key, b"a")
    await world.store.delete_many([object_key(lost)])
    world.model.set_leader_epoch(key, 3)
    again = deliver.Delivery._ask_again

    async def replaced(self: deliver.Delivery, *args: object, **more: object) -> object:
        extents = world.model.partitions[key].extents
        extents[:] = [extent._replace(leader_epoch=3) for extent in extents]
        return await again(self, *args, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(deliver.Delivery, "_ask_again", replaced)
    if not looks:
        monkeypatch.setattr(deliver, "known_part", _as_found)
    result = await world.fetch({key: 0}, leader_epoch=0)
    assert (result.code(key) == FENCED) is looks
