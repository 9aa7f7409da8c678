"""DescribeClientQuotas (key 48) and AlterClientQuotas (49), versions 0-1.

Place: request fields to QuotaRecords in the metadata log, and the image back to fields.
Invariant: each entity gets a separate result and is changed completely or not at all; the accepted ones of a request
are appended together. agent/access/quotas enforces them (docs/decisions/0057).
Source: KIP-546, KIP-612; agent/access/admin/quota_rules.py for the rules.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from kio.schema.errors import ErrorCode

from headrace.agent.access.admin.quota_rules import (
    Component,
    Entity,
    entity_of,
    is_meant,
    why_no_entity,
    why_no_filter,
    why_no_quota,
)
from headrace.agent.cluster.log_change import PATIENCE_SECONDS, LogChange, Verdict
from headrace.agent.cluster.view import ClusterView
from headrace.metastore.log.image import MetadataImage
from headrace.metastore.log.kip631_records import EntityData, QuotaRecord
from headrace.protocol.errors import admin_error
from headrace.protocol.request import Request, Response
from headrace.protocol.typed import Schema, decode, reply
from headrace.storage.errors import HeadraceError


class DescribeClientQuotas:
    """The handler of key 48."""

    def __init__(self, cluster: ClusterView) -> None:
        self._cluster = cluster

    async def __call__(self, request: Request) -> Response:
        schema, entity = decode(request)
        components = [Component(asked.entity_type, asked.match_type, asked.match) for asked in entity.components]
        code, message, entries = ErrorCode.none, why_no_filter(components), None
        if message is not None:
            code = ErrorCode.invalid_request
        else:
            try:
                quotas = (await self._cluster.catch_up()).quotas
            except HeadraceError as error:
                code, message = ErrorCode(admin_error(error)), str(error)
            else:
                found = (whose for whose in quotas if is_meant(components, whose, strict=entity.strict))
                entries = tuple(_described(schema, whose, quotas[whose]) for whose in sorted(found, key=_sort_key))
        response = schema.response(error_code=code, error_message=message, entries=entries)
        return reply(request, response)


class AlterClientQuotas:
    """The handler of key 49."""

    def __init__(self, change: LogChange) -> None:
        self._change = change

    async def __call__(self, request: Request) -> Response:
        schema, entity = decode(request)
        whose = [_entity(entry.entity) for entry in entity.entries]
        times = Counter(whose)
        refused = [_refusal(own, entry.ops, times[own]) for own, entry in zip(whose, entity.entries, strict=True)]
        accepted = [
            (own, entry.ops) for own, entry, no in zip(whose, entity.entries, refused, strict=True) if no is None
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


def _entity(parts: Any) -> Entity:
    return entity_of([EntityData(entity_type=part.entity_type, entity_name=part.entity_name) for part in parts])


def _refusal(entity: Entity, ops: Any, times: int) -> Verdict | None:
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


def _records(image: MetadataImage, entity: Entity, ops: Any) -> list[QuotaRecord]:
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


def _described(schema: Schema, entity: Entity, values: Mapping[str, float]) -> Any:
    return schema.make(
        "EntryData",
        entity=_parts(schema, entity),
        values=tuple(schema.make("ValueData", key=key, value=value) for key, value in sorted(values.items())),
    )


def _altered(schema: Schema, entity: Any, verdict: Verdict) -> Any:
    return schema.make(
        "EntryData", error_code=verdict.code, error_message=verdict.message, entity=_parts(schema, entity)
    )


def _parts(schema: Schema, entity: Any) -> tuple[Any, ...]:
    return tuple(
        schema.make("EntityData", entity_type=part.entity_type, entity_name=part.entity_name) for part in entity
    )
