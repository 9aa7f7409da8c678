"""Reassignment as pure steps from image to records: at once, under way, replaced, cancelled, completed."""

from __future__ import annotations

import uuid

import pytest

from headrace.config.bounds import STORE_REPLICAS
from headrace.metastore.api.cluster import MetadataRecord
from headrace.metastore.log.image import Assignment, MetadataImage
from headrace.metastore.log.kip631_records import (
    FenceBrokerRecord,
    RemoveTopicRecord,
    UnfenceBrokerRecord,
    UnregisterBrokerRecord,
)
from headrace.metastore.log.reassignment import cancel_reassignment, completions, reassign, reassignments
from headrace.metastore.log.records import encode_record
from headrace.metastore.log.replay import apply
from headrace.metastore.log.snapshot import encode_snapshot, load_snapshot
from headrace.storage.errors import InvalidError, NotFoundError
from tests.metastore.log.log_histories import agent_record, topic_records

TOPIC = uuid.UUID(int=1)


def _after(image: MetadataImage, *records: MetadataRecord | None) -> MetadataImage:
    return apply(image, [encode_record(record) for record in records if record is not None])


@pytest.fixture
def image() -> MetadataImage:
    """Agents 1 to 5, of which 1 to 3 are live and preferred for partition 0 in this order."""
    agents = [agent_record(node_id, node_id) for node_id in range(1, 6)]
    live = [UnfenceBrokerRecord(broker_id=node_id, broker_epoch=node_id) for node_id in range(1, 4)]
    image = _after(MetadataImage(), *topic_records(TOPIC, "a", 2), *agents, *live)
    image = _after(image, reassign(image, TOPIC, 0, [1, 2, 3]))
    return _after(image, *completions(image))


def _now(image: MetadataImage, index: int = 0) -> Assignment:
    return image.topics_by_id[TOPIC].assignment(index)


@pytest.mark.requirement("C9")
def test_a_subset_is_complete_at_once(image: MetadataImage) -> None:
    image = _after(image, reassign(image, TOPIC, 0, [3, 1]))
    assert _now(image) == Assignment((3, 1))
    assert list(reassignments(image)) == []


@pytest.mark.requirement("C9")
def test_added_agents_are_waited_for_and_the_old_ones_lead_until_then(image: MetadataImage) -> None:
    """The seed's example: [1, 2, 3] to [3, 4, 5]."""
    image = _after(image, reassign(image, TOPIC, 0, [3, 4, 5]))
    assert _now(image) == Assignment((3, 4, 5, 1, 2), adding=(4, 5), removing=(1, 2))
    assert set(_now(image).preferred) == {1, 2, 3}
    assert [(topic.name, index) for topic, index, _ in reassignments(image)] == [("a", 0)]
    assert completions(image) == []

    image = _after(image, UnfenceBrokerRecord(broker_id=4, broker_epoch=4))
    assert completions(image) == [], "one of two is not enough"
    image = load_snapshot(encode_snapshot(_after(image, UnfenceBrokerRecord(broker_id=5, broker_epoch=5))))
    image = _after(image, *completions(image))
    assert _now(image) == Assignment((3, 4, 5)) == Assignment(_now(image).preferred)
    assert completions(image) == []


@pytest.mark.requirement("C9")
def test_cancelling_goes_back_and_another_target_starts_from_what_was_before(image: MetadataImage) -> None:
    under_way = _after(image, reassign(image, TOPIC, 0, [3, 4, 5]))
    cancelled = _after(under_way, cancel_reassignment(under_way, TOPIC, 0))
    assert set(_now(cancelled).replicas) == {1, 2, 3}
    assert not _now(cancelled).under_way
    assert cancel_reassignment(cancelled, TOPIC, 0) is None

    replaced = _after(under_way, reassign(under_way, TOPIC, 0, [5, 1]))
    assert _now(replaced) == Assignment((5, 1, 3, 2), adding=(5,), removing=(3, 2))


@pytest.mark.requirement("C9")
def test_it_ends_with_its_topic(image: MetadataImage) -> None:
    image = _after(image, reassign(image, TOPIC, 0, [4]), RemoveTopicRecord(topic_id=TOPIC))
    assert not list(reassignments(image))
    assert not completions(image)


def test_an_added_agent_that_is_fenced_or_leaves_is_waited_for(image: MetadataImage) -> None:
    image = _after(image, reassign(image, TOPIC, 1, [2]), FenceBrokerRecord(broker_id=2, broker_epoch=2))
    assert completions(image) == []
    image = _after(image, UnregisterBrokerRecord(broker_id=2, broker_epoch=2))
    assert completions(image) == []
    assert _after(image, cancel_reassignment(image, TOPIC, 1)).topics_by_id[TOPIC].assignments.keys() == {0}


@pytest.mark.parametrize(
    ("target", "named"), [([], "at least one"), ([1, 1], "distinct"), ([1, 9], r"not registered.*\[9\]")]
)
def test_bad_targets_are_refused(image: MetadataImage, target: list[int], named: str) -> None:
    with pytest.raises(InvalidError, match=named):
        reassign(image, TOPIC, 0, target)


def test_unknown_partitions_are_refused(image: MetadataImage) -> None:
    for topic_id, index in ((TOPIC, 2), (uuid.UUID(int=9), 0)):
        with pytest.raises(NotFoundError, match=f"partition={index}"):
            reassign(image, topic_id, index, [1])
        with pytest.raises(NotFoundError):
            cancel_reassignment(image, topic_id, index)


@pytest.mark.requirement("C9")
def test_replicas_of_the_store_that_clients_see_may_be_in_a_target(image: MetadataImage) -> None:
    """As when Terraform takes the replicas that it was shown and leaves out the last one."""
    store = STORE_REPLICAS[0]
    image = _after(image, reassign(image, TOPIC, 0, [2, store]))
    assert _now(image) == Assignment((2, store)), "no agent is waited for"
    image = _after(image, reassign(image, TOPIC, 0, [store, 4]))
    assert _now(image) == Assignment((store, 4, 2), adding=(4,), removing=(2,))
    with pytest.raises(InvalidError, match="at least one"):
        reassign(image, TOPIC, 0, [store])
