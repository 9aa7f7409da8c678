"""Broker configs as Kafka's tools show them: every setting, and which of them may change while agents run.

Place: the config requests judge and show by it; docs/TOPIC_CONFIGS.md lists what may change.
Invariant: a setting is declared once, in config/settings.py; what looks like a secret is never shown.
Pure; nothing is lost if the process dies.
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
        "10000", "int", "Kafka connections that one agent accepts.", low=1, high=INT_MAX
    ),
}
"""Settings of one agent that may be changed while it runs, for it alone or for all."""

CLUSTER_WIDE: dict[str, ConfigDefinition] = {
    "log.cleaner.backoff.ms": ConfigDefinition(
        "15000",
        "int",
        "How often it is looked for files that are worth compacting; taken over within 30 s.",
        low=1,
        high=INT_MAX,
    ),
    "log.cleaner.io.max.bytes.per.second": ConfigDefinition(
        "100000000",
        "long",
        "Bytes a second that one process's background jobs read and write, together; taken over within 15 s, also by"
        " running jobs.",
        low=1,
        high=LONG_MAX,
    ),
    "log.cleaner.threads": ConfigDefinition(
        "1",
        "int",
        "Background jobs that one process works on; taken over within 5 s, jobs in hand are finished. Each takes a"
        " connection to Postgres and memory for a merge, so 100 at the most.",
        low=1,
        high=100,
    ),
}
"""Settings that may be changed for all processes at once: workers and controllers need not be brokers."""

_WHY_STATIC = {
    "listeners": "an agent binds its listener when it starts",
    "producer.id.expiration.ms": "agents that disagreed on it for a moment would refuse producers that are alive",
}
"""Of those that Kafka's brokers can change."""


def why_static(name: str) -> str | None:
    """Why a setting cannot change while brokers run; None for one that can, and for what is no setting."""
    if name not in broker_settings() or dynamic_definition(name) is not None:
        return None
    return _WHY_STATIC.get(name, "agents read it when they start")


_SENSITIVE = re.compile(r"password|secret|\.url$")


class BrokerSetting(NamedTuple):
    """A setting; `kind` is Kafka's type."""

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
    """What a broker config that may change while agents run must look like; None for all others."""
    if name in BROKER_DEFAULTS:
        return TOPIC_CONFIGS[BROKER_DEFAULTS[name]]
    return PER_BROKER.get(name) or CLUSTER_WIDE.get(name)


def _kind(annotation: object) -> str:
    """Of `Annotated[int | None, Meta(...)]` and its like."""
    info = msgspec.inspect.type_info(annotation)
    while isinstance(info, msgspec.inspect.Metadata):
        info = info.type
    types = info.types if isinstance(info, msgspec.inspect.UnionType) else (info,)
    names = {msgspec.inspect.BoolType: "boolean", msgspec.inspect.IntType: "int", msgspec.inspect.FloatType: "double"}
    return next((names[type(one)] for one in types if type(one) in names), "string")
