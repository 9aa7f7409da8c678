"""What is refused, with which Kafka error, and that a refused batch leaves its neighbours alone."""

from __future__ import annotations

import asyncio
import uuid
from dataclasses import replace

import pytest

from headrace.agent.produce.validate import RECORD_ERRORS_MAX, RECORDS_MAX
from headrace.metastore.api.commit import BatchOutcome
from headrace.metastore.log.metadata_topic import METADATA_TOPIC, METADATA_TOPIC_ID
from headrace.protocol.request import CloseConnection, Promise
from headrace.storage.errors import InvalidError, UnavailableError
from headrace.storage.records.codec import Record, decode_records, encode_batch
from headrace.storage.records.compression import Codec
from headrace.storage.records.header import TRANSACTIONAL_BIT, read_header
from tests.agent.produce.produce_world import Answer, ProduceWorld
from tests.storage.batches import forge, plain_batch

GOOD = plain_batch(2)


def _compressed(codec: Codec) -> bytes:
    return encode_batch([Record(0, 1_700_000_000_000, b"k", b"v" * 100)], base_offset=0, codec=codec)


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"", "invalid_record"),
        (GOOD + GOOD, "invalid_record"),
        (GOOD[:-1], "corrupt_message"),
        (GOOD[:40], "corrupt_message"),
        (forge(GOOD, crc=1), "corrupt_message"),
        (forge(GOOD, record_count=10**9, last_offset_delta=10**9 - 1), "invalid_record"),
        (forge(GOOD, last_offset_delta=5), "invalid_record"),
        (forge(GOOD, attributes=0x20), "invalid_record"),
        (forge(GOOD, producer_id=5, producer_epoch=0, base_sequence=-1), "invalid_record"),
        (forge(GOOD, attributes=0x08), "invalid_timestamp"),
        (forge(GOOD, attributes=0x07), "unsupported_compression_type"),
        (forge(GOOD, magic=1), "unsupported_for_message_format"),
        (
            forge(GOOD, attributes=TRANSACTIONAL_BIT, producer_id=5, producer_epoch=0, base_sequence=0),
            "invalid_txn_state",
        ),
        (plain_batch(1, b"x" * 5000), "message_too_large"),
    ],
)
async def test_a_bad_batch_gets_its_own_error_and_its_neighbours_go_on(
    world: ProduceWorld, data: bytes, error: str
) -> None:
    topic = world.create_topic("t", 3, max_message_bytes="4096")
    answers = await world.answers({"t": {0: GOOD, 1: data, 2: GOOD}})
    assert answers["t", 1].error == error
    assert answers["t", 1].base_offset == -1
    assert answers["t", 1].message
    assert [answers["t", index].error for index in (0, 2)] == ["none", "none"]
    assert [len(await world.log_of(topic.key(index) or 0)) for index in range(3)] == [1, 0, 1]
    assert world.metric("refused_total", error=error) == 1


async def test_more_records_than_the_metastore_takes_are_refused_here() -> None:
    room = plain_batch(9, b"x" * 8000)  # unpacked by zstd, it could hold that many
    count = RECORDS_MAX + 1
    async with ProduceWorld() as world:
        world.create_topic("t")
        data = forge(room, attributes=Codec.ZSTD, record_count=count, last_offset_delta=count - 1)
        answers = await world.produce(world.connect(), {"t": {0: data}})
        assert answers is not None
        assert answers["t", 0].error == "invalid_record"
        assert "too many records" in (answers["t", 0].message or "")


async def test_a_request_without_a_single_good_batch_is_answered_at_once(world: ProduceWorld) -> None:
    world.create_topic("t")
    answers = await world.produce(world.connect(), {"t": {0: b"junk"}})
    assert answers is not None
    assert answers["t", 0].error == "corrupt_message"
    assert await world.produce(world.connect(), {}) == {}


@pytest.mark.parametrize("version", [12, 13])
async def test_the_metadata_topic_can_be_read_only(world: ProduceWorld, version: int) -> None:
    topic = METADATA_TOPIC_ID if version == 13 else METADATA_TOPIC
    answers = await world.answers({topic: {0: GOOD}}, version=version)
    assert answers[topic, 0].error == "invalid_topic_exception"
    assert answers[topic, 0].message == "the topic can be read only"


async def test_topics_that_only_kafka_has_take_no_records(world: ProduceWorld) -> None:
    answers = await world.answers({"__consumer_offsets": {0: GOOD}})
    assert answers["__consumer_offsets", 0].error == "invalid_topic_exception"


