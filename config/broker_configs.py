"""Broker configs as Kafka's tools show them: every setting, and which settings can change at run time.

Place: used by the config requests to describe and to validate; docs/operate/TOPIC_CONFIGS.md lists the dynamic ones.
Invariant: a setting is declared once, in config/settings.py; a setting that looks like a secret is never shown.
Source: KIP-226 (dynamic broker configuration).
"""

from __future__ import annotations

import functools
import re
from typing import NamedTuple

import msgspec

from headrace.config.config_definition import INT_MAX, LONG_MAX, ConfigDefinition
from headrace.config.declared import declared
from headrace.config.topic_configs import BROKER_DEFAULTS, TOPIC_CONFIGS

PER_BROKER: dict[str, ConfigDefinition] = {
    "max.connections": ConfigDefinition(
        "10000", "int", "Maximum number of Kafka connections of one agent.", low=1, high=INT_MAX
    ),
}
"""Settings that can change at run time, for one agent or for all of them."""

CLUSTER_WIDE: dict[str, ConfigDefinition] = {
    "log.cleaner.backoff.ms": ConfigDefinition(
        "15000",
        "int",
        "How often compaction looks for files to merge. A change takes effect within 30 s.",
        low=1,
        high=INT_MAX,
    ),
    "log.cleaner.io.max.bytes.per.second": ConfigDefinition(
        "100000000",
        "long",
        "Bytes per second that all background jobs of one process read and write together. A change takes effect"
        " within 15 s, also in running jobs.",
        low=1,
        high=LONG_MAX,
    ),
    "log.cleaner.threads": ConfigDefinition(
        "1",
        "int",
        "Number of background jobs (compaction, retention, deletion) that one process runs. A change takes effect"
        " within 5 s; running jobs are finished. Each job uses a Postgres connection and memory: at most 100.",
        low=1,
        high=100,
    ),
}
"""Settings that can change at run time for all processes at once: workers and controllers need not be brokers."""

_WHY_STATIC = {
    "listeners": "an agent binds its listener when it starts",
    "producer.id.expiration.ms": "agents with different values would for a moment refuse producers that are active",
}
"""Only settings that can change at run time in Kafka."""


def why_static(name: str) -> str | None:
    """Why a setting cannot change at run time; None if it can, or if there is no such setting."""
    if name not in broker_settings() or dynamic_definition(name) is not None:
        return None
    return _WHY_STATIC.get(name, "agents read it when they start")


_SENSITIVE = re.compile(r"password|secret|\.url$")


class BrokerSetting(NamedTuple):
    """One setting; `kind` is Kafka's config type."""

    kind: str
    meaning: str
    is_sensitive: bool


@functools.cache
def broker_settings() -> dict[str, BrokerSetting]:
    """Every setting by name."""
    return {
        name: BrokerSetting(_kind(setting.annotation), setting.meaning, _SENSITIVE.search(name) is not None)
        for name, setting in declared().items()
    }


def dynamic_definition(name: str) -> ConfigDefinition | None:
    """The definition of a broker config that can change at run time; None for all others."""
    if name in BROKER_DEFAULTS:
        return TOPIC_CONFIGS[BROKER_DEFAULTS[name]]
    return PER_BROKER.get(name) or CLUSTER_WIDE.get(name)


def _kind(annotation: object) -> str:
    """Kafka's type of an annotation such as `Annotated[int | None, Meta(...)]`."""
    info = msgspec.inspect.type_info(annotation)
    while isinstance(info, msgspec.inspect.Metadata):
        info = info.type
    types = info.types if isinstance(info, msgspec.inspect.UnionType) else (info,)
    names = {msgspec.inspect.BoolType: "boolean", msgspec.inspect.IntType: "int", msgspec.inspect.FloatType: "double"}
    return next((names[type(one)] for one in types if type(one) in names), "string")
