"""Kafka's group configs: the configs that can be set for one consumer group of the KIP-848 protocol.

Place: the config requests validate with it, the group coordinator uses it, docs/operate/TOPIC_CONFIGS.md shows it.
Invariant: a group without its own value uses the broker config's value.
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
"""Config -> the settings with its minimum and its maximum."""

GROUP_CONFIGS: dict[str, ConfigDefinition] = {
    HEARTBEAT_INTERVAL: ConfigDefinition(
        "5000",
        "int",
        "How often members send a heartbeat. Must be between group.consumer.min.heartbeat.interval.ms and"
        " group.consumer.max.heartbeat.interval.ms, and less than the session timeout.",
        synonyms=(Synonym("group.consumer.heartbeat.interval.ms"),),
        low=1,
        high=INT_MAX,
    ),
    SESSION_TIMEOUT: ConfigDefinition(
        "45000",
        "int",
        "A member without a heartbeat for this time is removed. Must be between group.consumer.min.session.timeout.ms"
        " and group.consumer.max.session.timeout.ms.",
        synonyms=(Synonym("group.consumer.session.timeout.ms"),),
        low=1,
        high=INT_MAX,
    ),
}
