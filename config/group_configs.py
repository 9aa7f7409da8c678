"""Kafka's group configs: what a consumer group of the KIP-848 protocol may have of its own.

Place: the config requests judge by it; the group coordinator acts on it; docs/TOPIC_CONFIGS.md shows it.
Invariant: a group without a value of its own has the broker config's. Pure; nothing is lost if the process dies.
Source: KIP-848, GroupConfig. Kafka's configs of share and streams groups are unknown here: neither exists.
"""

from __future__ import annotations

from headrace.config.config_definition import INT_MAX, ConfigDefinition, Synonym

HEARTBEAT_INTERVAL = "consumer.heartbeat.interval.ms"
SESSION_TIMEOUT = "consumer.session.timeout.ms"

BOUNDS: dict[str, tuple[str, str]] = {
    HEARTBEAT_INTERVAL: ("group.consumer.min.heartbeat.interval.ms", "group.consumer.max.heartbeat.interval.ms"),
    SESSION_TIMEOUT: ("group.consumer.min.session.timeout.ms", "group.consumer.max.session.timeout.ms"),
}
"""Config -> the settings that say the least and the most of it."""

GROUP_CONFIGS: dict[str, ConfigDefinition] = {
    HEARTBEAT_INTERVAL: ConfigDefinition(
        "5000",
        "int",
        "How often members send a heartbeat. Refused outside group.consumer.min.heartbeat.interval.ms and"
        " group.consumer.max.heartbeat.interval.ms, and unless it is less than the session.",
        synonyms=(Synonym("group.consumer.heartbeat.interval.ms"),),
        low=1,
        high=INT_MAX,
    ),
    SESSION_TIMEOUT: ConfigDefinition(
        "45000",
        "int",
        "A member that is silent for this long loses its place. Refused outside group.consumer.min.session.timeout.ms"
        " and group.consumer.max.session.timeout.ms.",
        synonyms=(Synonym("group.consumer.session.timeout.ms"),),
        low=1,
        high=INT_MAX,
    ),
}
