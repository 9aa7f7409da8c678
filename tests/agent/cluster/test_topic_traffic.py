"""Bytes and records per topic: counted where they are committed and sent, for a bounded number of topics."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry

from headrace.agent.cluster.topic_traffic import OTHER_TOPICS, TopicTraffic
from headrace.metastore.keys import partition_key
from tests.agent.fetch.fetch_world import World
from tests.agent.produce.produce_world import ProduceWorld
from tests.storage.batches import plain_batch


class Counted:
    """Topics by number, and what /metrics shows of them."""

    def __init__(self, topics_max: int, names: dict[int, str]) -> None:
        self.names = names
        self.registry = CollectorRegistry()
        self.traffic = TopicTraffic(topics_max, self.names.get, self.registry)

    def shown(self, name: str) -> dict[str, float]:
        """Return what is shown, by topic."""
        families = {family.name: family for family in self.registry.collect()}
        return {sample.labels["topic"]: sample.value for sample in families[f"headrace_topic_{name}"].samples}


def test_topics_beyond_the_maximum_are_one_sum() -> None:
    counted = Counted(2, {1: "a", 2: "b", 3: "c", 4: "d"})
    for number in (1, 2, 3, 4, 1, 3):
        counted.traffic.received(partition_key(number, 7), 100, 5)
    counted.traffic.sent(partition_key(4, 0), 30, 1)
    assert counted.shown("received_bytes") == {"a": 200, "b": 100, OTHER_TOPICS: 300}
    assert counted.shown("received_records") == {"a": 10, "b": 5, OTHER_TOPICS: 15}
    assert counted.shown("sent_bytes") == {"a": 0, "b": 0, OTHER_TOPICS: 30}


def test_a_deleted_topic_makes_room_and_no_counter_falls() -> None:
    counted = Counted(1, {1: "a", 2: "b"})
    counted.traffic.received(partition_key(1, 0), 10, 1)
    counted.traffic.received(partition_key(2, 0), 20, 1)
    del counted.names[1]
    counted.names[3] = "c"
    counted.traffic.received(partition_key(3, 0), 40, 1)
    counted.traffic.received(partition_key(2, 0), 20, 1)
    assert counted.shown("received_bytes") == {"c": 40, OTHER_TOPICS: 40}, "b stays where it was counted"
    counted.traffic.received(partition_key(1, 0), 5, 1)
    assert counted.shown("received_bytes")[OTHER_TOPICS] == 45, "a topic that is gone has no label"


def test_zero_switches_it_off() -> None:
    counted = Counted(0, {1: "a"})
    counted.traffic.received(partition_key(1, 0), 10, 1)
    assert list(counted.registry.collect()) == []


@pytest.mark.parametrize("merge_max_bytes", [0, 1 << 20])
async def test_produce_counts_what_was_appended_and_not_what_was_refused(merge_max_bytes: int) -> None:
    counted: list[tuple[int, int, int]] = []
    world = ProduceWorld(ingest_merge_max_bytes=merge_max_bytes)
    world.count_received = lambda *item: counted.append(item)
    async with world:
        key = world.create_topic("t", 2).key(1) or 0
        batches = [plain_batch(3), plain_batch(4), plain_batch(2, producer_id=9, producer_epoch=0, base_sequence=5)]
        for batch in batches:
            await world.answers({"t": {1: batch}})
        stored = await world.log_of(key)
    assert {item[0] for item in counted} == {key}
    assert sum(size for _, size, _ in counted) == sum(len(batch.data) for batch in stored)
    assert sum(records for _, _, records in counted) == 7, "the batch out of sequence is not counted"


async def test_fetch_counts_what_it_sends() -> None:
    world = World()
    await world.service.start()
    a, b = world.create_topic("t", 2)
    await world.write([(a, plain_batch(3)), (a, plain_batch(2)), (b, plain_batch(1))])
    sent = await world.fetch({a: 0, b: 0})
    assert sorted(world.sent_counts) == sorted([(a, len(sent.records(a)), 5), (b, len(sent.records(b)), 1)]), (
        "a partition is counted once per answer"
    )
    await world.service.close()
