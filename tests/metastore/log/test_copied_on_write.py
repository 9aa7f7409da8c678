"""A mapping that is copied with its first change, and the parts of an image that are shared by it."""

from __future__ import annotations

import uuid
from types import MappingProxyType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.metastore.log.image import MetadataImage
from headrace.metastore.log.kip631_records import (
    BrokerEndpoint,
    ConfigRecord,
    FenceBrokerRecord,
    RegisterBrokerRecord,
    TopicRecord,
    UnfenceBrokerRecord,
)
from headrace.metastore.log.mutable_copies import CopiedOnWrite
from headrace.metastore.log.records import encode_record
from headrace.metastore.log.replay import apply

keys = st.integers(0, 5)
changes = st.lists(st.tuples(st.sampled_from(["set", "pop", "del"]), keys, st.integers()), max_size=12)


@given(st.dictionaries(keys, st.integers()), changes)
def test_it_is_a_dictionary_and_leaves_the_base_alone(base: dict[int, int], steps: list[tuple[str, int, int]]) -> None:
    before, model = dict(base), dict(base)
    mapping = CopiedOnWrite(MappingProxyType(base))
    for step, key, value in steps:
        if step == "set":
            mapping[key] = model[key] = value
        elif step == "pop":
            assert mapping.pop(key, None) == model.pop(key, None)
        elif key in model:
            del mapping[key], model[key]
        assert (list(mapping.items()), mapping.get(key), len(mapping)) == (
            list(model.items()), model.get(key), len(model),
        )  # fmt: skip
    assert mapping.finished() == model
    assert base == before


def test_without_a_change_the_base_itself_is_the_result() -> None:
    base = MappingProxyType({1: 2})
    mapping = CopiedOnWrite(base)
    assert mapping.pop(7, None) is None
    assert mapping.finished() is base


def test_a_record_copies_only_what_it_changes() -> None:
    register = RegisterBrokerRecord(
        broker_id=1,
        incarnation_id=uuid.UUID(int=1),
        broker_epoch=0,
        end_points=(BrokerEndpoint(name="PLAINTEXT", host="a", port=1, security_protocol=0),),
        features=(),
        rack=None,
    )
    image = apply(MetadataImage(), [encode_record(register)])
    topic = TopicRecord(topic_name="t", topic_id=uuid.UUID(int=5), initial_partition_count=1)
    config = ConfigRecord(resource_type=2, resource_name="t", name="retention.ms", value="1")
    for record in (topic, config):
        after = apply(image, [encode_record(record)])
        assert after.agents is image.agents
        assert after.quotas is image.quotas
    after = apply(image, [encode_record(UnfenceBrokerRecord(broker_id=1, broker_epoch=0))])
    assert after.agents is not image.agents
    assert image.agents[1].fenced, "the image before does not change"
    assert not after.agents[1].fenced
    assert after.configs is image.configs
    fenced = apply(after, [encode_record(FenceBrokerRecord(broker_id=1, broker_epoch=0))])
    assert fenced.agents == image.agents


def test_a_missing_key_is_an_error() -> None:
    with pytest.raises(KeyError):
        del CopiedOnWrite({})[1]
