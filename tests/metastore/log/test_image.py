"""The image is a pure fold of the log: cut anywhere, the same; contradictions are named."""

from __future__ import annotations

import uuid

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.metastore.api.cluster import MetadataRecord
from headrace.metastore.keys import partition_key
from headrace.metastore.log.image import MetadataImage
from headrace.metastore.log.kip631_records import (
    ConfigRecord,
    FeatureLevelRecord,
    FenceBrokerRecord,
    RemoveTopicRecord,
    UnfenceBrokerRecord,
    UnregisterBrokerRecord,
)
from headrace.metastore.log.own_records import ControlledShutdownRecord
from headrace.metastore.log.records import encode_record
from headrace.metastore.log.replay import apply
from headrace.storage.errors import CorruptError, UnsupportedFeatureError
from tests.metastore.log.log_histories import agent_record, partition_record, random_history, topic_records
from tests.seeds import examples


def _image(*records: MetadataRecord, base: MetadataImage | None = None) -> MetadataImage:
    return apply(base or MetadataImage(), [encode_record(record) for record in records])


@settings(max_examples=examples(200))
@given(st.integers(0, 2**32), st.integers(0, 40), st.lists(st.integers(0, 60), max_size=4))
def test_any_prefix_and_the_rest_give_the_same_as_all(seed: int, steps: int, cuts: list[int]) -> None:
    log = random_history(seed, steps)
    in_parts = MetadataImage()
    for start, end in zip([0, *sorted(cuts)], [*sorted(cuts), len(log)], strict=True):
        in_parts = apply(in_parts, log[start:end])
    whole = apply(MetadataImage(), log)
    assert in_parts == whole
    assert whole.offset == len(log)
    assert apply(whole, []) == whole


def test_an_image_is_not_changed_by_what_comes_after_it() -> None:
    first = _image(*topic_records(uuid.UUID(int=1), "a", 2), agent_record(1, 3))
    kept = (dict(first.topics_by_name), dict(first.agents), dict(first.configs))
    _image(RemoveTopicRecord(topic_id=uuid.UUID(int=1)), UnfenceBrokerRecord(broker_id=1, broker_epoch=3), base=first)
    assert (first.topics_by_name, first.agents, first.configs) == kept


def test_a_topic_is_numbered_by_its_records_offset() -> None:
    image = _image(*topic_records(uuid.UUID(int=1), "a", 2), *topic_records(uuid.UUID(int=2), "b", 1))
    b = image.topics_by_name["b"]
    assert b is image.topics_by_id[uuid.UUID(int=2)] is image.topics_by_number[3]
    assert (b.key(0), b.key(1), b.key(-1)) == (partition_key(3, 0), None, None)
    assert image.topics_by_name["a"].leader_epochs == (1, 2)


@pytest.mark.requirement("C8")
def test_an_agent_that_was_away_finds_a_deletion_by_comparing() -> None:
    before = _image(*topic_records(uuid.UUID(int=1), "a", 2), *topic_records(uuid.UUID(int=2), "b", 1))
    after = _image(RemoveTopicRecord(topic_id=uuid.UUID(int=1)), *topic_records(uuid.UUID(int=3), "a", 1), base=before)
    assert before.topics_by_id.keys() - after.topics_by_id.keys() == {uuid.UUID(int=1)}
    assert after.topics_by_name["a"].topic_id == uuid.UUID(int=3)
    assert after.topics_by_name["a"].topic_number not in before.topics_by_number


def test_configs_are_set_replaced_removed_and_go_with_their_topic() -> None:
    def config(name: str, value: str | None) -> ConfigRecord:
        return ConfigRecord(resource_type=2, resource_name="a", name=name, value=value)

    image = _image(*topic_records(uuid.UUID(int=1), "a", 1), config("x", "1"), config("y", "1"), config("x", "2"))
    assert image.topic_configs("a") == {"x": "2", "y": "1"}
    assert _image(config("x", None), base=image).topic_configs("a") == {"y": "1"}
    assert _image(config("x", None), config("y", None), base=image).configs == {}
    assert _image(RemoveTopicRecord(topic_id=uuid.UUID(int=1)), base=image).configs == {}


def test_clients_see_agents_while_they_are_unfenced() -> None:
    image = _image(agent_record(2, 0), agent_record(1, 1), UnfenceBrokerRecord(broker_id=2, broker_epoch=0))
    assert [agent.node_id for agent in image.live_agents()] == [2]
    again = _image(agent_record(2, 3, port=1), base=image)
    assert again.live_agents() == [], "a new incarnation starts fenced"
    assert (again.agents[2].port, again.agents[2].broker_epoch) == (1, 3)


@pytest.mark.parametrize(
    ("records", "named"),
    [
        ([partition_record(uuid.UUID(int=9), 0)], "unknown topic"),
        ([RemoveTopicRecord(topic_id=uuid.UUID(int=9))], "unknown topic"),
        (
            [*topic_records(uuid.UUID(int=1), "a", 1), partition_record(uuid.UUID(int=1), 2)],
            "out of turn: topic=a partition=2",
        ),
        ([*topic_records(uuid.UUID(int=1), "a", 1), *topic_records(uuid.UUID(int=1), "a", 1)], "topic exists"),
        ([FenceBrokerRecord(broker_id=1, broker_epoch=0)], "node_id=1"),
        ([agent_record(1, 0), UnfenceBrokerRecord(broker_id=1, broker_epoch=7)], "broker_epoch=7 offset=1"),
        ([agent_record(1, 0), UnregisterBrokerRecord(broker_id=2, broker_epoch=0)], "node_id=2"),
    ],
)
def test_a_record_that_contradicts_the_log_is_named(records: list[MetadataRecord], named: str) -> None:
    with pytest.raises(CorruptError, match=named):
        _image(*records)


def test_a_controlled_shutdown_takes_an_agent_out_of_routing_until_it_registers_again() -> None:
    live = _image(agent_record(1, 0), UnfenceBrokerRecord(broker_id=1, broker_epoch=0))
    leaving = _image(ControlledShutdownRecord(broker_id=1, broker_epoch=0), base=live)
    assert (leaving.agents[1].fenced, leaving.agents[1].leaving, leaving.live_agents()) == (False, True, [])
    back = _image(agent_record(1, 3), UnfenceBrokerRecord(broker_id=1, broker_epoch=3), base=leaving)
    assert [agent.node_id for agent in back.live_agents()] == [1]


def test_a_format_of_a_newer_software_is_named_and_refused() -> None:
    record = FeatureLevelRecord(name="metadata.format", min_feature_level=1, max_feature_level=99)
    with pytest.raises(UnsupportedFeatureError, match=r"level=99 known=1\.\.4"):
        _image(record)


def test_what_did_not_change_is_shared_with_the_image_before() -> None:
    before = _image(*topic_records(uuid.UUID(int=1), "a", 2), agent_record(1, 3))
    after = _image(UnfenceBrokerRecord(broker_id=1, broker_epoch=3), base=before)
    assert after.topics_by_name is before.topics_by_name
