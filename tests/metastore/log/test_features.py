"""Feature levels: what a format may hold, and who may change a level."""

from __future__ import annotations

import pytest

from headrace.metastore.api.agents import METADATA_FORMAT, SEGMENT_KEYS
from headrace.metastore.log.features import change_feature, required_format
from headrace.metastore.log.image import MetadataImage
from headrace.metastore.log.records import FeatureLevelRecord, RegisterBrokerRecord, encode_record, record_types
from headrace.metastore.log.replay import apply
from headrace.storage.errors import InvalidError, UnsupportedFeatureError
from tests.metastore.log.log_histories import agent_record

LEVEL_2 = FeatureLevelRecord(name=METADATA_FORMAT, min_feature_level=1, max_feature_level=2)


@pytest.mark.requirement("C2")
def test_format_1_has_the_seeds_types_and_later_ones_ours_too() -> None:
    formats = {kind.record_type: required_format([object.__new__(kind)]) for kind in record_types()}
    assert [kind for kind, needed in formats.items() if needed == 1] == [*range(15)]
    assert [kind for kind, needed in formats.items() if needed == 2] == [*range(100, 105)]
    assert [kind for kind, needed in formats.items() if needed == 3] == [105, 106]
    assert required_format([object.__new__(kind) for kind in record_types()]) == 3
    assert required_format([]) == 1


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


@pytest.mark.parametrize("level", [0, 4])
def test_levels_that_this_software_lacks_are_refused(level: int) -> None:
    with pytest.raises(UnsupportedFeatureError, match=rf"level={level} known=1\.\.3"):
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
