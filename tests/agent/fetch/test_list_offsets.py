"""ListOffsets: always the primary's answer; timestamps down to the record."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from headrace.storage.errors import OutcomeUnknownError, UnavailableError
from headrace.storage.file_id import object_key
from headrace.storage.records.codec import Record, encode_batch
from headrace.storage.records.compression import Codec
from tests.agent.fetch.fetch_world import NEVER_SEEN, World
from tests.storage.batches import crowded_batch, forge, plain_batch

LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED, PENDING_UPLOAD = -1, -2, -3, -4, -5, -6
T0 = 1_700_000_000_000


def batch(*timestamps: int, codec: Codec = Codec.NONE, **options: Any) -> bytes:
    records = [Record(i, T0 + at, None, b"v") for i, at in enumerate(timestamps)]
    return encode_batch(records, base_offset=0, codec=codec, **options)


async def ask(world: World, timestamp: int, **options: Any) -> tuple[int, int, int]:
    (found,) = await world.list_offsets([("t", 0, timestamp)], **options)
    return int(found.error_code), found.offset, found.timestamp


async def test_a_client_that_knows_the_log_start_gets_no_record_before_it(world: World, key: int) -> None:
    """Retention moved it, and the feed has not brought that yet."""
    for value in (b"a", b"b", b"c"):
        await world.append(key, value)
    await world.fetch({key: 0})  # the primary tells of the partition, and the next poll of its extents
    await world.clock.advance(0.2)
    asked = world.metastore.asked["poll_feed"]
    world.model.move_log_start(key, 2)
    assert (await world.request_fetch({key: 1})).partitions[key].error_code == ErrorCode.none, "not known here yet"

    assert await ask(world, EARLIEST) == (0, 2, -1)

    assert world.metastore.asked["poll_feed"] == asked
    refused = (await world.request_fetch({key: 1})).partitions[key]
    assert (refused.error_code, refused.log_start_offset) == (ErrorCode.offset_out_of_range, 2)


@pytest.mark.parametrize("version", range(1, 12))
async def test_every_version_knows_earliest_and_latest(world: World, key: int, version: int) -> None:
    await world.write([(key, plain_batch(5))])
    await world.append(key, b"x")
    world.model.move_log_start(key, 5)

    assert await ask(world, EARLIEST, version=version) == (0, 5, -1)
    assert await ask(world, LATEST, version=version) == (0, 6, -1)


@pytest.mark.requirement("W5")
async def test_latest_is_the_primarys_even_while_the_feed_stops(world: World, key: int) -> None:
    await world.service.close()
    await world.append(key, b"a", b"b")

    assert await ask(world, LATEST) == (0, 2, -1)


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize(
    ("at", "offset", "found"),
    [(-5, 0, 0), (0, 0, 0), (1, 1, 10), (10, 1, 10), (15, 3, 40), (35, 3, 40), (41, 5, 50), (51, -1, None)],
)
async def test_a_timestamp_finds_the_first_record_that_reaches_it(
    world: World, key: int, codec: Codec, at: int, offset: int, found: int | None
) -> None:
    await world.write([(key, batch(0, 10, 5, codec=codec)), (key, batch(40, 20, codec=codec))])
    await world.write([(key, batch(50, codec=codec))])

    assert await ask(world, T0 + at) == (0, offset, -1 if found is None else T0 + found)


async def test_dead_batches_have_no_timestamps(world: World, key: int) -> None:
    await world.write([(key, batch(0)), (key, plain_batch(1, base_timestamp=T0 + 99, **NEVER_SEEN)), (key, batch(50))])

    assert await ask(world, T0 + 60) == (0, -1, -1)
    assert await ask(world, T0 + 1) == (0, 1, T0 + 50)


async def test_records_below_the_log_start_are_not_found(world: World, key: int) -> None:
    await world.write([(key, batch(90, 80, 10))])
    await world.write([(key, batch(20))])
    await world.write([(key, batch(70))])
    world.model.move_log_start(key, 2)

    assert await ask(world, T0 + 60) == (0, 4, T0 + 70)
    assert await ask(world, T0 + 75) == (0, -1, -1)


async def test_append_time_is_every_records_time(world: World, key: int) -> None:
    await world.write([(key, batch(0, 30, log_append_time=True))])

    assert await ask(world, T0 + 10) == (0, 0, T0 + 30)


async def test_a_header_that_promises_a_later_time_than_its_records_have_is_passed_over(world: World, key: int) -> None:
    await world.write([(key, plain_batch(2, base_timestamp=T0, max_timestamp=T0 + 1000))])
    await world.write([(key, batch(500))])

    assert await ask(world, T0 + 400) == (0, 2, T0 + 500)


@pytest.mark.parametrize("in_one_extent", [False, True])
async def test_a_header_that_says_too_early_a_time_hides_its_own_records_and_no_others(
    world: World, key: int, in_one_extent: bool
) -> None:
    """Kafka computes the header's time from the records; here a producer's claim is stored."""
    batches = [batch(10), forge(batch(0, 400), max_timestamp=T0), batch(300)]
    for written in [batches] if in_one_extent else [[one] for one in batches]:
        await world.write([(key, data) for data in written])

    assert await ask(world, T0 + 5) == (0, 0, T0 + 10)
    assert await ask(world, T0 + 250) == (0, 3, T0 + 300), "a scan finds the record of T0 + 400 before it"
    assert await ask(world, T0 + 350) == (0, -1, -1)
    assert await ask(world, MAX_TIMESTAMP) == (0, 3, T0 + 300)


async def test_a_batch_too_large_to_be_opened_is_found_by_its_header(world: World, key: int) -> None:
    """5,849 bytes, 9,000,000 records: its first readable offset, in no time and no memory."""
    await world.write([(key, batch(0)), (key, forge(bytes(crowded_batch(9_000_000)), max_timestamp=T0 + 70))])
    await world.write([(key, batch(90))])
    tracemalloc.start()
    try:
        assert await ask(world, T0 + 60) == (0, 1, T0 + 70)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1_000_000
    assert await ask(world, T0 + 80) == (0, 9_000_001, T0 + 90)
    world.model.move_log_start(key, 5)
    assert await ask(world, T0 + 60) == (0, 5, T0 + 70)


async def test_max_timestamp_is_the_first_record_that_has_it(world: World, key: int) -> None:
    assert await ask(world, MAX_TIMESTAMP) == (0, -1, -1)
    await world.write([(key, batch(0, 70)), (key, batch(70, 3))])
    await world.write([(key, batch(60))])

    assert await ask(world, MAX_TIMESTAMP) == (0, 1, T0 + 70)


@pytest.mark.parametrize(
    ("timestamp", "first_version"), [(MAX_TIMESTAMP, 7), (EARLIEST_LOCAL, 8), (LATEST_TIERED, 9), (PENDING_UPLOAD, 11)]
)
async def test_special_timestamps_are_refused_before_their_version(
    world: World, key: int, timestamp: int, first_version: int
) -> None:
    await world.append(key, b"a")

    before, _, _ = await ask(world, timestamp, version=first_version - 1)
    since, _, _ = await ask(world, timestamp, version=first_version)

    assert (before, since) == (ErrorCode.unsupported_version, 0)


async def test_nothing_is_tiered(world: World, key: int) -> None:
    await world.append(key, b"a", b"b")

    assert await ask(world, EARLIEST_LOCAL) == (0, 0, -1)
    assert await ask(world, LATEST_TIERED) == (0, -1, -1)
    assert await ask(world, PENDING_UPLOAD) == (0, -1, -1)
    assert (await ask(world, -7))[0] == ErrorCode.unsupported_version


async def test_each_partition_has_its_own_error(world: World, key: int) -> None:
    await world.append(key, b"a")
    (gone,) = world.create_topic("gone", 1)
    world.model.delete_topic(gone >> 24)

    found = await world.list_offsets(
        [("t", 0, LATEST), ("t", 5, LATEST), ("nowhere", 0, LATEST), ("gone", 0, LATEST), ("u", 0, -9), ("u", 0, -1)]
    )

    unknown = ErrorCode.unknown_topic_or_partition
    assert [int(p.error_code) for p in found] == [0, unknown, unknown, unknown, *[ErrorCode.invalid_request] * 2]
    assert found[0].offset == 1


async def test_leader_epochs_are_checked_and_told(world: World, key: int) -> None:
    await world.append(key, b"a")

    (newer,) = await world.list_offsets([("t", 0, LATEST)], leader_epoch=9)
    (same,) = await world.list_offsets([("t", 0, LATEST)], leader_epoch=0)

    assert newer.error_code == ErrorCode.unknown_leader_epoch
    assert (same.error_code, same.leader_epoch) == (ErrorCode.none, 0)


@pytest.mark.parametrize("failure", [UnavailableError("down"), OutcomeUnknownError("cut")])
async def test_a_silent_metastore_is_a_storage_error(world: World, key: int, failure: Exception) -> None:
    world.metastore.fail = failure  # type: ignore[assignment]

    assert await ask(world, LATEST) == (ErrorCode.kafka_storage_error, -1, -1)
    assert key in world.live


async def test_an_unreadable_file_is_a_storage_error_for_timestamps_only(world: World, key: int) -> None:
    file_id = await world.write([(key, batch(0, 10))])
    await world.store.rewrite(object_key(file_id), lambda data: data[:60])

    assert await ask(world, T0) == (ErrorCode.kafka_storage_error, -1, -1)
    assert await ask(world, LATEST) == (0, 2, -1)


async def test_many_partitions_are_one_question(world: World) -> None:
    keys = world.create_topic("t", 20)
    await world.write([(key, batch(0, 10)) for key in keys])

    found = await world.list_offsets([("t", index, T0 + 5) for index in range(20)])

    assert [p.offset for p in found] == [1] * 20
    assert world.metastore.asked["list_offsets"] == 1
