"""Topic configs and cluster-wide defaults reach the produce path with the image: sizes, times and who stamps them."""

from __future__ import annotations

import tracemalloc
from collections.abc import Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from headrace.storage.records.codec import MAX_OPENED_RECORDS, Record, encode_batch
from headrace.storage.records.compression import Codec
from tests.agent.produce.produce_world import ProduceWorld
from tests.manual_clock import ManualClock
from tests.storage.batches import crowded_batch, forge, plain_batch

NOW = ManualClock().wall_ms()
HOUR = 3_600_000
NO_TIME = -1 - NOW
"""Relative to now: the time of a record that has none."""


def batch(*ages: int, codec: Codec = Codec.NONE) -> bytes:
    """Records so many ms old; negative: from the future."""
    records = [Record(n, NOW - age, None, b"v") for n, age in enumerate(ages)]
    return encode_batch(records, base_offset=0, codec=codec)


def set_cluster_default(world: ProduceWorld, name: str, value: str) -> None:
    """Set what IncrementalAlterConfigs leaves for all brokers."""
    head = world.view.head
    world.view.head = replace(
        head, offset=head.offset + 1, configs=MappingProxyType({**head.configs, (4, ""): {name: value}})
    )
    world.view.image = world.view.head


async def errors(world: ProduceWorld, batches: Sequence[bytes], topic: str = "t") -> list[str]:
    """The error of each batch, produced to partition n of the topic in one request."""
    answers = await world.answers({topic: dict(enumerate(batches))})
    return [answers[topic, n].error for n in range(len(batches))]


async def test_records_from_the_future_are_refused_by_kafkas_default(world: ProduceWorld) -> None:
    topic = world.create_topic("t", 4)
    batches = [batch(0), batch(-HOUR), batch(5, -HOUR - 1), batch(10**12)]
    assert await errors(world, batches) == ["none", "none", "invalid_timestamp", "none"]
    assert await world.log_of(topic.key(2) or 0) == []


@pytest.mark.parametrize(
    ("configs", "late"), [({}, "none"), ({"message_timestamp_before_max_ms": "1000"}, "invalid_timestamp")]
)
async def test_what_a_header_claims_is_judged_and_records_only_where_they_are_opened(
    world: ProduceWorld, configs: dict[str, Any], late: str
) -> None:
    """Kafka opens every record: it refuses both. Here records are opened where a topic refuses old ones."""
    world.create_topic("t", 2, **configs)
    claims_more = forge(batch(0), max_timestamp=NOW + HOUR + 1)
    claims_less = forge(batch(0, -2 * HOUR), max_timestamp=NOW)
    assert await errors(world, [claims_more, claims_less]) == ["invalid_timestamp", late]


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
async def test_old_records_are_found_inside_a_batch(world: ProduceWorld, codec: Codec) -> None:
    world.create_topic("t", 4, message_timestamp_before_max_ms="1000")
    batches = [batch(0, 1_000, codec=codec), batch(0, 1_001, 0, codec=codec), batch(NO_TIME * -1), batch(0)]
    assert await errors(world, batches) == ["none", "invalid_timestamp", "none", "none"]


@pytest.mark.parametrize(
    "configs", [{"cleanup_policy": "compact"}, {"message_timestamp_before_max_ms": "1000"}], ids=str
)
async def test_what_is_too_large_to_be_judged_is_refused_at_no_cost(
    world: ProduceWorld, configs: dict[str, Any]
) -> None:
    """5,849 bytes, 9,000,000 records; and a million that are opened, one at a time."""
    world.create_topic("t", 3, **configs)
    sent = [bytes(crowded_batch(count)) for count in (MAX_OPENED_RECORDS + 1, 9_000_000, MAX_OPENED_RECORDS)]
    tracemalloc.start()
    try:
        answers = await errors(world, sent[:2])
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert answers == ["message_too_large", "message_too_large"]
    assert peak < 8_000_000, "a million opened records take hundreds of megabytes"
    assert await errors(world, sent[2:]) != ["message_too_large"]


async def test_a_batch_that_is_stamped_here_may_say_any_time(world: ProduceWorld) -> None:
    configs: dict[str, Any] = {"message_timestamp_before_max_ms": "0", "message_timestamp_after_max_ms": "0"}
    topic = world.create_topic("t", 2, message_timestamp_type="LogAppendTime", **configs)
    assert await errors(world, [batch(5 * HOUR), batch(-5 * HOUR)]) == ["none", "none"]
    assert len(await world.log_of(topic.key(0) or 0)) == 1


async def test_what_the_cluster_says_holds_where_the_topic_says_nothing() -> None:
    large = plain_batch(1, b"x" * 5_000)
    async with ProduceWorld(message_max_bytes=2_000) as world:
        world.create_topic("t")
        world.create_topic("own", max_message_bytes="1000000")
        assert await errors(world, [large]) == ["message_too_large"]
        assert await errors(world, [large], "own") == ["none"]
        set_cluster_default(world, "message.max.bytes", "6000")
        assert await errors(world, [large]) == ["none"]
        set_cluster_default(world, "log.message.timestamp.before.max.ms", "10")
        assert await errors(world, [batch(11)]) == ["invalid_timestamp"]
        set_cluster_default(world, "log.message.timestamp.type", "LogAppendTime")
        answers = await world.answers({"t": {0: batch(11)}})
        assert answers["t", 0].log_append_time_ms == world.clock.wall_ms() - 100, "as it was when the batch came"


ages = st.integers(-3_000, 3_000) | st.just(-NO_TIME)
bounds = st.sampled_from([0, 1, 500, 2_000, 2**63 - 1])


@hypothesis_settings(max_examples=60)
@given(st.lists(st.lists(ages, min_size=1, max_size=4), min_size=1, max_size=4), bounds, bounds, st.sampled_from(Codec))
async def test_a_batch_passes_if_each_record_with_a_time_does(
    batches: list[list[int]], before: int, after: int, codec: Codec
) -> None:
    configs: dict[str, Any] = {
        "message_timestamp_before_max_ms": str(before),
        "message_timestamp_after_max_ms": str(after),
    }
    async with ProduceWorld() as world:
        world.create_topic("t", len(batches), **configs)
        got = await errors(world, [batch(*records, codec=codec) for records in batches])
    passes = [all(age == -NO_TIME or -after <= age <= before for age in records) for records in batches]
    assert got == ["none" if passed else "invalid_timestamp" for passed in passes]
