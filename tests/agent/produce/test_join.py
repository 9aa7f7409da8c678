"""Merging small batches at ingestion: the same records, times and headers, each request with its own offsets."""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.agent.produce.requests import Arrival, PendingRequest
from headrace.agent.produce.upload import MEMBERS_MIN, RECORDS_MAX, Laid, join
from headrace.protocol.produce_codec import ProducePartitionReply, ProduceRequest
from headrace.storage.errors import UnavailableError
from headrace.storage.records.check import check_batch
from headrace.storage.records.codec import Record, decode_records, encode_batch
from headrace.storage.records.compression import Codec
from headrace.storage.records.header import HEADER_BYTES, batch_crc, read_header
from tests.agent.produce.produce_faults import HeldStore
from tests.agent.produce.produce_world import ProduceWorld
from tests.seeds import examples
from tests.storage.batches import plain_batch

MAX_BYTES = 65_536
TOPIC = uuid.UUID(int=1)
TIMES = st.one_of(st.integers(-1, 2**41), st.sampled_from([-1, 0, 63, 64, 2**62]))
RECORDS = st.lists(
    st.tuples(
        TIMES,
        st.none() | st.binary(max_size=80),
        st.none() | st.binary(max_size=80),
        st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=5)), max_size=2),
    ),
    min_size=1,
    max_size=RECORDS_MAX + 2,
)
KINDS = st.sampled_from(["plain"] * 6 + ["idempotent", "gzip", "stamped"])
BATCHES = st.lists(st.tuples(KINDS, RECORDS), min_size=1, max_size=14)


Row = tuple[int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]
"""Timestamp, key, value, headers."""


def _encode(kind: str, rows: Sequence[Row]) -> bytes:
    records = [Record(offset, *row) for offset, row in enumerate(rows)]
    return encode_batch(
        records,
        base_offset=0,
        codec=Codec.GZIP if kind == "gzip" else Codec.NONE,
        log_append_time=kind == "stamped",
        **({"producer_id": 5, "producer_epoch": 0, "base_sequence": 0} if kind == "idempotent" else {}),
    )


async def _arrival(data: bytes, owner: int = -2) -> Arrival:
    request = PendingRequest(
        ProduceRequest(None, -1, 0, []), correlation_id=0, version=9, appended_at=0.0, deadline=0.0
    )
    view = memoryview(data)
    return Arrival(TOPIC, 0, 1, 0, owner, view, read_header(view), request, ProducePartitionReply(0))


@pytest.mark.requirement("W11")
@given(
    batches=BATCHES,
    max_bytes=st.sampled_from([0, 300, 1_000, MAX_BYTES]),
    accepted=st.lists(st.sampled_from([0, 100, 400, MAX_BYTES]), min_size=14, max_size=14),
)
@settings(max_examples=examples(60))
async def test_reading_back_gives_the_same_records_at_the_acknowledged_offsets(
    batches: list[tuple[str, list[Row]]],
    max_bytes: int,
    accepted: list[int],
) -> None:
    """`accepted`: of each batch, how many bytes more than its own its topic accepted when it came."""
    run = [await _arrival(_encode(*batch)) for batch in batches]
    run = [a._replace(max_bytes=a.header.size + more) for a, more in zip(run, accepted, strict=False)]
    laid = list(join(run, max_bytes))
    assert [arrival for batch in laid for _, arrival in batch.members] == run
    for batch in laid:
        _assert_sound(batch, max_bytes)
        assert batch.header.size <= min(arrival.max_bytes for _, arrival in batch.members)
        records = decode_records(batch.data)
        for before, arrival in batch.members:
            sent = decode_records(arrival.data)
            found = records[before : before + len(sent)]
            assert [r[2:] for r in found] == [r[2:] for r in sent]
            assert [r.offset for r in found] == [before + r.offset for r in sent]
            if not arrival.header.is_log_append_time:
                assert [r.timestamp for r in found] == [r.timestamp for r in sent]


