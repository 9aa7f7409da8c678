"""Failures and their answers: a separate error per partition, never wrong bytes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from kio.schema.errors import ErrorCode

from headrace.metastore.api.read import FeedKind
from headrace.storage.errors import OutcomeUnknownError, UnavailableError
from headrace.storage.file_id import object_key
from tests.agent.fetch.fetch_world import World, expected, split_sent
from tests.storage.batches import plain_batch


@pytest.mark.parametrize(
    ("version", "error"), [(12, ErrorCode.unknown_topic_or_partition), (13, ErrorCode.unknown_topic_id)]
)
async def test_an_unknown_topic_is_unknown_only_after_catching_up(world: World, version: int, error: ErrorCode) -> None:
    (new,) = world.create_topic("new", 1, seen=False)
    await world.append(new, b"a")
    world.names[77] = "never created"

    result = await world.fetch({new: 0, 77 << 24: 0}, version=version)

    assert result.code(new) == 0
    assert split_sent(result.records(new)) == expected(world.live[new], 0)
    assert result.code(77 << 24) == error
    assert world.view.catch_ups == 1


async def test_a_partition_beyond_the_last_is_unknown(world: World, key: int) -> None:
    result = await world.fetch({key + 5: 0})

    assert result.code(key + 5) == ErrorCode.unknown_topic_or_partition


async def test_a_name_is_not_called_unknown_while_the_log_cannot_be_read(world: World) -> None:
    (known,) = world.create_topic("known", 1)
    world.names[77] = "never created"
    world.view.unreachable = UnavailableError("down")

    result = await world.fetch({known: 0, 77 << 24: 0})

    assert (result.code(known), result.code(77 << 24)) == (0, ErrorCode.kafka_storage_error)


@pytest.mark.parametrize(("epoch", "error"), [(-1, 0), (0, 0), (1, ErrorCode.unknown_leader_epoch)])
async def test_a_newer_leader_epoch_is_unknown(world: World, key: int, epoch: int, error: int) -> None:
    result = await world.fetch({key: 0}, leader_epoch=epoch)

    assert result.code(key) == error


async def test_an_older_leader_epoch_is_fenced(world: World, key: int) -> None:
    world.raise_leader_epochs("t", 4)

    result = await world.fetch({key: 0}, leader_epoch=3)

    assert result.code(key) == ErrorCode.fenced_leader_epoch


@pytest.mark.parametrize("offset", [-1, 4, 1_000_000])
async def test_out_of_range_is_said_after_asking_the_primary(world: World, key: int, offset: int) -> None:
    await world.write([(key, plain_batch(3))], own=True)
    await world.fetch({key: 0})
    await world.clock.advance(0.1)
    asked = world.metastore.asked["find_extents"]

    result = await world.fetch({key: offset}, max_wait_ms=5_000)

    assert result.code(key) == ErrorCode.offset_out_of_range
    assert world.metastore.asked["find_extents"] == asked + 1


async def test_a_lagging_agent_does_not_rewind_a_consumer_that_is_ahead_of_it(world: World, key: int) -> None:
    await world.fetch({key: 0})
    world.metastore.change_page = lambda page: page.__class__(
        page.incarnation_id, page.wall_ms, page.heads, [], [], page.metadata_offset
    )
    await world.append(key, b"a", b"b")
    await world.clock.advance(0.1)

    ahead = await world.fetch({key: 1})
    at_the_end = await world.fetch({key: 2})

    assert split_sent(ahead.records(key)) == expected(world.live[key], 1)
    assert (at_the_end.code(key), at_the_end.records(key)) == (0, b"")
    assert at_the_end.partitions[key].high_watermark == 2


async def test_what_was_deleted_from_the_front_is_out_of_range(world: World, key: int) -> None:
    for value in (b"a", b"b", b"c"):
        await world.append(key, value, own=True)
    await world.fetch({key: 0})
    await world.clock.advance(0.1)
    world.model.move_log_start(key, 2)
    await world.clock.advance(0.1)

    below, above = await world.fetch({key: 1}), await world.fetch({key: 2})

    assert below.code(key) == ErrorCode.offset_out_of_range
    assert below.partitions[key].log_start_offset == 2
    assert split_sent(above.records(key)) == expected(world.live[key], 2)
    assert above.partitions[key].log_start_offset == 2


@pytest.mark.parametrize(
    ("version", "error"), [(12, ErrorCode.unknown_topic_or_partition), (17, ErrorCode.unknown_topic_id)]
)
async def test_a_topic_that_the_image_still_shows_but_is_deleted(
    world: World, key: int, version: int, error: ErrorCode
) -> None:
    await world.append(key, b"a")
    world.model.delete_topic(key >> 24)
    await world.clock.advance(0.1)

    result = await world.fetch({key: 0}, version=version)

    assert result.code(key) == error


@pytest.mark.parametrize("failure", [UnavailableError("down"), OutcomeUnknownError("cut")])
async def test_a_silent_metastore_fails_only_what_needs_it(world: World, failure: Exception) -> None:
    key, cold = world.create_topic("t", 2)
    await world.fetch({key: 0})
    await world.append(key, b"a", own=True)
    await world.clock.advance(0.1)
    world.metastore.fail = failure  # type: ignore[assignment]

    result = await world.fetch({key: 0, cold: 0}, max_wait_ms=5_000)

    assert split_sent(result.records(key)) == expected(world.live[key], 0)
    assert result.code(cold) == ErrorCode.kafka_storage_error


async def test_a_missing_object_is_a_storage_error_once_and_no_loop(world: World) -> None:
    key, healthy = world.create_topic("t", 2)
    file_id = await world.append(key, b"a")
    await world.append(healthy, b"b")
    await world.store.rewrite(object_key(file_id), lambda _: None)

    result = await world.fetch({key: 0, healthy: 0}, max_wait_ms=5_000)

    assert (result.code(key), result.records(key)) == (ErrorCode.kafka_storage_error, b"")
    assert split_sent(result.records(healthy)) == expected(world.live[healthy], 0)
    assert world.metric("storage_errors_total", reason="missing") == 1
    assert len([1 for name, _ in world.store.gets if name == object_key(file_id)]) == 2
    assert world.metastore.asked["find_extents"] == 2


async def test_a_file_that_compaction_swapped_away_is_found_in_its_new_place(world: World, key: int) -> None:
    await world.fetch({key: 0})
    file_id = await world.append(key, b"a")
    await world.clock.advance(0.1)
    copy = await world.append(key, b"unused")  # some other file's id and place
    old, _ = world.model.partitions[key].extents
    body = await world.store.get(object_key(file_id))
    await world.store.put(object_key(copy), b"pad" + body)
    world.model.partitions[key].extents[0] = old._replace(source=copy, position=old.position + 3)
    await world.store.rewrite(object_key(file_id), lambda _: None)

    result = await world.fetch({key: 0}, partition_max_bytes=80)

    assert result.code(key) == 0
    assert split_sent(result.records(key)) == expected(world.live[key], 0)[:1]


async def test_a_file_that_retention_took_away_in_mid_fetch_is_out_of_range(world: World, key: int) -> None:
    """For a fetch of any duration: it asks again, and no alarm is raised."""
    file_id = await world.append(key, b"a")
    await world.append(key, b"b")
    await world.clock.advance(0.1)  # the index knows both

    async def retention_is_quicker(_: str) -> None:
        if world.model.partitions[key].log_start_offset == 0:
            world.model.move_log_start(key, 1)
            await world.store.rewrite(object_key(file_id), lambda _: None)

    world.store.before_get = retention_is_quicker
    late = await world.fetch({key: 0})

    assert late.code(key) == ErrorCode.offset_out_of_range
    assert late.partitions[key].log_start_offset == 1
    assert world.metric("storage_errors_total", reason="missing") == 0
    assert split_sent((await world.fetch({key: 1})).records(key)) == expected(world.live[key], 1)


def _cut(data: bytes) -> bytes:
    return data[: len(data) // 3]


def _flip(position_from_end: int) -> Callable[[bytes], bytes]:
    def flip(data: bytes) -> bytes:
        changed = bytearray(data)
        changed[position_from_end] ^= 1
        return bytes(changed)

    return flip


@pytest.mark.requirement("W5")
@pytest.mark.parametrize("position", [*range(16, 16 + 8 + 90, 3), 300, 333])
async def test_any_flipped_bit_is_an_error_and_never_a_wrong_byte(world: World, key: int, position: int) -> None:
    file_id = await world.append(key, b"x" * 400, b"y" * 400)
    await world.store.rewrite(object_key(file_id), _flip(position))

    result, behind = await world.fetch({key: 0}), await world.fetch({key: 1})

    if result.code(key) == 0:
        # The flipped bit is in the base offset or leader epoch that the reader replaces.
        assert split_sent(result.records(key)) == expected(world.live[key], 0)
    else:
        assert (result.code(key), result.records(key)) == (ErrorCode.corrupt_message, b"")
        assert world.metric("storage_errors_total", reason="damaged") == 1
    assert split_sent(behind.records(key)) == expected(world.live[key], 1)


async def test_a_cut_object_is_an_error(world: World, key: int) -> None:
    file_id = await world.append(key, b"x" * 400, b"y" * 400)
    await world.store.rewrite(object_key(file_id), _cut)

    result = await world.fetch({key: 0})

    assert (result.code(key), result.records(key)) == (ErrorCode.kafka_storage_error, b"")


async def test_another_files_bytes_under_the_name_are_an_error(world: World, key: int) -> None:
    file_id = await world.write([(key, plain_batch(3, b"right"))])
    other = await world.write([(key, plain_batch(2, b"wrong".ljust(11)))])
    foreign = await world.store.get(object_key(other))
    await world.store.rewrite(object_key(file_id), lambda data: foreign.ljust(len(data), b"\0"))

    result = await world.fetch({key: 0})

    assert result.code(key) == ErrorCode.corrupt_message
    assert b"wrong" not in result.records(key)


async def test_the_good_extents_before_a_bad_one_are_delivered(world: World, key: int) -> None:
    await world.append(key, b"good")
    bad = await world.append(key, b"bad")
    await world.store.rewrite(object_key(bad), lambda _: None)

    first, second = await world.fetch({key: 0}), await world.fetch({key: 1})

    assert (first.code(key), split_sent(first.records(key))) == (0, expected(world.live[key], 0)[:1])
    assert second.code(key) == ErrorCode.kafka_storage_error


async def test_a_store_that_is_down_is_not_asked_twice(world: World, key: int) -> None:
    await world.append(key, b"a")

    async def down(_: str) -> None:
        raise UnavailableError("bucket down")

    world.store.before_get = down
    result = await world.fetch({key: 0})

    assert result.code(key) == ErrorCode.kafka_storage_error
    assert len(world.store.gets) == 1


async def test_a_swap_in_the_feed_sends_older_readers_to_the_primary(world: World, key: int) -> None:
    await world.fetch({key: 0})
    old = await world.append(key, b"a", own=True)
    await world.append(key, b"b", own=True)
    await world.clock.advance(0.1)
    body = await world.store.get(object_key(old))
    extent = world.model.partitions[key].extents[0]
    new = await world.append(key, b"c", own=True)
    await world.store.put(object_key(new), body)
    swapped = extent._replace(source=new)
    world.model.partitions[key].extents[0] = swapped
    world.model._append_feed(world.model._shard(key), FeedKind.SWAP, extents=[swapped])
    await world.clock.advance(0.1)
    asked = world.metastore.asked["find_extents"]

    await world.fetch({key: 1})
    assert world.metastore.asked["find_extents"] == asked
    await world.fetch({key: 0})
    assert world.metastore.asked["find_extents"] == asked + 1
