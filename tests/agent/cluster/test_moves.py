"""An image says when a leader may have moved, for clients of any zone, also if it moved back.

What an agent knows of its producers' batches depends on it (agent/produce/last_stored.py).
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.agent.cluster.routing import Routes
from headrace.metastore.api.agents import COMMIT_SHARDS, LEADER_SPREAD
from headrace.metastore.api.cluster import MetadataRecord
from headrace.metastore.log.image import MetadataImage
from headrace.metastore.log.kip631_records import (
    ConfigRecord,
    FeatureLevelRecord,
    FenceBrokerRecord,
    PartitionChangeRecord,
    UnfenceBrokerRecord,
    UnregisterBrokerRecord,
)
from headrace.metastore.log.own_records import (
    ControlledShutdownRecord,
    HideBrokerRecord,
    RemoveFeatureLevelRecord,
    ShowBrokerRecord,
)
from headrace.metastore.log.records import encode_record
from headrace.metastore.log.replay import apply
from headrace.metastore.log.snapshot import encode_snapshot, load_snapshot
from tests.metastore.log.log_histories import agent_record, partition_record, random_history, topic_records
from tests.seeds import examples

SHARDS = 4
TOPIC = uuid.UUID(int=1)


def moved_at(image: MetadataImage, topic_id: uuid.UUID = TOPIC) -> int:
    return max(image.moved_at, image.topics_by_id[topic_id].moved_at)


def leaders(image: MetadataImage) -> Iterator[tuple[tuple[uuid.UUID, int], tuple[int | None, ...]]]:
    """The leaders of each partition: for clients without a zone, and for those of each zone."""
    routes = Routes(image, image.commit_shards(SHARDS))
    zones = sorted({agent.rack or "" for agent in image.agents.values()})
    for topic in image.topics_by_id.values():
        for index in topic.indexes:
            found = [routes.leader(topic.key(index) or 0, zone) for zone in (None, *zones)]
            yield (topic.topic_id, index), tuple(agent and agent.node_id for agent in found)


@settings(max_examples=examples(25))
@given(st.integers(0, 2**32), st.integers(5, 60), st.integers(0, 100), st.booleans())
def test_each_move_shows_in_the_image_however_many_records_are_applied_at_once(
    seed: int, steps: int, percent: int, is_spread: bool
) -> None:
    log = random_history(seed, steps)
    if is_spread:
        level = FeatureLevelRecord(name=LEADER_SPREAD, min_feature_level=0, max_feature_level=10)
        log = [encode_record(level), *log]
    cut = len(log) * percent // 100
    first = image = apply(MetadataImage(), log[:cut])
    before, moved = dict(leaders(image)), set[tuple[uuid.UUID, int]]()
    for record in log[cut:]:
        image = apply(image, [record])
        now = dict(leaders(image))
        # another zone, or none any more, is a move of all leaders if it is one of any
        moved |= {place for place in now.keys() & before.keys() if now[place] != before[place]}
        before = now
    for end in (image, apply(first, log[cut:])):
        for topic_id, _ in moved:
            if topic_id in end.topics_by_id:
                assert moved_at(end, topic_id) > cut


def reassign(*node_ids: int) -> PartitionChangeRecord:
    return PartitionChangeRecord(partition_id=0, topic_id=TOPIC, replicas=node_ids)


def level(name: str, value: int) -> FeatureLevelRecord:
    return FeatureLevelRecord(name=name, min_feature_level=0, max_feature_level=value)


START = [*topic_records(TOPIC, "a", 2), agent_record(1, 1), UnfenceBrokerRecord(broker_id=1, broker_epoch=1)]


@pytest.mark.requirement("W7")
@pytest.mark.parametrize(
    "records",
    [
        [reassign(2), reassign()],
        [FenceBrokerRecord(broker_id=1, broker_epoch=1), UnfenceBrokerRecord(broker_id=1, broker_epoch=1)],
        [HideBrokerRecord(broker_id=1, broker_epoch=1), ShowBrokerRecord(broker_id=1, broker_epoch=1)],
        [ControlledShutdownRecord(broker_id=1, broker_epoch=1)],
        [agent_record(2, 9), UnregisterBrokerRecord(broker_id=2, broker_epoch=9)],
        [level(LEADER_SPREAD, 5), RemoveFeatureLevelRecord(name=LEADER_SPREAD)],
        [level(COMMIT_SHARDS, 8)],
        [partition_record(TOPIC, 2)],
    ],
)
def test_what_is_as_before_at_the_end_counts_as_a_move(records: Sequence[MetadataRecord]) -> None:
    before = apply(MetadataImage(), map(encode_record, START))
    assert moved_at(before) == before.offset
    after = apply(before, map(encode_record, records))
    assert moved_at(after) == after.offset


def test_other_changes_are_no_moves() -> None:
    before = apply(MetadataImage(), map(encode_record, START))
    other = uuid.UUID(int=2)
    config = ConfigRecord(resource_type=2, resource_name="a", name="retention.ms", value="1")
    records = [*topic_records(other, "b", 3), config, level("transaction.version", 2)]
    after = apply(before, map(encode_record, records))
    assert (moved_at(after), after.topics_by_id[other].moved_at) == (moved_at(before), 0)
    again = apply(after, [encode_record(reassign(1))])
    assert (moved_at(again), again.topics_by_id[other].moved_at) == (again.offset, 0)


def test_an_image_from_a_snapshot_may_lack_moves() -> None:
    image = apply(MetadataImage(), map(encode_record, [*START, *topic_records(uuid.UUID(int=2), "b", 1)]))
    assert moved_at(load_snapshot(encode_snapshot(image))) == image.offset
