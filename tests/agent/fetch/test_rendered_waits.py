"""Long polls of rendered topics: how soon they learn of news, and what they cost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from headrace.agent.fetch.handler import METADATA_POLL_SECONDS
from headrace.agent.fetch.index.feed import QUIET_AFTER_SECONDS, QUIET_SECONDS
from headrace.agent.fetch.rendered_topics import rendered_topics
from headrace.metastore.api.segment_logs import LogEnds
from headrace.metastore.api.segments import METADATA_PARTITIONS
from headrace.metastore.log.kip631_records import FenceBrokerRecord
from headrace.metastore.log.metadata_topic import METADATA_TOPIC
from headrace.metastore.log.records import encode_record
from headrace.metastore.segment_logs.topics import AUDIT_TOPIC, REMOTE_LOG_TOPIC
from headrace.storage.records.codec import decode_records
from tests.agent.fetch.fetch_world import FetchResult, World
from tests.nouns import nouns

NAMES = {900: METADATA_TOPIC, 901: REMOTE_LOG_TOPIC, 902: AUDIT_TOPIC}
METADATA, REMOTE, AUDIT = (number << 24 for number in NAMES)
BY_NAME = 12


class Logs:
    """A metadata log up to the world's end, of any records; empty lifecycle logs."""

    def __init__(self, world: World) -> None:
        self._world = world

    async def metadata_log_start(self) -> int:
        return 0

    async def read_metadata(self, start_offset: int, limit: int) -> list[bytes]:
        record = encode_record(FenceBrokerRecord(broker_id=1, broker_epoch=1))
        return [record] * min(limit, self._world.view.head.offset - start_offset)

    async def segment_log_ends(self) -> list[LogEnds]:
        return [LogEnds(0, 0, 0)] * METADATA_PARTITIONS


@pytest.fixture
async def world() -> AsyncIterator[World]:
    """An agent on its own in a quiet cluster."""
    world = World()
    logs: Any = Logs(world)
    world.names |= NAMES
    world.service._fetch._rendered = rendered_topics(nouns(logs), world.store, world.view, world.clock)
    for name in ("a", "b", "c"):
        change_metadata(world, name)
    world.view.image = world.view.head
    world.service._on_metadata_moved = lambda head: setattr(world.view, "image", world.view.head)
    await world.service.start()
    await world.clock.advance(QUIET_AFTER_SECONDS + QUIET_SECONDS / 2)
    yield world
    await world.service.close()


def change_metadata(world: World, topic: str) -> None:
    """On another agent."""
    world.create_topic(topic, 1, seen=False)
    world.model.metadata_offset = world.view.head.offset


def wait_for(world: World, key: int, offset: int) -> asyncio.Future[FetchResult]:
    return asyncio.ensure_future(world.request_fetch({key: offset}, version=BY_NAME, max_wait_ms=60_000))


async def test_a_reader_of_the_metadata_log_hears_of_a_change_within_the_interval(world: World) -> None:
    end = world.view.image.offset
    waiting = wait_for(world, METADATA, end)
    await world.clock.advance(2 * QUIET_AFTER_SECONDS)
    assert not waiting.done()
    change_metadata(world, "news")
    await world.clock.advance(world.settings.feed_poll_interval_ms / 1000 + METADATA_POLL_SECONDS)
    assert waiting.done()
    (record,) = decode_records(memoryview(waiting.result().records(METADATA)))
    assert record.offset == end


async def test_a_reader_behind_the_end_of_the_metadata_log_costs_no_more_polls_than_none(world: World) -> None:
    before = world.metastore.asked["poll_feed"]
    for offset in range(world.view.image.offset):
        assert (await wait_for(world, METADATA, offset)).records(METADATA)
        await world.clock.advance(0.05)
    assert world.metastore.asked["poll_feed"] - before <= 2


@pytest.mark.parametrize("key", [REMOTE, AUDIT])
async def test_a_reader_of_a_lifecycle_log_does_not_follow_the_feed(world: World, key: int) -> None:
    before = world.metastore.asked["poll_feed"]
    waiting = wait_for(world, key, 0)
    await world.clock.advance(1.05)
    assert not waiting.done()
    assert world.metastore.asked["poll_feed"] - before == 11, "the fetch ended the quiet, no more"
    await world.clock.advance(60.0)
    assert waiting.done()
