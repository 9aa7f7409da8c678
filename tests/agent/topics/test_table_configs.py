"""The topic configs `table.*`: refused without their feature level, and while a table has what they would change."""

from __future__ import annotations

import uuid

import pytest
from kio.schema.errors import ErrorCode

from headrace.agent.cluster.log_change import Verdict
from headrace.agent.topics import topic_rules
from headrace.agent.topics.configs.rules import ConfigResource, Operation, Wish, judge
from headrace.agent.topics.topic_rules import TopicDefaults, TopicRefusal, WantedTopic
from headrace.config.settings import Settings
from headrace.config.table_configs import TABLE_CONFIGS
from headrace.metastore.api.agents import AGENT_FEATURES, SUPPORTED_FEATURES, TOPIC_TABLES, FeatureRange
from headrace.metastore.log.effective_configs import EffectiveConfigs
from headrace.metastore.log.features import change_feature
from headrace.metastore.log.image import MetadataImage
from headrace.metastore.log.kip631_records import ConfigRecord, TopicRecord
from headrace.metastore.log.own_records import RemoveFeatureLevelRecord
from headrace.metastore.log.records import encode_record
from headrace.metastore.log.replay import apply
from headrace.storage.errors import InvalidError

pytestmark = pytest.mark.requirement("X11")
FEATURES = {TOPIC_TABLES: FeatureRange(1, 1)}
ORDERS = ConfigResource(2, "orders")


def image(configs: dict[str, str], *, has_feature: bool = True) -> MetadataImage:
    topic = TopicRecord(topic_name="orders", topic_id=uuid.UUID(int=1))
    records = [
        ConfigRecord(resource_type=2, resource_name="orders", name=name, value=value) for name, value in configs.items()
    ]
    empty = MetadataImage(features=FEATURES if has_feature else {})
    return apply(empty, [encode_record(topic), *map(encode_record, records)])


def changed(before: MetadataImage, **configs: str | None) -> dict[str, str | None] | Verdict:
    """Return what the change leaves in the log, by name; `_` is a dot."""
    wishes = [
        Wish(name.replace("_", "."), Operation.DELETE if value is None else Operation.SET, value)
        for name, value in configs.items()
    ]
    done = judge(EffectiveConfigs(Settings()), before, ORDERS, wishes)
    return done if isinstance(done, Verdict) else {each.name: each.value for each in done}


def refusal(done: object) -> str:
    assert isinstance(done, Verdict)
    assert done.code is ErrorCode.invalid_config
    return done.message or ""


def test_a_table_waits_for_the_feature_level() -> None:
    old = image({}, has_feature=False)
    assert "topic.tables=1" in refusal(changed(old, table_enable="true"))
    assert changed(old, table_enable="false", retention_ms="5") == {"table.enable": "false", "retention.ms": "5"}
    assert changed(image({}), table_enable="true") == {"table.enable": "true"}
    wanted = WantedTopic("new", uuid.UUID(int=2), 1, 1, (), [("table.enable", "true")])
    (refused,) = topic_rules.judge([wanted], old, TopicDefaults.of(Settings()))
    assert isinstance(refused, TopicRefusal)
    assert refused.code is ErrorCode.invalid_config
    assert "topic.tables=1" in refused.message
    (accepted,) = topic_rules.judge([wanted], image({}), TopicDefaults.of(Settings()))
    assert not isinstance(accepted, TopicRefusal)


def test_new_clusters_have_the_level_and_it_goes_down_once_no_topic_needs_it() -> None:
    assert AGENT_FEATURES[TOPIC_TABLES] == SUPPORTED_FEATURES[TOPIC_TABLES] == FEATURES[TOPIC_TABLES]
    with pytest.raises(InvalidError, match="orders"):
        change_feature(image({"table.name": "x"}), TOPIC_TABLES, 0, allow_downgrade=True)
    gone = change_feature(image({"retention.ms": "5"}), TOPIC_TABLES, 0, allow_downgrade=True)
    assert gone == RemoveFeatureLevelRecord(name=TOPIC_TABLES)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("table.enable", "yes"),
        ("table.name", "a.b"),
        ("table.name", "x" * 201),
        ("table.start", "yesterday"),
        ("table.start", "-1"),
        ("table.partition.by", "month"),
        ("table.partition.by", "day,week(created)"),
        ("table.value.format", "protobuf"),
        ("table.value.format", "avro"),
        ("table.errors.tolerance", "some"),
        ("table.commit.interval.ms", "0"),
        ("table.commit.interval.ms", "99"),
        ("table.mode", "merge"),
        ("table.key.columns", "a.b"),
        ("table.key.columns", "a,b,a"),
    ],
)
def test_a_value_that_no_table_can_have_is_refused(name: str, value: str) -> None:
    assert name in refusal(changed(image({}), **{name.replace(".", "_"): value}))
    assert TABLE_CONFIGS[name].why_invalid(TABLE_CONFIGS[name].default) is None


def test_a_name_of_dead_letters_is_no_table_of_a_topic() -> None:
    reserved = "names with _dead_letters at the end"
    assert reserved in refusal(changed(image({}), table_enable="true", table_name="orders_Dead_Letters"))
    assert reserved in refusal(changed(image({"table.name": "x_dead_letters"}), table_enable="true"))
    live = image({"table.enable": "true", "table.name": "x_dead_letters"})
    assert not isinstance(changed(live, table_errors_tolerance="all"), Verdict), "the table of an older version"
    assert changed(live, table_enable="false") == {"table.enable": "false"}
    for name, is_refused in (("orders-dead-letters", True), ("web", False)):
        wanted = WantedTopic(name, uuid.UUID(int=2), 1, 1, (), [("table.enable", "true")])
        (done,) = topic_rules.judge([wanted], image({}), TopicDefaults.of(Settings()))
        assert isinstance(done, TopicRefusal) == is_refused


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("table_name", "others"),
        ("table_value_format", "json"),
        ("table_start", "latest"),
        ("table_partition_by", "day"),
        ("table_mode", "upsert"),
        ("table_key_columns", "customer"),
    ],
)
def test_what_a_table_has_from_its_creation_on_is_fixed(name: str, value: str) -> None:
    live = image({"table.enable": "true", "table.partition.by": "partition"})
    assert "cannot change while table.enable is true" in refusal(changed(live, **{name: value}))
    assert not isinstance(changed(live, **{name: value}, table_enable="false"), Verdict)
    assert not isinstance(changed(image({}), **{name: value}, table_enable="true"), Verdict)
    assert "table.partition.by" in refusal(changed(live, table_partition_by=None)), "its default is another value"
    assert changed(live, table_start="earliest", table_errors_tolerance="all") == {
        "table.start": "earliest",
        "table.errors.tolerance": "all",
    }