@pytest.mark.parametrize(("version", "error"), [(12, "unknown_topic_or_partition"), (13, "unknown_topic_id")])
async def test_unknown_topics_are_refused_after_catching_up(world: ProduceWorld, version: int, error: str) -> None:
    known = world.create_topic("known")
    missing = uuid.UUID(int=99) if version == 13 else "missing"
    present = known.topic_id if version == 13 else "known"
    answers = await world.clock.run(
        world.produce(world.connect(), {missing: {0: GOOD}, present: {0: GOOD, 1: GOOD}}, version=version)
    )
    assert answers is not None
    assert {answers[missing, 0].error, answers[present, 1].error} == {error}
    assert answers[present, 0].error == "none"
    assert world.view.catch_ups == 1


@pytest.mark.parametrize("by_id", [False, True])
async def test_a_topic_that_the_agent_has_not_heard_of_is_found_at_the_logs_head(
    world: ProduceWorld, by_id: bool
) -> None:
    topic = world.create_topic("new", known=False)
    name = topic.topic_id if by_id else "new"
    answers = await world.answers({name: {0: GOOD}}, version=13 if by_id else 9)
    assert answers == {(name, 0): Answer("none", 0, -1, 0, None)}
    await world.answers({name: {0: GOOD}}, version=13 if by_id else 9)
    assert world.view.catch_ups == 1


async def test_a_topic_is_not_called_unknown_while_the_log_is_out_of_reach(world: ProduceWorld) -> None:
    world.create_topic("known")
    world.view.unreachable = UnavailableError("down")
    answers = await world.answers({"missing": {0: GOOD}, "known": {0: GOOD}})
    assert answers["missing", 0].error == "leader_not_available"
    assert answers["known", 0].error == "none"


async def test_catching_up_does_not_let_a_later_request_overtake(world: ProduceWorld) -> None:
    topic = world.create_topic("known")
    reached = asyncio.Event()
    world.view.before_catch_up = reached.wait
    connection = world.connect()
    batches = [plain_batch(1, b"%d" % n) for n in range(3)]
    requests = [
        asyncio.create_task(world.produce(connection, {"known": {0: batches[0]}, "missing": {0: GOOD}})),
        asyncio.create_task(world.produce(connection, {"known": {0: batches[1]}})),
        asyncio.create_task(world.produce(connection, {"known": {0: batches[2]}})),
    ]
    await world.clock.settle()
    reached.set()
    await world.clock.run(asyncio.wait(requests))
    assert [stored.data for stored in await world.log_of(topic.key(0) or 0)] == batches


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"acks": 2}, "invalid_required_acks"),
        ({"acks": -2}, "invalid_required_acks"),
        ({"transactional_id": "tx"}, "invalid_txn_state"),
    ],
)
async def test_a_request_that_cannot_be_served_is_refused_whole(
    world: ProduceWorld, fields: dict[str, object], error: str
) -> None:
    world.create_topic("t", 2)
    answers = await world.produce(world.connect(), {"t": {0: GOOD, 1: GOOD}}, **fields)  # type: ignore[arg-type]
    assert answers is not None
    assert {answer.error for answer in answers.values()} == {error}
    assert world.metric("refused_total", error=error) == 2


async def test_a_frame_that_does_not_decode_is_an_invalid_request(world: ProduceWorld) -> None:
    with pytest.raises(InvalidError, match="malformed"):
        await world.pipeline.handle(world.request(world.connect(), b"junk"))


async def test_zstd_needs_the_version_that_brought_it(world: ProduceWorld) -> None:
    world.create_topic("t")
    data = _compressed(Codec.ZSTD)
    old = await world.answers({"t": {0: data}}, version=6)
    new = await world.answers({"t": {0: data}}, version=7)
    assert (old["t", 0].error, new["t", 0].error) == ("unsupported_compression_type", "none")


async def test_log_append_time_is_stamped_and_answered(world: ProduceWorld) -> None:
    topic = world.create_topic("t", message_timestamp_type="LogAppendTime")
    sent = _compressed(Codec.LZ4)
    now = world.clock.wall_ms()
    answers = await world.answers({"t": {0: sent}})
    assert answers == {("t", 0): Answer("none", 0, now, 0, None)}
    (stored,) = await world.log_of(topic.key(0) or 0)
    header = read_header(stored.data)
    assert (header.is_log_append_time, header.max_timestamp) == (True, now)
    assert decode_records(memoryview(stored.data))[0].value == b"v" * 100
    assert not read_header(sent).is_log_append_time


async def test_compacted_topics_refuse_records_without_a_key(world: ProduceWorld) -> None:
    world.create_topic("t", 2, cleanup_policy="compact,delete")
    answers = await world.clock.run(
        world.produce(world.connect(), {"t": {0: _compressed(Codec.GZIP), 1: plain_batch(3)}})
    )
    assert answers is not None
    assert answers["t", 0].error == "none"
    assert answers["t", 1].error == "invalid_record"
    assert "without a key" in (answers["t", 1].message or "")


