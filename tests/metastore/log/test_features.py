"""Feature levels: what a format may hold, and who may change a level."""

from __future__ import annotations

import uuid
from contextlib import nullcontext
from dataclasses import replace

import pytest

from headrace.metastore.api.agents import (
    AGENT_FEATURES,
    LEADER_SPREAD,
    METADATA_FORMAT,
    SEGMENT_KEYS,
    TRANSACTION_VERSION,
    FeatureRange,
)
from headrace.metastore.api.cluster import MetadataRecord
from headrace.metastore.log.features import change_feature, required_format
from headrace.metastore.log.image import AgentImage, MetadataImage
from headrace.metastore.log.kip631_records import (
    AncestorEpoch,
    FeatureLevelRecord,
    PartitionRecord,
    RegisterBrokerRecord,
)
from headrace.metastore.log.own_records import PartitionCountRecord, RemoveFeatureLevelRecord
from headrace.metastore.log.records import encode_record, record_types
from headrace.metastore.log.replay import apply
from headrace.storage.errors import InvalidError, UnsupportedFeatureError
from tests.metastore.log.log_histories import agent_record, partition_record, topic_records

LEVEL_2 = FeatureLevelRecord(name=METADATA_FORMAT, min_feature_level=1, max_feature_level=2)


@pytest.mark.requirement("C2")
def test_format_1_has_the_seeds_types_and_later_ones_ours_too() -> None:
    formats = {kind.record_type: required_format([_blank(kind)]) for kind in record_types()}
    assert [kind for kind, needed in formats.items() if needed == 1] == [*range(15)]
    assert [kind for kind, needed in formats.items() if needed == 2] == [*range(100, 105)]
    assert [kind for kind, needed in formats.items() if needed == 3] == [105, 106]
    assert [kind for kind, needed in formats.items() if needed == 4] == [*range(107, 115)]
    assert required_format([_blank(kind) for kind in record_types()]) == 4
    assert required_format([]) == 1
    plain = partition_record(uuid.UUID(int=1), 3)
    for tagged in (
        {"source": 1},
        {"is_removed": True},
        {"before_deletion": (AncestorEpoch(ancestor=1, leader_epoch=0),)},
    ):
        assert required_format([replace(plain, **tagged)]) == 4  # type: ignore[arg-type]


def _blank(kind: type[MetadataRecord]) -> MetadataRecord:
    return partition_record(uuid.UUID(int=1), 0) if kind is PartitionRecord else object.__new__(kind)


def test_a_level_goes_up_and_down_only_when_asked() -> None:
    old = MetadataImage()
    assert old.metadata_format == 1, "a log that says nothing"
    assert change_feature(old, METADATA_FORMAT, 1, allow_downgrade=False) is None
    assert change_feature(old, METADATA_FORMAT, 2, allow_downgrade=False) == LEVEL_2
    new = apply(old, [encode_record(LEVEL_2)])
    assert new.metadata_format == 2
    with pytest.raises(InvalidError, match="go down"):
        change_feature(new, METADATA_FORMAT, 1, allow_downgrade=False)
    down = change_feature(new, METADATA_FORMAT, 1, allow_downgrade=True)
    assert down is not None
    assert apply(new, [encode_record(down)]).metadata_format == 1


@pytest.mark.parametrize("level", [0, 5])
def test_levels_that_this_software_lacks_are_refused(level: int) -> None:
    with pytest.raises(UnsupportedFeatureError, match=rf"level={level} known=1\.\.4"):
        change_feature(MetadataImage(), METADATA_FORMAT, level, allow_downgrade=True)


def test_a_level_that_a_registered_agent_lacks_is_refused() -> None:
    old = RegisterBrokerRecord(
        broker_id=7,
        incarnation_id=agent_record(7, 7).incarnation_id,
        broker_epoch=0,
        end_points=agent_record(7, 7).end_points,
        features=(),
        rack=None,
    )
    image = apply(MetadataImage(), [encode_record(record) for record in (old, agent_record(1, 1))])
    with pytest.raises(UnsupportedFeatureError, match="node_id=7"):
        change_feature(image, METADATA_FORMAT, 2, allow_downgrade=False)


