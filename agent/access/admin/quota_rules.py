"""Validates quota entities and values, and matches filters with entities. Pure.

Place: under agent/access/admin/client_quotas.py.
Invariant: an entity is a tuple of parts ordered by type, as in the image; the name None is
the default of its type.
Source: KIP-546, KIP-612 (ip); Kafka's ClientQuotaControlManager and ClientQuotasImage.
"""

from __future__ import annotations

import ipaddress
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from headrace.metastore.log.kip631_records import EntityData

USER, CLIENT_ID, IP = "user", "client-id", "ip"
EXACT, DEFAULT, SPECIFIED = 0, 1, 2
FRACTION_MAX = 1e-6
"""Tolerance for a whole number, because it is sent as a double."""

_CLIENT_KEYS: Mapping[str, float | None] = {
    "producer_byte_rate": 2.0**63 - 1,
    "consumer_byte_rate": 2.0**63 - 1,
    "request_percentage": None,
    "controller_mutation_rate": None,
}
"""Key -> the largest whole number that is accepted; None: any positive number."""
_IP_KEYS: Mapping[str, float | None] = {"connection_creation_rate": 2.0**31 - 1}

Entity = tuple[EntityData, ...]


def entity_of(parts: Sequence[EntityData]) -> Entity:
    """The parts in the order of the image."""
    return tuple(sorted(parts, key=lambda part: part.entity_type))


def why_no_entity(parts: Sequence[EntityData]) -> str | None:
    """Return None for an entity that can have quotas."""
    types = [part.entity_type for part in parts]
    if not types:
        return "empty client quota entity"
    for part in parts:
        if part.entity_type not in (USER, CLIENT_ID, IP):
            return f"unhandled client quota entity type: {part.entity_type}"
        if part.entity_name == "":
            return f"empty {part.entity_type} is not supported"
        if part.entity_type == IP and part.entity_name is not None and not _is_address(part.entity_name):
            return f"not an ip address: {part.entity_name}"
    if len(set(types)) < len(types):
        return "duplicate entity type"
    if IP in types and len(types) > 1:
        return "an ip entity cannot be combined with user or client-id"
    return None


def why_no_quota(entity: Entity, key: str, value: float) -> str | None:
    """Return None for a value that the entity may have."""
    keys = _IP_KEYS if entity[0].entity_type == IP else _CLIENT_KEYS
    if key not in keys:
        return f"invalid configuration key: {key}"
    if not (math.isfinite(value) and value > 0):
        return f"quota {key} must be greater than 0"
    largest = keys[key]
    if largest is not None and value > largest:
        return f"proposed value for {key} is too large"
    if largest is not None and abs(round(value) - value) > FRACTION_MAX:
        return f"{key} cannot be a fractional value"
    return None


class Component(NamedTuple):
    """A filter's condition for one entity type. `match` is the name, only for EXACT."""

    entity_type: str
    match_type: int
    match: str | None

    def why_refused(self) -> str | None:
        """Return None for a valid component."""
        if self.entity_type not in (USER, CLIENT_ID, IP):
            return f"unsupported entity type: {self.entity_type}"
        if self.match_type not in (EXACT, DEFAULT, SPECIFIED):
            return f"unknown match type: {self.match_type}"
        if (self.match_type == EXACT) == (self.match is None):
            return f"match type and match string contradict each other: entity_type={self.entity_type}"
        return None

    def matches(self, entity: Entity) -> bool:
        """Return whether the entity has a matching part; SPECIFIED matches any name, and the default."""
        names = [part.entity_name for part in entity if part.entity_type == self.entity_type]
        return bool(names) and (self.match_type == SPECIFIED or names[0] == self.match)


def why_no_filter(components: Sequence[Component]) -> str | None:
    """Return None for a valid filter."""
    types = [component.entity_type for component in components]
    if len(set(types)) < len(types):
        return "an entity type cannot appear more than once in the filter"
    if IP in types and len(types) > 1:
        return "an ip component cannot be combined with user or client-id"
    return next((reason for component in components if (reason := component.why_refused())), None)


def is_meant(components: Sequence[Component], entity: Entity, *, strict: bool) -> bool:
    """Return whether every component matches; strict: and the entity has no other parts."""
    if strict and len(entity) != len(components):
        return False
    return all(component.matches(entity) for component in components)


def _is_address(text: str) -> bool:
    """Kafka also accepts host names; here a quota never waits for a resolver."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True