@pytest.mark.parametrize("version", [7, 8, 9, 13])
async def test_each_record_without_a_key_is_named(version: int) -> None:
    """From version 8 on, as KIP-467 has it."""
    records = [Record(at, 1_700_000_000_000, b"k" if at in (0, 2) else None, b"v") for at in range(4)]
    async with ProduceWorld() as world:
        topic = world.create_topic("t", cleanup_policy="compact")
        named = topic.topic_id if version >= 13 else "t"
        batch = encode_batch(records, base_offset=0)
        answers = await world.answers({named: {0: batch}}, version=version)
    answer = answers[named, 0]
    assert (answer.error, answer.base_offset) == ("invalid_record", -1)
    if version == 7:
        assert (answer.message, answer.record_errors) == (None, ())
    else:
        assert answer.message == "compacted topics take no record without a key: records=2 first=1"
        assert answer.record_errors == tuple((at, "compacted topics take no record without a key") for at in (1, 3))


async def test_a_wrong_time_decides_over_a_missing_key_and_both_are_named() -> None:
    async with ProduceWorld() as world:
        world.create_topic("t", cleanup_policy="compact", message_timestamp_before_max_ms="1000")
        now = world.clock.wall_ms()
        records = [Record(0, now, None, b"v"), Record(1, now, b"k", b"v"), Record(2, now - 2_000, b"k", b"v")]
        batch = encode_batch(records, base_offset=0)
        answers = await world.answers({"t": {0: batch}})
    answer = answers["t", 0]
    assert answer.error == "invalid_timestamp"
    assert [index for index, _ in answer.record_errors] == [0, 2]
    assert f"timestamp={now - 2_000} " in (answer.record_errors[1][1] or "")
    assert answer.message == answer.record_errors[1][1]


async def test_a_batch_with_many_wrong_records_has_a_bounded_answer() -> None:
    async with ProduceWorld() as world:
        world.create_topic("t", cleanup_policy="compact")
        batch = plain_batch(RECORD_ERRORS_MAX + 1)
        answers = await world.answers({"t": {0: batch}})
    assert len(answers["t", 0].record_errors) == RECORD_ERRORS_MAX
    assert f"records={RECORD_ERRORS_MAX + 1} first=0" in (answers["t", 0].message or "")


async def test_configs_of_a_newer_image_take_effect(world: ProduceWorld) -> None:
    topic = world.create_topic("t", max_message_bytes="200")
    data = plain_batch(1, b"x" * 300)
    refused = await world.produce(world.connect(), {"t": {0: data}})
    world.put_topic(topic, {})
    world.view.image = world.view.head
    accepted = await world.answers({"t": {0: data}})
    assert refused is not None
    assert (refused["t", 0].error, accepted["t", 0].error) == ("message_too_large", "none")


@pytest.mark.requirement("W7")
async def test_a_retried_batch_is_answered_with_the_original_offset(world: ProduceWorld) -> None:
    topic = world.create_topic("t")
    connection = world.connect()
    batch = plain_batch(3, producer_id=5, producer_epoch=0, base_sequence=0)
    first = await world.clock.run(world.produce(connection, {"t": {0: batch}}))
    await world.clock.run(world.produce(connection, {"t": {0: GOOD}}))
    again = await world.answers({"t": {0: batch}})
    assert first == again == {("t", 0): Answer("none", 0, -1, 0, None)}
    assert len(await world.log_of(topic.key(0) or 0)) == 2
    assert world.metric("duplicates_total") == 1
    assert world.metric("batches_total") == 2


async def test_refusals_of_the_commit_have_kafkas_codes(world: ProduceWorld) -> None:
    topic = world.create_topic("t", 3)
    key = topic.key(1) or 0
    world.model.set_leader_epoch(key, 4)
    del world.model.partitions[topic.key(2) or 0]
    first, sequence_gap = (plain_batch(1, producer_id=5, producer_epoch=0, base_sequence=each) for each in (0, 7))
    client = world.connect(producer_id=5)
    await world.clock.run(world.produce(client, {"t": {0: first}}))
    by_name = await world.clock.run(world.produce(client, {"t": {0: sequence_gap, 1: GOOD, 2: GOOD}}))
    by_id = await world.answers({topic.topic_id: {2: GOOD}}, version=13)
    assert by_name is not None
    assert [by_name["t", index].error for index in range(3)] == [
        "out_of_order_sequence_number",
        "not_leader_or_follower",
        "unknown_topic_or_partition",
    ]
    assert by_id[topic.topic_id, 2].error == "unknown_topic_id"
    assert BatchOutcome.OUT_OF_ORDER.name.lower() in (by_name["t", 0].message or "")