def _assert_sound(batch: Laid, max_bytes: int) -> None:
    """Assert what Kafka asks of a batch, and that only what may be merged was."""
    header = batch.header
    assert read_header(batch.data) == header
    assert header.crc == batch_crc(batch.data)
    if len(batch.members) == 1:
        assert batch.data is batch.members[0][1].data
        return
    assert check_batch(batch.data, max_bytes=1 << 20) is not None or header.is_log_append_time
    assert header.producer_id == -1
    members = [arrival.header for _, arrival in batch.members]
    assert all(member.producer_id < 0 and member.attributes == header.attributes for member in members)
    assert sum(member.size for member in members) <= max_bytes
    assert header.max_timestamp == max(member.max_timestamp for member in members)
    assert header.last_offset_delta + 1 == header.record_count == sum(member.record_count for member in members)


@pytest.mark.requirement("W11")
async def test_small_batches_become_one_and_idempotent_ones_never() -> None:
    one: list[Row] = [(1, b"k", b"v", [])]
    plain = [await _arrival(_encode("plain", one)) for _ in range(MEMBERS_MIN)]
    idempotent = [await _arrival(_encode("idempotent", one)) for _ in range(MEMBERS_MIN)]
    assert [len(laid.members) for laid in join([*plain, *idempotent], MAX_BYTES)] == [MEMBERS_MIN] + [1] * MEMBERS_MIN
    assert [len(laid.members) for laid in join(plain[:-1], MAX_BYTES)] == [1] * (MEMBERS_MIN - 1)
    assert [len(laid.members) for laid in join(plain, 0)] == [1] * MEMBERS_MIN


@settings(max_examples=examples(60))
@given(
    junk=st.one_of(st.binary(min_size=7, max_size=60), st.just(b"\x80" * 40)),
    place=st.integers(0, MEMBERS_MIN),
)
async def test_records_that_do_not_parse_stay_as_they_came(junk: bytes, place: int) -> None:
    """The header and the checksum are the client's and right; what they cover is not what they say."""
    good = _encode("plain", [(1, b"k", b"v", [])])
    bad = bytearray(good[:HEADER_BYTES] + junk)
    bad[8:12] = (len(bad) - 12).to_bytes(4, "big")
    bad[17:21] = batch_crc(memoryview(bad)).to_bytes(4, "big")
    run = [await _arrival(good) for _ in range(MEMBERS_MIN)]
    run.insert(place, await _arrival(bytes(bad)))
    laid = list(join(run, MAX_BYTES))
    assert [arrival for batch in laid for _, arrival in batch.members] == run
    assert any(bytes(batch.data) == bytes(bad) for batch in laid) or _reads_as_one_record(bad)


def _reads_as_one_record(batch: bytearray) -> bool:
    return len(decode_records(memoryview(batch))) == 1


@pytest.mark.requirement("W11")
@pytest.mark.requirement("W11")
@pytest.mark.parametrize("where", ["topic", "cluster"])
async def test_no_joined_batch_is_larger_than_its_topic_accepts(where: str) -> None:
    world = ProduceWorld(ingest_merge_max_bytes=MAX_BYTES, **({} if where == "topic" else {"message_max_bytes": 300}))
    topic = world.create_topic("t", **({"max_message_bytes": "300"} if where == "topic" else {}))
    async with world:
        sent = [asyncio.create_task(world.produce(world.connect(), {"t": {0: plain_batch()}})) for _ in range(40)]
        await world.clock.advance(1.0)
        assert [a.base_offset for task in sent for a in (task.result() or {}).values()] == list(range(40))
        sizes = [len(batch.data) for batch in await world.log_of(topic.key(0))]
        assert len(plain_batch()) < max(sizes) <= 300


