"""DescribeClientQuotas (key 48) and AlterClientQuotas (49), versions 0-1.

Place: request fields to QuotaRecords in the metadata log, and the image back to fields.
Invariant: each entity gets a separate result and is changed completely or not at all; the accepted ones of a request
are appended together. agent/access/quotas enforces them (docs/decisions/0057).
An entity is a tuple of parts ordered by type, as in the image; the name None is the default of its type.
Source: KIP-546, KIP-612 (ip); Kafka's ClientQuotaControlManager and ClientQuotasImage.
"""

from __future__ import annotations

import ipaddress
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from kio.schema.alter_client_quotas.v1.request import AlterClientQuotasRequest, OpData
from kio.schema.alter_client_quotas.v1.request import EntityData as AskedEntityData
from kio.schema.alter_client_quotas.v1.response import EntryData as AlteredEntry
from kio.schema.describe_client_quotas.v1.request import DescribeClientQuotasRequest
from kio.schema.describe_client_quotas.v1.response import EntityData as AnsweredEntityData
from kio.schema.describe_client_quotas.v1.response import EntryData as DescribedEntry
from kio.schema.describe_client_quotas.v1.response import ValueData
from kio.schema.errors import ErrorCode

from headrace.agent.cluster.log_change import PATIENCE_SECONDS, LogChange, Verdict
from headrace.agent.cluster.view import ClusterView
from headrace.agent.limits.work_slices import ELEMENT_UNITS, WorkSlices
from headrace.metastore.log.image import MetadataImage
from headrace.metastore.log.kip631_records import EntityData, QuotaRecord
from headrace.protocol.errors import admin_error
from headrace.protocol.request import Request, Response
from headrace.protocol.typed import Schema, decode, reply
from headrace.storage.errors import HeadraceError

USER, CLIENT_ID, IP = "user", "client-id", "ip"
EXACT, DEFAULT, SPECIFIED = 0, 1, 2
_ENTRY_UNITS = 4 * ELEMENT_UNITS
"""What it costs to show the quotas of one entity."""
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


class DescribeClientQuotas:
    """The handler of key 48."""

    def __init__(self, cluster: ClusterView) -> None:
        self._cluster = cluster

    async def __call__(self, request: Request) -> Response:
        schema, entity = decode(request, DescribeClientQuotasRequest)
        components = [Component(asked.entity_type, asked.match_type, asked.match) for asked in entity.components]
        code, message, entries = ErrorCode.none, why_no_filter(components), None
        slices = WorkSlices()
        if message is not None:
            code = ErrorCode.invalid_request
        else:
            try:
                quotas = (await self._cluster.catch_up()).quotas
            except HeadraceError as error:
                code, message = ErrorCode(admin_error(error)), str(error)
            else:
                judged = await slices.each(
                    lambda owner: (owner, is_meant(components, owner, strict=entity.strict)), quotas, 1
                )
                found = await slices.in_order([owner for owner, meant in judged if meant], _sort_key, ELEMENT_UNITS)
                entries = await slices.each(lambda owner: _described(schema, owner, quotas[owner]), found, _ENTRY_UNITS)
        response = schema.response(error_code=code, error_message=message, entries=entries)
        return reply(request, response)


class AlterClientQuotas:
    """The handler of key 49."""

    def __init__(self, change: LogChange) -> None:
        self._change = change

    async def __call__(self, request: Request) -> Response:
        schema, entity = decode(request, AlterClientQuotasRequest)
        owners = [_entity(entry.entity) for entry in entity.entries]
        times = Counter(owners)
        refused = [_refusal(own, entry.ops, times[own]) for own, entry in zip(owners, entity.entries, strict=True)]
        accepted = [
            (own, entry.ops) for own, entry, no in zip(owners, entity.entries, refused, strict=True) if no is None
        ]
        verdict = Verdict()
        if not entity.validate_only:
            deadline = request.received_at + PATIENCE_SECONDS
            verdict = await self._change.append(
                lambda image: [record for own, ops in accepted for record in _records(image, own, ops)], deadline
            )
        entries = tuple(
            _altered(schema, entry.entity, no or verdict) for entry, no in zip(entity.entries, refused, strict=True)
        )
        return reply(request, schema.response(entries=entries))


def _entity(parts: Iterable[AskedEntityData]) -> Entity:
    return entity_of([EntityData(entity_type=part.entity_type, entity_name=part.entity_name) for part in parts])


def _refusal(entity: Entity, ops: Sequence[OpData], times: int) -> Verdict | None:
    """The reason why the entity is not changed."""
    reason = why_no_entity(entity)
    if reason is None and times > 1:
        reason = "duplicate entity"
    if reason is None and len({op.key for op in ops}) < len(ops):
        reason = "duplicate quota key"
    if reason is None:
        judged = (why_no_quota(entity, op.key, op.value) for op in ops if not op.remove)
        reason = next((found for found in judged if found), None)
    return None if reason is None else Verdict(ErrorCode.invalid_request, reason)


def _records(image: MetadataImage, entity: Entity, ops: Sequence[OpData]) -> list[QuotaRecord]:
    """The records to append: none for a value that is already set, or that does not exist and is to be removed."""
    old: Mapping[str, float] = image.quotas.get(entity, {})
    return [
        QuotaRecord(entity=entity, key=op.key, value=0.0 if op.remove else op.value, remove=op.remove)
        for op in ops
        if old.get(op.key) != (None if op.remove else op.value)
    ]


def _sort_key(entity: Entity) -> list[tuple[str, bool, str]]:
    """Defaults sort after names."""
    return [(part.entity_type, part.entity_name is None, part.entity_name or "") for part in entity]


def _described(schema: Schema, entity: Entity, values: Mapping[str, float]) -> DescribedEntry:
    return schema.make(
        DescribedEntry,
        entity=_parts(schema, entity),
        values=tuple(schema.make(ValueData, key=key, value=value) for key, value in sorted(values.items())),
    )


def _altered(schema: Schema, entity: Any, verdict: Verdict) -> AlteredEntry:
    return schema.make(
        AlteredEntry, error_code=verdict.code, error_message=verdict.message, entity=_parts(schema, entity)
    )


def _parts(schema: Schema, entity: Any) -> tuple[AnsweredEntityData, ...]:
    return tuple(
        schema.make(AnsweredEntityData, entity_type=part.entity_type, entity_name=part.entity_name) for part in entity
    )


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
