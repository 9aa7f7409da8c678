"""Broker configs as Kafka's tools show them: every setting, and which settings can change at run time.

Place: used by the config requests to describe and to validate; docs/operate/TOPIC_CONFIGS.md lists the dynamic ones.
Invariant: a setting is declared once, in config/settings.py; a setting that looks like a secret is never shown.
Source: KIP-226 (dynamic broker configuration).
"""

from __future__ import annotations

import functools
import re
from typing import NamedTuple
from urllib.parse import parse_qs, urlsplit

import msgspec

from headrace.config.cluster_values import (
    cluster_settings,
    setting_text,
    why_invalid,
)
from headrace.config.config_definition import INT_MAX, LONG_MAX, ConfigDefinition, ConfigEffect
from headrace.config.declared import declared
from headrace.config.topic_configs import BROKER_DEFAULTS, NO_REPLICAS, TOPIC_CONFIGS

PER_BROKER: dict[str, ConfigDefinition] = {
    "max.connections": ConfigDefinition(
        "10000", "int", "Maximum number of Kafka connections of one agent.", low=1, high=INT_MAX
    ),
}
"""Settings that can change at run time, for one agent or for all of them."""

WITHOUT_EFFECT: dict[str, ConfigDefinition] = {
    name: ConfigDefinition(str(LONG_MAX), "long", NO_REPLICAS, ConfigEffect.MET, high=LONG_MAX)
    for name in (
        "follower.replication.throttled.rate",
        "leader.replication.throttled.rate",
        "replica.alter.log.dirs.io.max.bytes.per.second",
    )
}
"""Kafka's tools set them for a broker during a reassignment. They are stored and shown."""

PACE: dict[str, ConfigDefinition] = {
    "compactor.io.max.bytes.per.second": ConfigDefinition(
        "100000000",
        "long",
        "Bytes per second that all background jobs of one process read and write together. A change takes effect"
        " within 15 s, also in running jobs.",
        low=1,
        high=LONG_MAX,
    ),
    "compactor.threads": ConfigDefinition(
        "1",
        "int",
        "Number of background jobs (compaction, retention, deletion) that one process runs. A change takes effect"
        " within 5 s; running jobs are finished. Each job uses a Postgres connection and memory: at most 100.",
        low=1,
        high=100,
    ),
}
"""Settings of scope process that can change at run time: for all processes, as workers need not be brokers, or for the
worker in one agent's process. Without such a value the one in each process's file applies.
"""

PACE_OF_CLEANING = "log.cleaner.io.max.bytes.per.second"
"""Settings as those of PACE, but with one value in the cluster, which is in no file."""

_WHY_STATIC = {
    "listeners": "an agent binds its listener when it starts",
}
"""Only settings that can change at run time in Kafka."""


def why_static(name: str) -> str | None:
    """Return why a setting cannot change at run time; None if it can, or if there is no such setting."""
    if name not in broker_settings() or dynamic_definition(name) is not None:
        return None
    return _WHY_STATIC.get(name, "agents read it when they start")


_SENSITIVE = re.compile(r"password|secret|\.url$")
_CATALOG_URI = "tables.catalog.uri"
_METASTORE_URL = "metastore.url"
_LOCAL_HOSTS = {"", "localhost", "127.0.0.1", "::1"}
_SHOWN_PARAMETERS = {"host", "port", "user", "dbname"}


def holds_secret(name: str, value: str) -> bool:
    """Return whether this value must not be shown: those of sensitive settings, except a metastore.url that names a
    server on this machine and has no password, as that of `headrace dev`: it helps only those who have access already.
    """
    if name == _CATALOG_URI:
        return "@" in value or "?" in value  # a login, or parameters that may have one
    if _SENSITIVE.search(name) is None:
        return False
    if name != _METASTORE_URL:
        return True
    try:
        url = urlsplit(value)
    except ValueError:
        return True
    parameters = parse_qs(url.query, keep_blank_values=True)
    hosts = [url.hostname or "", *(host for hosts in parameters.get("host", []) for host in hosts.split(","))]
    is_local = all(host in _LOCAL_HOSTS or host.startswith("/") for host in hosts) and any(hosts)
    return not is_local or url.password is not None or not parameters.keys() <= _SHOWN_PARAMETERS


class BrokerSetting(NamedTuple):
    """One setting; `kind` is Kafka's config type."""

    kind: str
    meaning: str


@functools.cache
def broker_settings() -> dict[str, BrokerSetting]:
    """Every setting by name."""
    return {name: BrokerSetting(_kind(setting.annotation), setting.meaning) for name, setting in declared().items()}


def dynamic_definition(name: str) -> ConfigDefinition | None:
    """The definition of a broker config that can change at run time; None for all others."""
    if name in cluster_settings():
        return _cluster_definition(name)
    if name in BROKER_DEFAULTS:
        return TOPIC_CONFIGS[BROKER_DEFAULTS[name]]
    return PER_BROKER.get(name) or PACE.get(name) or WITHOUT_EFFECT.get(name)


def is_for_all_brokers(name: str) -> bool:
    """Return whether a dynamic broker config can only be set without a broker's id."""
    return name in BROKER_DEFAULTS or (name in cluster_settings() and name != PACE_OF_CLEANING)


def _cluster_definition(name: str) -> ConfigDefinition:
    """Make a definition from the declaration of the setting: one place for bounds, in files and in the
    cluster.
    """
    setting = declared()[name]
    kind = "list" if name in _LISTS else _kind(setting.annotation)
    return ConfigDefinition(
        setting_text(setting.default), kind, setting.meaning, check=functools.partial(why_invalid, name)
    )


_LISTS = ("group.consumer.assignors",)
"""Settings that Kafka's tools may append to."""


def _kind(annotation: object) -> str:
    """Kafka's type of an annotation such as `Annotated[int | None, Meta(...)]`."""
    info = msgspec.inspect.type_info(annotation)
    while isinstance(info, msgspec.inspect.Metadata):
        info = info.type
    types = info.types if isinstance(info, msgspec.inspect.UnionType) else (info,)
    names = {msgspec.inspect.BoolType: "boolean", msgspec.inspect.IntType: "int", msgspec.inspect.FloatType: "double"}
    return next((names[type(one)] for one in types if type(one) in names), "string")
