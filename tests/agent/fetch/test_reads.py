"""What a consumer gets: the live batches, in order, under their real offsets, within its limits."""

from __future__ import annotations

import pytest

from headrace.agent.fetch.deliver import FILES_MAX
from headrace.agent.fetch.files.walk import Batches
from headrace.storage.file_id import new_file_id, object_key
from tests.agent.fetch.fetch_world import NEVER_SEEN, World, expected, split_sent
from tests.storage.batches import plain_batch


@pytest.mark.requirement("W5")
@pytest.mark.parametrize("version", range(4, 19))
async def test_every_version_gets_the_batches_under_their_real_offsets(world: World, version: int) -> None:
    key, other = world.create_topic("t", 2)
    await world.write([(key, plain_batch(3, b"a")), (other, plain_batch(2, b"b")), (key, plain_batch(1, b"c"))])
    await world.append(key, b"d")

    result = await world.fetch({key: 0, other: 0}, version=version)

    assert split_sent(result.records(key)) == expected(world.live[key], 0)
    assert split_sent(result.records(other)) == expected(world.live[other], 0)
    partition = result.partitions[key]
    assert (partition.high_watermark, partition.last_stable_offset, result.code(key)) == (5, 5, 0)


@pytest.mark.requirement("W8")
@pytest.mark.parametrize("own", [True, False])
async def test_a_dropped_batch_between_two_live_ones_is_never_sent(world: World, key: int, own: bool) -> None:
    dead = plain_batch(4, b"dead", **NEVER_SEEN)
    await world.write([(key, plain_batch(2, b"first")), (key, dead), (key, plain_batch(1, b"last"))], own=own)

    result = await world.fetch({key: 0})

    assert split_sent(result.records(key)) == expected(world.live[key], 0)
    assert b"dead" not in result.records(key)
    assert result.partitions[key].high_watermark == 3


@pytest.mark.requirement("W8")
async def test_a_retried_batch_is_read_once_from_either_file(world: World, key: int) -> None:
    sent = {"producer_id": 1000, "producer_epoch": 0, "base_sequence": 0}
    batch = plain_batch(2, b"once", **sent)
    await world.write([(key, batch), (key, batch)])
    await world.write([(key, batch)])

    result = await world.fetch({key: 0})

    assert result.records(key).count(b"once") == 2  # two records, one batch
    assert result.partitions[key].high_watermark == 2


async def test_an_offset_inside_a_batch_gets_that_batch_whole(world: World, key: int) -> None:
    await world.write([(key, plain_batch(5, b"a")), (key, plain_batch(5, b"b")), (key, plain_batch(5, b"c"))])

    result = await world.fetch({key: 7})

    assert split_sent(result.records(key)) == expected(world.live[key], 7)


async def test_each_batch_has_the_leader_epoch_of_its_commit(world: World, key: int) -> None:
    world.model.set_leader_epoch(key, 3)
    await world.append(key, b"a")

    result = await world.fetch({key: 0})

    assert result.records(key) == world.live[key][0].sent(leader_epoch=3)


@pytest.mark.parametrize(("isolation_level", "aborted"), [(0, None), (1, ())])
async def test_no_transaction_is_ever_aborted(world: World, key: int, isolation_level: int, aborted: object) -> None:
    await world.append(key, b"a")

    result = await world.fetch({key: 0}, isolation_level=isolation_level)

    assert result.partitions[key].aborted_transactions == aborted
    assert result.partitions[key].preferred_read_replica == -1


async def test_nothing_to_read_is_an_empty_record_set_not_null(world: World, key: int) -> None:
    result = await world.fetch({key: 0})

    assert result.partitions[key].records == b""
    assert (result.code(key), result.partitions[key].log_start_offset) == (0, 0)


async def test_only_whole_batches_within_the_partitions_limit(world: World, key: int) -> None:
    await world.append(key, b"a" * 100, b"b" * 100, b"c" * 100)
    first, second, _ = expected(world.live[key], 0)

    result = await world.fetch({key: 0}, partition_max_bytes=len(first) + len(second) + 50)

    assert split_sent(result.records(key)) == [first, second]


