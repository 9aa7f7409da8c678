"""Check which settings have one value in the cluster, and what becomes of a file's value."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from headrace.config.broker_configs import PACE_OF_CLEANING, dynamic_definition, is_for_all_brokers, why_static
from headrace.config.cluster_values import (
    UNITS_OF_RETENTION,
    cluster_settings,
    ignored,
    in_force,
    parsed,
    proposed,
    why_invalid,
)
from headrace.config.consistency import why_inconsistent
from headrace.config.declared import declared
from headrace.config.settings import Settings, SettingScope

PROCESS_PREFIXES = (
    *(
        "node.id",
        "process.roles",
        "broker.rack",
        "listener",
        "azure.",
        "gcs.",
        "ssl.",
        "sasl.",
        "inter.broker.listener.name",
        "controller.listener.names",
        "kafka.",
        "proxy.protocol.listeners",
        "authorizer.class.name",
        "super.users",
        "allow.everyone.if.no.acl.found",
        "advertised.listeners",
    ),
    *(
        "http.",
        "tables.",
        "link.",
        "metastore.",
        "bucket",
        "s3.",
        "store.",
        "slow.",
        "linger.",
        "flush.",
        "upload.",
        "ingest.",
        "buffer.",
    ),
    *(
        "socket.",
        "connections.",
        "connection.",
        "max.connection",
        "control.",
        "request.",
        "reply.",
        "group.mem",
        "fetch.",
        "feed.",
        "cache.",
        "zone.",
    ),
    *(
        "broker.heartbeat.interval.ms",
        "max.unauthenticated.",
        "unauthenticated.",
        "topic.metrics.max",
        "client.metrics.max",
        "otel.enable",
        "consumer.lag.metrics.max",
        "initial.",
        "shutdown.",
        "log.level",
        "log.format",
        "audit.log.path",
        "commit.shards",
        "compactor.",
    ),
    *("compaction.cpu.percent", "delegation.token.secret.key", "metadata.secret.keys"),
)
"""What a process may have for itself. commit.shards is fixed when storage is formatted; compactor.* is the pace of
one process; the secret key must not be in the metadata log.
"""


def test_every_setting_that_is_not_about_one_process_has_one_value_in_the_cluster() -> None:
    for name, setting in declared().items():
        is_own = name.startswith(PROCESS_PREFIXES)
        assert (setting.scope is SettingScope.PROCESS) == is_own, name


def test_the_cluster_may_have_every_default_and_tools_may_change_it() -> None:
    for name, value in proposed(Settings()).items():
        definition = dynamic_definition(name)
        assert definition is not None, name
        assert definition.why_invalid(value) is None, name
        assert is_for_all_brokers(name) == (name != PACE_OF_CLEANING)
        assert why_static(name) is None


def test_tools_may_not_set_what_the_declaration_refuses() -> None:
    for name in cluster_settings():
        definition = dynamic_definition(name)
        assert definition is not None
        for value in ("", "x y", "-2", "1_000"):
            assert definition.why_invalid(value), (name, value)


SETTINGS: list[dict[str, Any]] = [
    {"log_retention_hours": 720},
    {"log_retention_minutes": 5, "log_retention_hours": 720},
    {"log_retention_ms": 7, "log_retention_minutes": 5},
    {"log_retention_hours": -1},
]


@pytest.mark.parametrize(("own", "expected"), list(zip(SETTINGS, ["2592000000", "300000", "7", "-1"], strict=True)))
def test_retention_is_proposed_in_milliseconds(own: dict[str, Any], expected: str) -> None:
    values = proposed(Settings(**own))
    assert values["log.retention.ms"] == expected
    assert not values.keys() & UNITS_OF_RETENTION.keys()


def test_the_clusters_value_replaces_the_files() -> None:
    own = Settings(num_partitions=3, log_retention_hours=720, auto_create_topics_enable=False, linger_ms=30)
    values = {"num.partitions": "5", "log.retention.ms": "1000", "auto.create.topics.enable": "true", "linger.ms": "99"}
    now = in_force(own, values)
    assert (now.num_partitions, now.log_retention_ms, now.auto_create_topics_enable) == (5, 1000, True)
    assert now.linger_ms == 30, "a setting of the process stays its own"
    assert in_force(own, {}) is own
    assert in_force(own, {"num.partitions": "nonsense"}).num_partitions == 3


def test_everything_proposed_is_what_the_file_says() -> None:
    own = Settings(num_partitions=3, log_retention_hours=720, group_consumer_assignors="range")
    now = in_force(Settings(), proposed(own))
    assert msgspec.structs.replace(now, log_retention_ms=None, log_retention_hours=720) == own


def test_a_file_that_says_otherwise_is_noticed_and_one_that_says_nothing_is_not() -> None:
    values = proposed(Settings(log_retention_hours=720, num_partitions=4))
    assert ignored(Settings(), values) == []
    assert [tuple(one) for one in ignored(Settings(log_retention_hours=24, num_partitions=4), values)] == [
        ("log.retention.ms", "86400000", "2592000000")
    ]


def test_values_are_parsed_as_in_files() -> None:
    assert parsed("auto.create.topics.enable", "false") is False
    assert parsed("file.delete.delay.ms", "0") == 0
    assert why_invalid("file.delete.delay.ms", "-1") == "not accepted: integer ≥ 0"
    assert why_invalid("compaction.file.bytes", "1") == "not accepted: 1048576 to 1073741824"
    assert why_invalid("group.consumer.assignors", "uniform,best") is not None


@pytest.mark.parametrize(
    "wrong",
    [
        {"group_consumer_session_timeout_ms": 5},
        {"group_consumer_heartbeat_interval_ms": 60_000},
        {"group_min_session_timeout_ms": 2_000_000},
        {
            "group_consumer_session_timeout_ms": 5_000,
            "group_consumer_min_session_timeout_ms": 5_000,
            "group_consumer_heartbeat_interval_ms": 5_000,
        },
    ],
)
def test_settings_that_do_not_fit_each_other_are_named(wrong: dict[str, Any]) -> None:
    assert why_inconsistent(Settings()) is None
    reason = why_inconsistent(Settings(**wrong))
    assert reason is not None
    assert next(iter(wrong)).replace("_", ".") in reason
