"""Check which value of a config holds, layer by layer."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

import pytest

from headrace.config.group_configs import GROUP_CONFIGS
from headrace.config.settings import Settings
from headrace.config.topic_configs import BROKER_DEFAULTS, TOPIC_CONFIGS
from headrace.metastore.log.effective_configs import ConfigLayer, ConfigSource, EffectiveConfigs, shown_layers
from headrace.metastore.log.image import MetadataImage

TOPIC, BROKER, GROUP = 2, 4, 32
WEEK_MS = "604800000"


def image(**configs: dict[str, str]) -> MetadataImage:
    """`topic_t={...}`, `broker_={...}`, `broker_7={...}`, `group_g={...}`."""
    types = {"topic": TOPIC, "broker": BROKER, "group": GROUP}
    named = {(types[key.partition("_")[0]], key.partition("_")[2]): value for key, value in configs.items()}
    return MetadataImage(configs=MappingProxyType(named))


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, WEEK_MS),
        ({"log_retention_hours": 2}, "7200000"),
        ({"log_retention_hours": 2, "log_retention_minutes": 3}, "180000"),
        ({"log_retention_hours": 2, "log_retention_minutes": 3, "log_retention_ms": 4}, "4"),
        ({"log_retention_hours": -1}, "-1"),
        ({"log_retention_minutes": 0}, "0"),
    ],
)
def test_the_finer_unit_rules(settings: dict[str, Any], expected: str) -> None:
    configs = EffectiveConfigs(Settings(**settings))
    assert configs.topic_value(MetadataImage(), "t", "retention.ms") == expected


def test_topic_above_cluster_above_file_above_default() -> None:
    configs = EffectiveConfigs(Settings(log_retention_hours=2))
    own = {"retention.ms": "1"}
    cluster = {"log.retention.ms": "2", "log.retention.hours": "9"}
    full = configs.topic_layers(
        image(topic_t=own, broker_=cluster, broker_7={"log.retention.ms": "3"}), "t", "retention.ms"
    )
    assert full == [
        ConfigLayer("retention.ms", "1", ConfigSource.TOPIC),
        ConfigLayer("log.retention.ms", "2", ConfigSource.CLUSTER),
        ConfigLayer("log.retention.hours", "7200000", ConfigSource.FILE),
        ConfigLayer("log.retention.ms", WEEK_MS, ConfigSource.DEFAULT),
    ], "what is set for one broker, or under a name that only files know, says nothing"
    assert configs.topic_layers(image(topic_t=own), "u", "retention.ms") == full[2:]
    assert configs.topic_layers(image(topic_t=own, broker_=cluster), None, "retention.ms") == full[1:]


@pytest.mark.parametrize(
    ("file", "own", "cluster", "shown"),
    [
        (None, None, WEEK_MS, [(WEEK_MS, ConfigSource.DEFAULT)]),
        (None, "1", WEEK_MS, [("1", ConfigSource.TOPIC), (WEEK_MS, ConfigSource.DEFAULT)]),
        (None, None, "2", [("2", ConfigSource.CLUSTER), (WEEK_MS, ConfigSource.DEFAULT)]),
        (None, WEEK_MS, WEEK_MS, [(WEEK_MS, ConfigSource.TOPIC), (WEEK_MS, ConfigSource.DEFAULT)]),
        (2, None, WEEK_MS, [(WEEK_MS, ConfigSource.CLUSTER), ("7200000", ConfigSource.FILE)]),
    ],
)
def test_a_recorded_default_is_shown_as_a_default(
    file: int | None, own: str | None, cluster: str, shown: list[tuple[str, ConfigSource]]
) -> None:
    """Unless it holds against another value."""
    configs = EffectiveConfigs(Settings() if file is None else Settings(log_retention_hours=file))
    topic = {} if own is None else {"retention.ms": own}
    layers = configs.topic_layers(image(topic_t=topic, broker_={"log.retention.ms": cluster}), "t", "retention.ms")
    assert [(layer.value, layer.source) for layer in shown_layers(layers)][: len(shown)] == shown


def test_a_brokers_own_value_above_all_brokers() -> None:
    configs = EffectiveConfigs(Settings(max_connections=50))
    full = configs.broker_layers(
        image(broker_={"max.connections": "60"}, broker_7={"max.connections": "70"}), 7, "max.connections"
    )
    assert [(layer.value, layer.source) for layer in full] == [
        ("70", ConfigSource.BROKER),
        ("60", ConfigSource.CLUSTER),
        ("50", ConfigSource.FILE),
        ("10000", ConfigSource.DEFAULT),
    ]
    assert configs.broker_layers(image(), 7, "broker.rack") == [ConfigLayer("broker.rack", "", ConfigSource.DEFAULT)]
    assert configs.broker_layers(image(), 7, "s3.path.style")[0].value == "false"


def test_a_groups_own_value_above_the_files() -> None:
    name = "consumer.session.timeout.ms"
    configs = EffectiveConfigs(Settings())
    assert [layer.value for layer in configs.group_layers(image(group_g={name: "50000"}), "g", name)] == [
        "50000",
        "45000",
    ]
    assert [layer.value for layer in configs.group_layers(image(), "g", name)] == ["45000"]


def test_every_default_is_a_valid_value() -> None:
    configs = EffectiveConfigs(Settings())
    for name, definition in TOPIC_CONFIGS.items():
        assert definition.why_invalid(configs.topic_value(MetadataImage(), "t", name)) is None, name
    for name, definition in GROUP_CONFIGS.items():
        assert definition.why_invalid(configs.group_layers(MetadataImage(), "g", name)[0].value) is None, name
    assert set(BROKER_DEFAULTS.values()) <= TOPIC_CONFIGS.keys()