@pytest.mark.parametrize("limits", [{"partition_max_bytes": 10}, {"max_bytes": 10}, {"max_bytes": 0}])
@pytest.mark.parametrize("own", [True, False])
async def test_one_batch_is_sent_however_small_the_limits(
    world: World, key: int, limits: dict[str, int], own: bool
) -> None:
    await world.append(key, b"a" * 5000, b"b", own=own)

    result = await world.fetch({key: 0}, **limits)

    assert split_sent(result.records(key)) == expected(world.live[key], 0)[:1]


async def test_the_exception_for_one_batch_is_made_once_per_response(world: World) -> None:
    keys = world.create_topic("t", 3)
    await world.write([(key, plain_batch(1, b"x" * 5000)) for key in keys])

    result = await world.fetch(dict.fromkeys(keys, 0), partition_max_bytes=10)

    assert sorted(len(result.records(key)) > 0 for key in keys) == [False, False, True]


async def test_no_partition_starves_behind_one_that_fills_every_response(world: World) -> None:
    keys = world.create_topic("t", 4)
    await world.write([(key, plain_batch(1, b"x" * 5000)) for key in keys])
    served = set()

    for _ in range(60):
        result = await world.fetch(dict.fromkeys(keys, 0), max_bytes=100)
        served |= {key for key in keys if result.records(key)}

    assert served == set(keys)


async def test_a_response_keeps_its_limit_over_all_partitions(world: World) -> None:
    keys = world.create_topic("t", 6)
    await world.write([(key, plain_batch(1, bytes([65 + i]) * 1000)) for i, key in enumerate(keys)])

    result = await world.fetch(dict.fromkeys(keys, 0), max_bytes=3500)

    assert 2000 < result.size <= 3500


async def test_no_fragment_of_a_further_extent_is_read(world: World, key: int) -> None:
    """What is left of the limit behind the first extent is too little to be worth a read."""
    files = [await world.append(key, b"a" * 1000), await world.append(key, b"b" * 1000), await world.append(key, b"c")]
    first, *rest = expected(world.live[key], 0)

    result = await world.fetch({key: 0}, partition_max_bytes=len(first) + 100)
    assert split_sent(result.records(key)) == [first]
    assert [asked for asked, _ in world.store.gets] == [object_key(files[0])]

    result = await world.fetch({key: 1}, partition_max_bytes=len(first) + 100)
    assert split_sent(result.records(key)) == rest, "an extent that fits is read, however little is left"


async def test_batches_of_many_files_come_in_one_response(world: World, key: int) -> None:
    for number in range(20):
        await world.append(key, b"value %d" % number)

    result = await world.fetch({key: 3})

    assert split_sent(result.records(key)) == expected(world.live[key], 3)


@pytest.mark.parametrize("historical", [True, False])
async def test_going_on_in_the_middle_of_an_extent_does_not_read_its_start_again(
    world: World, key: int, historical: bool
) -> None:
    await world.write([(key, plain_batch(1, bytes([65 + i]) * 1000)) for i in range(20)])
    if historical:
        await world.append(key, b"the end")
    stranger = world.new_service()
    got: list[bytes] = []
    while len(got) < 20:
        result = await world.fetch({key: len(got)}, partition_max_bytes=3500, service=stranger)
        got += split_sent(result.records(key))

    assert got[:20] == expected(world.live[key], 0)[:20]
    ranges = [byte_range for _, byte_range in world.store.gets if byte_range is not None]
    starts = [byte_range.start for byte_range in ranges]
    assert starts == sorted(set(starts))
    assert sum(byte_range.length for byte_range in ranges) < 20 * 1100 * 1.3
    assert len(ranges) == (7 if historical else 1)


