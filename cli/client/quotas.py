"""Quotas of clients: list and change them.

Place: under `headrace quotas` and `headrace cluster apply`.
Invariant: an entity is changed completely or not at all. An entity is named by its user, its client id, both, or its
address; a name None is the default entity of that kind.
Source: KIP-546.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from headrace.protocol.api_keys import ApiKey
from headrace.protocol.client.cluster import KafkaCluster, require

USER, CLIENT_ID, IP = "user", "client-id", "ip"
KINDS = (USER, CLIENT_ID, IP)
"""Kafka's entity types."""
KEYS = (
    "producer_byte_rate",
    "consumer_byte_rate",
    "request_percentage",
    "controller_mutation_rate",
    "connection_creation_rate",
)
Entity = tuple[tuple[str, str | None], ...]
"""(kind, name) in the order of KINDS; None: the default entity."""
Limits = dict[str, float]
_EXACT, _DEFAULT = 0, 1
"""Match types of a filter."""


def entity_of(names: Mapping[str, str | None]) -> Entity:
    """Return the entity with these names, by kind."""
    return tuple((kind, names[kind]) for kind in KINDS if kind in names)


def list_quotas(cluster: KafkaCluster, wanted: Entity = ()) -> dict[Entity, Limits]:
    """Return the limits of each entity; with `wanted`, of that entity alone. Empty if it has none."""
    m = cluster.message(ApiKey.DESCRIBE_CLIENT_QUOTAS)
    components = tuple(
        m.make(
            "ComponentData",
            entity_type=kind,
            match_type=_DEFAULT if name is None else _EXACT,
            match=name,
        )
        for kind, name in wanted
    )
    answer = cluster.ask(ApiKey.DESCRIBE_CLIENT_QUOTAS, m.request(components=components, strict=bool(wanted)))
    require(answer.error_code, answer.error_message)
    found = {}
    for entry in answer.entries or ():
        entity = entity_of(
            {str(e.entity_type): None if e.entity_name is None else str(e.entity_name) for e in entry.entity}
        )
        limits = {str(each.key): float(each.value) for each in entry.values}
        if limits and entity:
            found[entity] = limits
    return dict(sorted(found.items(), key=lambda item: sort_key(item[0])))


def sort_key(entity: Entity) -> list[tuple[str, bool, str]]:
    """Return what sorts entities: names before the default of their kind."""
    return [(kind, name is None, name or "") for kind, name in entity]


def change_quotas(
    cluster: KafkaCluster,
    entity: Entity,
    limits: Mapping[str, float],
    removed: Sequence[str] = (),
    *,
    validate_only: bool = False,
) -> None:
    """Set these limits of the entity and remove others. Errors as `require`."""
    m = cluster.message(ApiKey.ALTER_CLIENT_QUOTAS)
    ops: list[Any] = [m.make("OpData", key=key, value=float(value), remove=False) for key, value in limits.items()]
    ops += [m.make("OpData", key=key, value=0.0, remove=True) for key in removed]
    parts = tuple(m.make("EntityData", entity_type=kind, entity_name=name) for kind, name in entity)
    entry = m.make("EntryData", entity=parts, ops=tuple(ops))
    cluster.nodes()
    request = m.request(entries=(entry,), validate_only=validate_only)
    (answer,) = cluster.ask(ApiKey.ALTER_CLIENT_QUOTAS, request, cluster.controller).entries
    require(answer.error_code, answer.error_message, shown_entity(entity))


def shown_entity(entity: Entity) -> str:
    """Return the entity as text: `user=alice client-id=<default>`."""
    return " ".join(f"{kind}={'<default>' if name is None else name}" for kind, name in entity)
