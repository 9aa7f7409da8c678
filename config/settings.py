"""Every setting of Headrace, declared once: name, type, default, bounds, meaning, scope.

Place: below every package; each component takes the settings it needs. `config.load` fills `Settings` from
file, environment and flags; docs/operate/CONFIGURATION.md is generated from it.
Invariant: a setting has Kafka's name where Kafka has one; names end in their unit; an unknown key is refused.
The class that declares a setting is its scope: ProcessSettings and ClientLimits (each process for itself),
ClusterSettings (one value in the cluster), Settings itself (defaults of topics: one value in the cluster, and a topic
may have another).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from msgspec import Meta, field

from headrace.config.bounds import AtLeastMinusOne, PositiveInt
from headrace.config.cluster_settings import ClusterSettings


class Settings(ClusterSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One flat namespace, as in Kafka's server.properties. Adds scope `topic default`."""

    message_max_bytes: Annotated[PositiveInt, Meta(description="Largest record batch that is accepted.")] = field(
        default=1_048_588, name="message.max.bytes"
    )
    log_retention_ms: Annotated[
        AtLeastMinusOne | None,
        Meta(description="Records older than this are deleted, in topics without retention.ms; -1: never."),
    ] = field(default=None, name="log.retention.ms")
    log_retention_minutes: Annotated[
        AtLeastMinusOne | None, Meta(description="As log.retention.ms, which overrides it.")
    ] = field(default=None, name="log.retention.minutes")
    log_retention_hours: Annotated[
        AtLeastMinusOne, Meta(description="As log.retention.ms and log.retention.minutes, which override it.")
    ] = field(default=168, name="log.retention.hours")
    log_retention_bytes: Annotated[
        AtLeastMinusOne,
        Meta(
            description="A partition above this size loses its oldest records, without retention.bytes; -1: none.",
        ),
    ] = field(default=-1, name="log.retention.bytes")

    listener_overrides: Annotated[
        Mapping[str, Mapping[str, Any]],
        Meta(description="Listener -> setting -> value (config/listener_overrides.py)."),
    ] = field(default_factory=dict, name="listener.name")