def test_unknown_features_are_refused_by_name() -> None:
    with pytest.raises(InvalidError, match="feature=warp"):
        change_feature(MetadataImage(), "warp", 1, allow_downgrade=False)


@pytest.mark.requirement("R10")
def test_the_level_of_segment_keys_only_rises() -> None:
    record = change_feature(MetadataImage(), SEGMENT_KEYS, 1, allow_downgrade=False)
    assert record == FeatureLevelRecord(name=SEGMENT_KEYS, min_feature_level=1, max_feature_level=1)
    assert record is not None
    raised = apply(MetadataImage(), [encode_record(record)])
    for level in (0, -1):
        with pytest.raises(InvalidError, match="level cannot go down"):
            change_feature(raised, SEGMENT_KEYS, level, allow_downgrade=True)


@pytest.mark.requirement("P3")
def test_the_format_stays_while_a_topic_has_partitions_that_older_agents_would_misread() -> None:
    topic_id = uuid.UUID(int=1)
    level = FeatureLevelRecord(name=METADATA_FORMAT, min_feature_level=1, max_feature_level=4)
    grown = PartitionCountRecord(topic_id=topic_id, initial_partition_count=1, undeleted_partition_count=2)
    created = replace(partition_record(topic_id, 1), source=0, source_epoch=1)
    records = [level, *topic_records(topic_id, "orders", 1), grown, created]
    image = apply(MetadataImage(), [encode_record(record) for record in records])
    with pytest.raises(InvalidError, match=r"level cannot go down.*topics=\['orders'\]"):
        change_feature(image, METADATA_FORMAT, 3, allow_downgrade=True)


@pytest.mark.parametrize("level", [1, 2])
def test_transactions_cannot_be_given_up(level: int) -> None:
    """An agent that knows none would show aborted records."""
    begun = apply(MetadataImage(), [encode_record(_transactions(level))])
    assert begun.transaction_version == level
    other = 3 - level
    assert change_feature(begun, TRANSACTION_VERSION, other, allow_downgrade=True) == _transactions(other)
    with pytest.raises(InvalidError, match="aborted records"):
        change_feature(begun, TRANSACTION_VERSION, 0, allow_downgrade=True)


def test_transactions_wait_for_the_last_agent_of_an_older_release() -> None:
    image = apply(MetadataImage(), [encode_record(agent_record(1, 1))])
    assert image.transaction_version == 0
    with pytest.raises(UnsupportedFeatureError, match="an agent does not support"):
        change_feature(image, TRANSACTION_VERSION, 2, allow_downgrade=False)


def test_leaders_are_spread_when_every_agent_can_do_it() -> None:
    older = {name: levels for name, levels in AGENT_FEATURES.items() if name != LEADER_SPREAD}
    for features, is_refused in ((AGENT_FEATURES, False), (older, True)):
        agent = AgentImage(7, 1, uuid.UUID(int=7), "host", 9092, None, fenced=True, features=features)
        image = MetadataImage(agents={7: agent})
        with pytest.raises(UnsupportedFeatureError, match="node_id=7") if is_refused else nullcontext():
            record = change_feature(image, LEADER_SPREAD, 4, allow_downgrade=False)
            assert record == FeatureLevelRecord(name=LEADER_SPREAD, min_feature_level=1, max_feature_level=4)
    spread = MetadataImage(features={LEADER_SPREAD: FeatureRange(1, 4)})
    assert spread.leader_spread == 4
    back = change_feature(spread, LEADER_SPREAD, 0, allow_downgrade=True)
    assert back == RemoveFeatureLevelRecord(name=LEADER_SPREAD)


def _transactions(level: int) -> FeatureLevelRecord:
    return FeatureLevelRecord(name=TRANSACTION_VERSION, min_feature_level=0, max_feature_level=level)