@pytest.mark.requirement("W7")
async def test_a_retry_that_many_batches_overtook_is_answered_as_a_duplicate_without_an_offset(
    world: ProduceWorld,
) -> None:
    world.create_topic("t")
    connection = world.connect()
    batches = [plain_batch(1, producer_id=5, producer_epoch=0, base_sequence=number) for number in range(7)]
    for batch in batches:
        await world.clock.run(world.produce(connection, {"t": {0: batch}}))
    again = await world.answers({"t": {0: batches[0]}})
    answer = again["t", 0]
    assert (answer.error, answer.base_offset) == ("duplicate_sequence_number", -1)
    assert len(await world.log_of(world.view.image.topics_by_name["t"].key(0) or 0)) == 7


async def test_acks_0_is_stored_without_a_response_and_an_error_closes_the_connection(world: ProduceWorld) -> None:
    topic = world.create_topic("t")
    assert await world.clock.run(world.produce(world.connect(), {"t": {0: GOOD}}, acks=0)) is None
    assert len(await world.log_of(topic.key(0) or 0)) == 1
    with pytest.raises(CloseConnection):
        await world.clock.run(world.produce(world.connect(), {"t": {0: b"junk"}}, acks=0))


async def test_acks_1_is_answered_as_acks_all(world: ProduceWorld) -> None:
    world.create_topic("t")
    answers = await world.answers({"t": {0: GOOD}}, acks=1)
    assert answers == {("t", 0): Answer("none", 0, -1, 0, None)}


async def test_the_log_start_is_in_the_response(world: ProduceWorld) -> None:
    topic = world.create_topic("t")
    await world.answers({"t": {0: GOOD}})
    world.model.move_log_start(topic.key(0) or 0, 1)
    answers = await world.answers({"t": {0: GOOD}})
    assert answers == {("t", 0): Answer("none", 2, -1, 1, None)}


async def test_the_leader_epoch_is_that_of_the_first_batch_of_the_file(world: ProduceWorld) -> None:
    topic = world.create_topic("t")
    key = topic.key(0) or 0
    connection = world.connect()
    first = asyncio.create_task(world.produce(connection, {"t": {0: GOOD}}))
    await world.clock.settle()
    world.put_topic(replace(topic, leader_epochs=(1,)))
    world.view.image = world.view.head
    world.model.set_leader_epoch(key, 1)
    second = asyncio.create_task(world.produce(connection, {"t": {0: GOOD}}))
    await world.clock.run(asyncio.wait([first, second]))
    answers = [first.result(), second.result()]
    assert [answer and answer["t", 0].error for answer in answers] == ["not_leader_or_follower"] * 2
    assert await world.log_of(key) == []


async def test_what_can_be_judged_at_once_is_in_the_buffer_before_the_next_frame_is_read(world: ProduceWorld) -> None:
    topic = world.create_topic("t")
    connection = world.connect()
    batches = [plain_batch(1, b"%d" % n) for n in range(3)]
    promises = [world.begin(connection, {"t": {0: batch}}) for batch in batches]
    assert all(isinstance(promise, Promise) for promise in promises)
    await world.clock.advance(1.0)
    assert [stored.data for stored in await world.log_of(topic.key(0) or 0)] == batches
    assert all(promise.is_answered for promise in promises if isinstance(promise, Promise))


async def test_a_request_behind_one_that_waits_waits_too_but_only_on_its_connection(world: ProduceWorld) -> None:
    world.create_topic("known")
    reached = asyncio.Event()
    world.view.before_catch_up = reached.wait
    connection = world.connect()
    waiting = [asyncio.ensure_future(world.begin(connection, {name: {0: GOOD}})) for name in ("missing", "known")]
    assert isinstance(world.begin(world.connect(), {"known": {0: GOOD}}), Promise)
    await world.clock.settle()
    assert connection.produce_queue == 2
    reached.set()
    await world.clock.run(asyncio.wait(waiting))
    assert connection.produce_queue == 0
    assert isinstance(world.begin(connection, {"known": {0: GOOD}}), Promise)


async def test_a_request_that_is_cancelled_in_the_queue_leaves_it(world: ProduceWorld) -> None:
    world.create_topic("known")
    world.view.before_catch_up = asyncio.Event().wait
    connection = world.connect()
    waiting = asyncio.ensure_future(world.begin(connection, {"missing": {0: GOOD}}))
    await world.clock.settle()
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert connection.produce_queue == 0
    assert isinstance(world.begin(connection, {"known": {0: GOOD}}), Promise)
