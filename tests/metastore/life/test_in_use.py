"""Whether agents use the metastore that the bucket names, also in their first seconds."""

from __future__ import annotations

import asyncio
import uuid

import pytest

from headrace.metastore.life.bucket import LifeRecord, Position, record_life, write_position
from headrace.metastore.life.watch import LONG_AGO_MS, WATCH_SECONDS, require_unused
from headrace.storage.errors import InvalidError
from headrace.storage.objects.memory import MemoryStore
from tests.manual_clock import ManualClock

POSITION = Position(life=1, timeline=1, wal_bytes=100, feed_sum=1, metadata_head=1)


@pytest.fixture
async def store(fake_clock: ManualClock) -> MemoryStore:
    """A bucket with a life that was recorded just now."""
    store = MemoryStore(fake_clock)
    assert await record_life(store, LifeRecord("c", 1, uuid.UUID(int=1), 1, 1, "first", fake_clock.wall_ms(), 0, 0))
    return store


@pytest.mark.requirement("C12")
@pytest.mark.parametrize("has_position", [False, True])
async def test_agents_that_note_their_position_meanwhile_are_noticed(
    store: MemoryStore, fake_clock: ManualClock, has_position: bool
) -> None:
    """A life that was begun a moment ago has none yet."""
    if has_position:
        await write_position(store, POSITION)
    asked = asyncio.ensure_future(require_unused(store, fake_clock))
    await fake_clock.advance(WATCH_SECONDS / 2)
    assert not asked.done()
    await write_position(store, POSITION)
    await fake_clock.advance(1)
    with pytest.raises(InvalidError, match="agents are running"):
        await asked


@pytest.mark.parametrize("has_position", [False, True])
async def test_a_life_without_agents_is_watched_for_a_while(
    store: MemoryStore, fake_clock: ManualClock, has_position: bool
) -> None:
    if has_position:
        await write_position(store, POSITION)
    asked = asyncio.ensure_future(require_unused(store, fake_clock))
    await fake_clock.advance(WATCH_SECONDS - 1)
    assert not asked.done()
    await fake_clock.advance(2)
    await asked


@pytest.mark.parametrize("has_position", [False, True])
async def test_agents_that_stopped_long_ago_are_not_waited_for(
    store: MemoryStore, fake_clock: ManualClock, has_position: bool
) -> None:
    if has_position:
        await write_position(store, POSITION)
    await fake_clock.advance(LONG_AGO_MS / 1_000 + 1)
    await asyncio.wait_for(require_unused(store, fake_clock), 60)


async def test_a_bucket_without_a_life_is_used_by_none(fake_clock: ManualClock) -> None:
    await require_unused(MemoryStore(fake_clock), fake_clock)
