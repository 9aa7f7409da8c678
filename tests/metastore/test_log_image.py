"""The image is a pure fold of the log: cut anywhere, the same; contradictions are named."""

from __future__ import annotations

import random
import uuid

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metastore.keys import partition_key
from metastore.log.image import MetadataImage, apply
from metastore.log.records import (
    BrokerEndpoint,
    ConfigRecord,
    FeatureLevelRecord,
    FenceBrokerRecord,
    MetadataRecord,
    PartitionRecord,
    RegisterBrokerRecord,
    RemoveTopicRecord,
    TopicRecord,
    UnfenceBrokerRecord,
    UnregisterBrokerRecord,
    encode_record,
)
from storage.errors import CorruptError


def _topic(topic_id: uuid.UUID, name: str, count: int) -> list[MetadataRecord]:
    own = TopicRecord(
        topic_name=name, topic_id=topic_id, initial_partition_count=count, undeleted_partition_count=count
    )
    return [own, *(_partition(topic_id, index) for index in range(count))]


def _partition(topic_id: uuid.UUID, index: int) -> PartitionRecord:
    return PartitionRecord(
        partition_id=index,
        topic_id=topic_id,
        replicas=(),
        isr=(),
        removing_replicas=(),
        adding_replicas=(),
        leader=-1,
        leader_epoch=index + 1,
    )


def _agent(node_id: int, epoch: int, port: int = 9092) -> RegisterBrokerRecord:
    return RegisterBrokerRecord(
        broker_id=node_id,
        incarnation_id=uuid.UUID(int=epoch),
        broker_epoch=epoch,
        end_points=(BrokerEndpoint(name="PLAINTEXT", host="h", port=port, security_protocol=0),),
        features=(),
        rack="r",
    )


def _image(*records: MetadataRecord, base: MetadataImage | None = None) -> MetadataImage:
    return apply(base or MetadataImage(), [encode_record(record) for record in records])


def _random_log(rng: random.Random) -> list[bytes]:
    """A log that a cluster could have written."""
    log: list[MetadataRecord] = []
    topics: dict[uuid.UUID, str] = {}
    agents: dict[int, int] = {}
    for number in range(rng.randint(1, 25)):
        match rng.randint(0, 7):
            case 0 | 1:
                topic_id = uuid.UUID(int=rng.getrandbits(128))
                topics[topic_id] = f"t{number}"
                log += _topic(topic_id, f"t{number}", rng.randint(1, 5))
            case 2 if topics:
                gone = rng.choice(sorted(topics))
                del topics[gone]
                log.append(RemoveTopicRecord(topic_id=gone))
            case 3:
                name = rng.choice(sorted(topics.values()) or ["t"])
                value = rng.choice((None, "1", "2"))
                log.append(ConfigRecord(resource_type=2, resource_name=name, name=rng.choice("xy"), value=value))
            case 4:
                node_id = rng.randint(0, 3)
                agents[node_id] = len(log)
                log.append(_agent(node_id, len(log)))
            case 5 if agents:
                node_id = rng.choice(sorted(agents))
                kind = rng.choice((FenceBrokerRecord, UnfenceBrokerRecord))
                log.append(kind(broker_id=node_id, broker_epoch=agents[node_id]))
            case 6 if agents:
                node_id, epoch = agents.popitem()
                log.append(UnregisterBrokerRecord(broker_id=node_id, broker_epoch=epoch))
            case _:
                log.append(FeatureLevelRecord(name="metadata.format", min_feature_level=1, max_feature_level=number))
    return [encode_record(record) for record in log]


@settings(max_examples=200)
@given(st.integers(0, 2**32), st.lists(st.integers(0, 60), max_size=4))
def test_any_prefix_and_the_rest_give_the_same_as_all(seed: int, cuts: list[int]) -> None:
    log = _random_log(random.Random(seed))
    in_parts = MetadataImage()
    for start, end in zip([0, *sorted(cuts)], [*sorted(cuts), len(log)], strict=True):
        in_parts = apply(in_parts, log[start:end])
    whole = apply(MetadataImage(), log)
    assert in_parts == whole
    assert whole.offset == len(log)
    assert apply(whole, []) == whole


