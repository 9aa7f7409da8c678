"""ListOffsets for read_committed on real Postgres: no answer at or behind the last stable offset (as Kafka 4.1.1)."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from headrace.agent.fetch.offsets import offset_requests
from headrace.metastore.api.retention import LogStartTarget
from headrace.metastore.api.transactions import NO_PRODUCER, ProducerEpoch
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.storage.records.header import TRANSACTIONAL_BIT
from tests.agent.fetch.test_postgres import PostgresWorld
from tests.patch import Patch
from tests.storage.batches import plain_batch

LATEST, EARLIEST, MAX_TIMESTAMP = -1, -2, -3
T0 = 1_700_000_000_000
NONE = (-1, -1)


@pytest.fixture
async def world(metastore: PostgresMetastore) -> AsyncIterator[PostgresWorld]:
    world = PostgresWorld(metastore)
    await world.begin()
    yield world
    await world.service.close()


async def ask(world: PostgresWorld, timestamp: int, isolation_level: int = 1) -> tuple[int, int]:
    """(offset, timestamp)."""
    (found,) = await world.request_offsets([("t", 0, timestamp)], isolation_level=isolation_level)
    assert not found.error_code
    return found.offset, found.timestamp


async def open_transaction(world: PostgresWorld) -> tuple[int, ProducerEpoch]:
    """Offsets 0 and 3 are plain; 1 and 2, with the latest times, are of an open transaction."""
    (key,) = await world.topic("t", 1)
    who = (await world.postgres.transactions.init_producer("copy", 60_000, NO_PRODUCER, 4711)).producer
    fields = {"attributes": TRANSACTIONAL_BIT, "producer_id": who.producer_id, "producer_epoch": who.epoch}
    await world.commit((key, plain_batch(1, base_timestamp=T0)))
    await world.commit((key, plain_batch(2, base_timestamp=T0 + 50, base_sequence=0, **fields)))
    await world.commit((key, plain_batch(1, base_timestamp=T0 + 20)))
    return key, who


async def check_open(world: PostgresWorld) -> None:
    assert await ask(world, LATEST) == (1, -1)
    assert await ask(world, EARLIEST) == (0, -1)
    assert await ask(world, T0) == (0, T0)
    assert await ask(world, T0 + 1) == NONE
    assert await ask(world, T0 + 10) == NONE
    assert await ask(world, MAX_TIMESTAMP) == NONE


async def test_nothing_at_or_behind_the_last_stable_offset_is_found(world: PostgresWorld) -> None:
    _, who = await open_transaction(world)
    await check_open(world)
    assert await ask(world, T0 + 1, 0) == (1, T0 + 50)
    assert await ask(world, MAX_TIMESTAMP, 0) == (2, T0 + 51)
    assert await ask(world, LATEST, 0) == (4, -1)

    await world.postgres.transactions.end_transaction("copy", who, commits=False, bumps=True, new_producer_id=4712)
    for isolation_level in (0, 1):  # also what was aborted, as in Kafka
        assert await ask(world, T0 + 1, isolation_level) == (1, T0 + 50)
        assert await ask(world, MAX_TIMESTAMP, isolation_level) == (2, T0 + 51)
        assert await ask(world, LATEST, isolation_level) == (5, -1)


async def test_a_search_without_an_end_is_caught(world: PostgresWorld, patch: Patch) -> None:
    await open_transaction(world)
    patch.replace(offset_requests.SearchedOffsets, "_replace", lambda self, end: self)
    with pytest.raises(AssertionError):
        await check_open(world)


async def test_the_last_stable_offset_is_never_below_the_log_start(world: PostgresWorld) -> None:
    """DeleteRecords may take the beginning of an open transaction; its end removes the rest."""
    key, who = await open_transaction(world)
    await world.postgres.retention.move_log_starts([LogStartTarget(key, 3)], max_extents=100)
    assert await ask(world, EARLIEST) == await ask(world, LATEST) == (3, -1)
    await world.request_fetch({key: 3}, max_wait_ms=60_000)  # until the feed brought the last commit
    for service in (world.service, world.new_service()):
        found = (await world.request_fetch({key: 3}, isolation_level=1, service=service)).partitions[key]
        assert (found.last_stable_offset, found.log_start_offset, found.records) == (3, 3, b"")
    await world.postgres.transactions.end_transaction("copy", who, commits=False, bumps=True, new_producer_id=4712)
    assert await ask(world, LATEST) == (5, -1)
    assert await ask(world, T0 + 20) == (3, T0 + 20)