@pytest.mark.parametrize("stamp", ["CreateTime", "LogAppendTime"])
async def test_each_request_is_acknowledged_at_its_own_offset(stamp: str) -> None:
    async with ProduceWorld(ingest_merge_max_bytes=MAX_BYTES) as world:
        topic = world.create_topic("t", message_timestamp_type=stamp)
        sizes = [2, 1, 3, 1, 2, 5]
        sent = []
        for producer, count in enumerate(sizes):
            rows: list[Row] = [(1_000 + producer, b"%d" % n, b"value of %d" % producer, []) for n in range(count)]
            sent.append(asyncio.create_task(world.produce(world.connect(), {"t": {0: _encode("plain", rows)}})))
            await world.clock.advance(0.003)
        await world.clock.run(asyncio.wait(sent))
        answers = [task.result()["t", 0] for task in sent]  # type: ignore[index]
        assert [answer.error for answer in answers] == ["none"] * len(sizes)
        assert [answer.base_offset for answer in answers] == [0, 2, 3, 6, 7, 9]
        (stored,) = await world.log_of(topic.key(0) or 0)
        records = decode_records(memoryview(stored.data))
        assert [record.value for record in records] == [
            b"value of %d" % producer for producer, count in enumerate(sizes) for _ in range(count)
        ]
        if stamp == "LogAppendTime":
            assert {answer.log_append_time_ms for answer in answers} == {records[0].timestamp}
        else:
            assert [record.timestamp for record in records if record.key == b"0"] == list(range(1_000, 1_006))
        assert world.metric("batches_total") == len(sizes)


async def test_a_merged_batch_falls_whole_and_takes_along_what_follows_in_its_streams() -> None:
    """The first file of stream A fails: A's batch, merged with B's in the second file, and B's third go with it."""
    world = ProduceWorld(ingest_merge_max_bytes=MAX_BYTES, store_retries=0)
    world.store = HeldStore(world.bucket)
    async with world:
        topic = world.create_topic("t")
        a, b, c = world.connect(), world.connect(), world.connect()
        one = _encode("plain", [(1, None, b"x", [])])

        def send(connection: object) -> asyncio.Task[object]:
            return asyncio.create_task(world.produce(connection, {"t": {0: one}}))  # type: ignore[arg-type]

        first = [send(a)]
        await world.clock.advance(0.2)
        second = [send(a), send(b), send(b), send(b)]
        await world.clock.advance(0.2)
        third = [send(b), send(c)]
        await world.clock.advance(0.2)
        assert [len(put.body) > 0 for put in world.store.puts] == [True] * 3
        await world.store.puts[1].finish()
        await world.store.puts[2].finish()
        world.store.puts[0].fail(UnavailableError("gone"))
        await world.clock.run(asyncio.wait([*first, *second, *third]))
        errors = [task.result()["t", 0].error for task in (*first, *second, *third)]  # type: ignore[index]
        assert errors[-1] == "none"
        assert "none" not in errors[:-1]
        assert [(stored.base_offset, stored.data) for stored in await world.log_of(topic.key(0) or 0)] == [(0, one)]


@pytest.mark.requirement("W11")
async def test_order_within_each_connection_survives_any_mixture() -> None:
    rng = random.Random(11)
    async with ProduceWorld(ingest_merge_max_bytes=1_000) as world:
        topic = world.create_topic("t")
        connections = [world.connect() for _ in range(5)]
        counts = dict.fromkeys(range(5), 0)
        sent = []
        for _ in range(200):
            who = rng.randrange(5)
            value = b"%d/%d" % (who, counts[who])
            counts[who] += 1
            kind = rng.choice(["plain", "plain", "plain", "gzip"])
            batch = _encode(kind, [(1, None, value, [])] * rng.choice([1, 1, 2]))
            sent.append(asyncio.create_task(world.produce(connections[who], {"t": {0: batch}})))
            await world.clock.advance(0.002)
        await world.clock.run(asyncio.wait(sent))
        log = await world.log_of(topic.key(0) or 0)
        assert len(log) < 200
        by_offset = {
            stored.base_offset + record.offset: record.value
            for stored in log
            for record in decode_records(memoryview(stored.data))
        }
        for who in range(5):
            numbers = [int(v.split(b"/")[1]) for v in by_offset.values() if v and v.startswith(b"%d/" % who)]
            assert numbers == sorted(numbers)
