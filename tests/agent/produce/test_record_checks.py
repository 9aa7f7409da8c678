"""Batches are checked to their last record, with a bounded part of the work on the event loop."""

from __future__ import annotations

import asyncio

import pytest

from headrace.agent.listener.client_turns import ClientTurns
from headrace.agent.produce.validate import LOOP_WORK, LoopWork
from headrace.storage.records.check import check_batch
from headrace.storage.records.check_records import RecordWork
from headrace.storage.records.codec import Record, encode_batch
from headrace.storage.records.compression import Codec, compress
from headrace.storage.records.header import HEADER_BYTES
from tests.agent.produce.produce_world import ProduceWorld
from tests.storage.batches import forge, plain_batch

pytestmark = pytest.mark.requirement("X7")
LARGE = 20_000_000


def _batch(count: int, codec: Codec = Codec.NONE, first: int = 0) -> bytes:
    records = [Record(index, 1_700_000_000_000, None, b"%d" % (first + index)) for index in range(count)]
    return encode_batch(records, codec=codec, base_offset=0)


def _false(count: int, claimed: int, codec: Codec) -> bytes:
    packed = compress(codec, plain_batch(count)[HEADER_BYTES:])
    data = plain_batch()[:HEADER_BYTES] + packed
    return forge(
        data, batch_length=49 + len(packed), attributes=int(codec), record_count=claimed, last_offset_delta=claimed - 1
    )


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
@pytest.mark.parametrize(("count", "claimed"), [(9, 10), (60, 61), (1_000, 999)])
async def test_a_false_record_count_is_refused_and_its_neighbour_goes_on(
    world: ProduceWorld, codec: Codec, count: int, claimed: int
) -> None:
    topic = world.create_topic("t", 2)
    batches = {"t": {0: _false(count, claimed, codec), 1: _batch(3)}}
    answers = await world.answers(batches)
    assert [answers["t", index].error for index in (0, 1)] == ["invalid_record", "none"]
    assert [len(await world.log_of(topic.key(index) or 0)) for index in (0, 1)] == [0, 1]


async def test_a_bomb_is_refused_on_another_thread(world: ProduceWorld) -> None:
    world.create_topic("t")
    packed = compress(Codec.ZSTD, bytes(100_000_000))
    data = plain_batch()[:HEADER_BYTES] + packed
    bomb = forge(data, batch_length=49 + len(packed), attributes=int(Codec.ZSTD))
    producing = asyncio.ensure_future(world.produce(world.connect(), {"t": {0: bomb}}))
    answers = await producing
    assert answers is not None
    assert answers["t", 0].error == "message_too_large"


async def test_requests_behind_a_large_one_keep_their_order(world: ProduceWorld) -> None:
    topic = world.create_topic("t", max_message_bytes=str(LARGE))
    connection = world.connect()
    large, small = _batch(LOOP_WORK.items + 1), _batch(1, first=1_000_000)
    requests = [
        asyncio.create_task(world.produce(connection, {"t": {0: data}})) for data in (large, small, large, small)
    ]
    while len(world.flushed) < 1 or not all(task.done() for task in requests):
        await asyncio.sleep(0.001)
        await world.clock.advance(0.2)
    assert [(await task or {})["t", 0].error for task in requests] == ["none"] * 4
    assert [stored.data for stored in await world.log_of(topic.key(0) or 0)] == [large, small, large, small]


def test_a_request_has_so_much_work_on_the_loop_and_no_more() -> None:
    """Counted in records and unpacked bytes, over all batches of the request."""
    work = LoopWork(RecordWork(unpacked_bytes=100_000, items=1_100))
    plain, packed = memoryview(_batch(300)), memoryview(_batch(300, Codec.ZSTD))
    headers = {id(batch): check_batch(batch, max_bytes=LARGE) for batch in (plain, packed)}
    assert [work.check(batch, headers[id(batch)]) for batch in (plain, packed, plain, plain)] == [
        True, True, True, False,
    ]  # fmt: skip
    assert work.left.items == 1_100 - 3 * 300 - 50 - len(packed) // 64
    bomb = compress(Codec.ZSTD, bytes(10_000_000))
    data = memoryview(
        forge(plain_batch()[:HEADER_BYTES] + bomb, batch_length=49 + len(bomb), attributes=int(Codec.ZSTD))
    )
    work = LoopWork(RecordWork(unpacked_bytes=100_000, items=10_000))
    assert not work.check(data, check_batch(data, max_bytes=LARGE))
    assert not work.check(packed, headers[id(packed)]), "what was unpacked in vain was the request's share"
    assert not work.check(plain, headers[id(plain)])


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY])
def test_what_is_slow_to_unpack_is_not_unpacked_on_the_loop(codec: Codec) -> None:
    """Members of gzip and blocks of snappy without content: most work per byte, and nothing unpacked."""
    member = compress(codec, b"") if codec is Codec.GZIP else bytes([0, 0, 0, 1, 0])
    packed = (b"" if codec is Codec.GZIP else b"\x82SNAPPY\0" + bytes(8)) + member * (50_000 // len(member))
    data = memoryview(
        forge(plain_batch()[:HEADER_BYTES] + packed, batch_length=49 + len(packed), attributes=int(codec))
    )
    assert not LoopWork().check(data, check_batch(data, max_bytes=LARGE))


def test_headers_of_records_are_work_on_the_loop() -> None:
    """One record with very many headers: no record count shows it."""
    record = Record(0, 0, None, b"v", [("", None)] * (LOOP_WORK.items + 1))
    data = memoryview(encode_batch([record], base_offset=0))
    assert not LoopWork().check(data, check_batch(data, max_bytes=LARGE))
    assert LoopWork(RecordWork(0, LOOP_WORK.items + 2)).check(data, check_batch(data, max_bytes=LARGE))


async def test_addresses_take_turns_for_the_thread_that_reads() -> None:
    turns, served = ClientTurns(), list[str]()

    async def read(client: str) -> None:
        async with turns.turn(client):
            served.append(client)
            await asyncio.sleep(0)

    tasks = [asyncio.create_task(read(client)) for client in "aaaaab"]
    await asyncio.sleep(0)
    tasks[3].cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert served == ["a", "a", "b", "a", "a"]
    await read("c")
    assert served[-1] == "c", "a reader that was cancelled left its turn to others"