async def test_going_on_in_an_extent_that_compaction_moved_meanwhile(world: World, key: int) -> None:
    file_id = await world.write([(key, plain_batch(1, bytes([65 + i]) * 100)) for i in range(6)])
    first = split_sent((await world.fetch({key: 0}, partition_max_bytes=400)).records(key))
    (old,) = world.model.partitions[key].extents
    body = await world.store.get(object_key(file_id))
    moved = new_file_id(world.clock.wall_ms(), world.rng)
    await world.store.put(object_key(moved), bytes(30) + body)
    world.model.partitions[key].extents = [old._replace(source=moved, position=old.position + 30)]

    rest = await world.fetch({key: len(first)})

    assert 0 < len(first) < 6
    assert first + split_sent(rest.records(key)) == expected(world.live[key], 0)


@pytest.mark.requirement("W5")
async def test_an_agent_that_knows_nothing_serves_everything_from_the_metastore(world: World, key: int) -> None:
    for number in range(5):
        await world.append(key, b"value %d" % number, own=True)
    stranger = world.new_service()

    result = await world.fetch({key: 1}, service=stranger)

    assert split_sent(result.records(key)) == expected(world.live[key], 1)


async def test_tail_reads_of_own_files_ask_neither_metastore_nor_store(world: World, key: int) -> None:
    await world.fetch({key: 0})
    await world.append(key, b"a", own=True)
    await world.clock.advance(0.1)
    asked = world.metastore.asked["find_extents"]

    result = await world.fetch({key: 0})

    assert split_sent(result.records(key)) == expected(world.live[key], 0)
    assert world.metastore.asked["find_extents"] == asked
    assert world.store.gets == []


async def test_own_batches_are_sent_from_the_flushed_bytes_without_a_copy(world: World, key: int) -> None:
    file_id = await world.append(key, b"a" * 1000)
    data = await world.store.get(object_key(file_id))
    world.service.on_flushed(file_id, data)
    sent = []
    encode = Batches.add

    def spy(batches: Batches, *args: object, **options: object) -> object:
        end = encode(batches, *args, **options)  # type: ignore[arg-type]
        sent.extend(batches.buffers)
        return end

    Batches.add = spy  # type: ignore[method-assign, assignment]
    try:
        await world.fetch({key: 0})
    finally:
        Batches.add = encode  # type: ignore[method-assign]

    views = [buffer for buffer in sent if isinstance(buffer, memoryview)]
    assert views
    assert all(view.obj is data for view in views)


async def test_a_historical_read_leaves_the_cache_alone_and_a_tail_read_fills_it(world: World, key: int) -> None:
    for number in range(3):
        await world.append(key, b"value %d" % number)
    stranger = world.new_service()

    for _ in range(2):
        await world.fetch({key: 0}, service=stranger, partition_max_bytes=80)
    historical = len(world.store.gets)
    for _ in range(2):
        await world.fetch({key: 2}, service=stranger)

    assert historical == 2
    assert len(world.store.gets) == 3


@pytest.mark.requirement("W5")
async def test_a_response_reads_few_of_many_small_files_and_the_next_one_goes_on(world: World) -> None:
    """Else a client that times out before the answer would ask for the same files without end."""
    keys = world.create_topic("t", 3)
    for number in range(3 * 100):
        await world.append(keys[number % 3], b"value %d" % number)
    stranger = world.new_service()
    got: dict[int, list[bytes]] = {key: [] for key in keys}

    while any(len(got[key]) < 100 for key in keys):
        before = len(world.store.gets)
        result = await world.fetch({key: len(got[key]) for key in keys}, service=stranger)
        assert len(world.store.gets) - before <= FILES_MAX
        assert any(result.records(key) for key in keys)
        for key in keys:
            got[key] += split_sent(result.records(key))

    assert got == {key: expected(world.live[key], 0) for key in keys}


async def test_files_in_memory_are_as_many_as_a_response_has_room_for(world: World, key: int) -> None:
    for number in range(2 * FILES_MAX):
        await world.append(key, b"value %d" % number, own=True)
    before = len(world.store.gets)

    result = await world.fetch({key: 0})

    assert split_sent(result.records(key)) == expected(world.live[key], 0)
    assert len(world.store.gets) == before
