"""Kafka's group configs: what a consumer group of the KIP-848 protocol may have of its own.

Place: the config requests judge by it; the group coordinator acts on it; docs/TOPIC_CONFIGS.md shows it.
Invariant: a group without a value of its own has the broker config's. Pure; nothing is lost if the process dies.
Source: KIP-848, GroupConfig. Kafka's configs of share and streams groups are unknown here: neither exists.
"""

from __future__ import annotations

from config.config_definition import INT_MAX, ConfigDefinition, Synonym

GROUP_CONFIGS: dict[str, ConfigDefinition] = {
    "consumer.heartbeat.interval.ms": ConfigDefinition(
        "5000",
        "int",
        "How often members send a heartbeat.",
        synonyms=(Synonym("group.consumer.heartbeat.interval.ms"),),
        low=1,
        high=INT_MAX,
    ),
    "consumer.session.timeout.ms": ConfigDefinition(
        "45000",
        "int",
        "A member that is silent for this long loses its place.",
        synonyms=(Synonym("group.consumer.session.timeout.ms"),),
        low=1,
        high=INT_MAX,
    ),
}