def test_an_image_is_not_changed_by_what_comes_after_it() -> None:
    first = _image(*_topic(uuid.UUID(int=1), "a", 2), _agent(1, 3))
    kept = (dict(first.topics_by_name), dict(first.agents), dict(first.configs))
    _image(RemoveTopicRecord(topic_id=uuid.UUID(int=1)), UnfenceBrokerRecord(broker_id=1, broker_epoch=3), base=first)
    assert (first.topics_by_name, first.agents, first.configs) == kept


def test_a_topic_is_numbered_by_its_records_offset() -> None:
    image = _image(*_topic(uuid.UUID(int=1), "a", 2), *_topic(uuid.UUID(int=2), "b", 1))
    b = image.topics_by_name["b"]
    assert b is image.topics_by_id[uuid.UUID(int=2)] is image.topics_by_number[3]
    assert (b.key(0), b.key(1), b.key(-1)) == (partition_key(3, 0), None, None)
    assert image.topics_by_name["a"].leader_epochs == (1, 2)


@pytest.mark.requirement("C8")
def test_an_agent_that_was_away_finds_a_deletion_by_comparing() -> None:
    before = _image(*_topic(uuid.UUID(int=1), "a", 2), *_topic(uuid.UUID(int=2), "b", 1))
    after = _image(RemoveTopicRecord(topic_id=uuid.UUID(int=1)), *_topic(uuid.UUID(int=3), "a", 1), base=before)
    assert before.topics_by_id.keys() - after.topics_by_id.keys() == {uuid.UUID(int=1)}
    assert after.topics_by_name["a"].topic_id == uuid.UUID(int=3)
    assert after.topics_by_name["a"].topic_number not in before.topics_by_number


def test_configs_are_set_replaced_removed_and_go_with_their_topic() -> None:
    def config(name: str, value: str | None) -> ConfigRecord:
        return ConfigRecord(resource_type=2, resource_name="a", name=name, value=value)

    image = _image(*_topic(uuid.UUID(int=1), "a", 1), config("x", "1"), config("y", "1"), config("x", "2"))
    assert image.topic_configs("a") == {"x": "2", "y": "1"}
    assert _image(config("x", None), base=image).topic_configs("a") == {"y": "1"}
    assert _image(config("x", None), config("y", None), base=image).configs == {}
    assert _image(RemoveTopicRecord(topic_id=uuid.UUID(int=1)), base=image).configs == {}


def test_clients_see_agents_while_they_are_unfenced() -> None:
    image = _image(_agent(2, 0), _agent(1, 1), UnfenceBrokerRecord(broker_id=2, broker_epoch=0))
    assert [agent.node_id for agent in image.live_agents()] == [2]
    again = _image(_agent(2, 3, port=1), base=image)
    assert again.live_agents() == [], "a new incarnation starts fenced"
    assert (again.agents[2].port, again.agents[2].broker_epoch) == (1, 3)


@pytest.mark.parametrize(
    ("records", "named"),
    [
        ([_partition(uuid.UUID(int=9), 0)], "unknown topic"),
        ([RemoveTopicRecord(topic_id=uuid.UUID(int=9))], "unknown topic"),
        ([*_topic(uuid.UUID(int=1), "a", 1), _partition(uuid.UUID(int=1), 2)], "out of turn: topic=a partition=2"),
        ([*_topic(uuid.UUID(int=1), "a", 1), *_topic(uuid.UUID(int=1), "a", 1)], "topic exists"),
        ([FenceBrokerRecord(broker_id=1, broker_epoch=0)], "node_id=1"),
        ([_agent(1, 0), UnfenceBrokerRecord(broker_id=1, broker_epoch=7)], "broker_epoch=7 offset=1"),
        ([_agent(1, 0), UnregisterBrokerRecord(broker_id=2, broker_epoch=0)], "node_id=2"),
    ],
)
def test_a_record_that_contradicts_the_log_is_named(records: list[MetadataRecord], named: str) -> None:
    with pytest.raises(CorruptError, match=named):
        _image(*records)
