"""Audits administrative requests: one line per resource that a request changed, or was refused to change.

Place: around the handlers of CHANGES; part of agent/handlers.py's table.
Invariant: what a handler answers passes unchanged. A request that another agent forwarded is audited there, with its
client's connection, and not a second time. Names of configs are in the log, values are not. A check without a change
(validate_only) is no line.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from kio.schema.errors import ErrorCode

from headrace.agent.security.audit import AuditLog
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.request import Request, RequestHandler, Response
from headrace.protocol.scale_topic import (
    SCALE_TOPIC_KEY,
    ScaleStep,
    decode_scale_request,
)
from headrace.protocol.set_partition_count import (
    SET_PARTITION_COUNT_KEY,
    decode_count_request,
)
from headrace.protocol.typed import decode, entity_of

LINES_AT_ONCE = 100
"""Then other tasks have a turn."""
_RESOURCE_TYPES = {2: "TOPIC", 3: "GROUP", 4: "CLUSTER", 5: "TRANSACTIONAL_ID", 6: "DELEGATION_TOKEN", 7: "USER"}
_CONFIG_RESOURCES = {2: "TOPIC", 4: "BROKER", 8: "BROKER_LOGGER", 16: "CLIENT_METRICS", 32: "GROUP"}


class Change(NamedTuple):
    """What became of one resource. `detail`: what of it, without values."""

    resource: str
    error_code: int
    detail: str | None = None


Changes = Callable[[Any, Any], Iterable[Change]]
"""From the entities of a request and its response."""


def _topics(request: Any, response: Any) -> Iterator[Change]:
    for topic in response.topics:
        yield Change(f"TOPIC:{topic.name}", topic.error_code)


def _deleted_topics(request: Any, response: Any) -> Iterator[Change]:
    for topic in response.responses:
        named = topic.name if topic.name is not None else f"id={topic.topic_id}"
        yield Change(f"TOPIC:{named}", topic.error_code)


def _deleted_records(request: Any, response: Any) -> Iterator[Change]:
    for topic in response.topics:
        for partition in topic.partitions:
            before = f"before offset {partition.low_watermark}"
            yield Change(f"TOPIC:{topic.name}", partition.error_code, f"partition {partition.partition_index} {before}")


def _written_markers(request: Any, response: Any) -> Iterator[Change]:
    for marker in response.markers:
        for topic in marker.topics:
            for partition in topic.partitions:
                detail = (
                    f"partition {partition.partition_index} transaction of producer id {marker.producer_id} aborted"
                )
                yield Change(f"TOPIC:{topic.name}", partition.error_code, detail)


def _partitions(request: Any, response: Any) -> Iterator[Change]:
    counts = {topic.name: topic.count for topic in request.topics}
    for topic in response.results:
        yield Change(f"TOPIC:{topic.name}", topic.error_code, f"count {counts.get(topic.name)}")


def _created_acls(request: Any, response: Any) -> Iterator[Change]:
    for acl, result in zip(request.creations, response.results, strict=True):
        kind = _RESOURCE_TYPES.get(acl.resource_type, acl.resource_type)
        yield Change(f"{kind}:{acl.resource_name}", result.error_code, _acl(acl, acl.resource_pattern_type))


def _deleted_acls(request: Any, response: Any) -> Iterator[Change]:
    for wanted, result in zip(request.filters, response.filter_results, strict=True):
        if result.error_code != ErrorCode.none:
            name = "*" if wanted.resource_name_filter is None else wanted.resource_name_filter
            yield Change(f"{_RESOURCE_TYPES.get(wanted.resource_type_filter, 'ANY')}:{name}", result.error_code)
        for acl in result.matching_acls:
            kind = _RESOURCE_TYPES.get(acl.resource_type, acl.resource_type)
            yield Change(f"{kind}:{acl.resource_name}", acl.error_code, _acl(acl, acl.pattern_type))


def _acl(acl: Any, pattern_type: int) -> str:
    return (
        f"pattern_type {pattern_type} principal {acl.principal} host {acl.host} operation {acl.operation}"
        f" permission_type {acl.permission_type}"
    )


def _configs(request: Any, response: Any) -> Iterator[Change]:
    asked = {
        (resource.resource_type, resource.resource_name): ",".join(config.name for config in resource.configs)
        for resource in request.resources
    }
    for resource in response.responses:
        kind = _CONFIG_RESOURCES.get(resource.resource_type, resource.resource_type)
        names = asked.get((resource.resource_type, resource.resource_name))
        yield Change(f"{kind}:{resource.resource_name}", resource.error_code, f"configs {names}")


def _created_token(request: Any, response: Any) -> Iterator[Change]:
    if response.error_code:
        yield Change("DELEGATION_TOKEN:", response.error_code)
    else:
        owner = f"owner {response.principal_type}:{response.principal_name}"
        yield Change(f"DELEGATION_TOKEN:{response.token_id}", response.error_code, owner)


def _altered_token(request: Any, response: Any) -> Iterator[Change]:
    """The request names it by its HMAC, which is a secret."""
    yield Change("DELEGATION_TOKEN:", response.error_code)


def _deleted_groups(request: Any, response: Any) -> Iterator[Change]:
    for group in response.results:
        yield Change(f"GROUP:{group.group_id}", group.error_code)


def _deleted_offsets(request: Any, response: Any) -> Iterator[Change]:
    if response.error_code != ErrorCode.none:
        yield Change(f"GROUP:{request.group_id}", response.error_code, "offsets")
        return
    for topic in response.topics:
        for partition in topic.partitions:
            what = f"offset of {topic.name} partition {partition.partition_index}"
            yield Change(f"GROUP:{request.group_id}", partition.error_code, what)


def _elections(request: Any, response: Any) -> Iterator[Change]:
    for topic in response.replica_election_results:
        for partition in topic.partition_result:
            yield Change(f"TOPIC:{topic.topic}", partition.error_code, f"partition {partition.partition_id}")


def _reassignments(request: Any, response: Any) -> Iterator[Change]:
    if response.error_code != ErrorCode.none:
        yield Change("CLUSTER:kafka-cluster", response.error_code)
    for topic in response.responses:
        for partition in topic.partitions:
            yield Change(f"TOPIC:{topic.name}", partition.error_code, f"partition {partition.partition_index}")


def _quotas(request: Any, response: Any) -> Iterator[Change]:
    for asked, entry in zip(request.entries, response.entries, strict=True):
        entity = " ".join(f"{part.entity_type}={part.entity_name or '<default>'}" for part in entry.entity)
        what = " ".join(f"{op.key}={'<removed>' if op.remove else op.value}" for op in asked.ops)
        yield Change(f"CLIENT_QUOTA:{entity}", entry.error_code, what)


def _users(request: Any, response: Any) -> Iterator[Change]:
    for result in response.results:
        deleted = [f"deleted mechanism {d.mechanism}" for d in request.deletions if d.name == result.user]
        changed = [f"set mechanism {u.mechanism}" for u in request.upsertions if u.name == result.user]
        yield Change(f"USER:{result.user}", result.error_code, " ".join(deleted + changed))


def _features(request: Any, response: Any) -> Iterator[Change]:
    results = {result.feature: result.error_code for result in getattr(response, "results", ())}
    for update in request.feature_updates:
        code = response.error_code if response.error_code != ErrorCode.none else results.get(update.feature, 0)
        yield Change(f"FEATURE:{update.feature}", code, f"level {update.max_version_level}")


def _broker(request: Any, response: Any) -> Iterator[Change]:
    yield Change(f"BROKER:{request.broker_id}", response.error_code)


CHANGES: dict[int, Changes] = {
    ApiKey.CREATE_TOPICS: _topics,
    ApiKey.DELETE_TOPICS: _deleted_topics,
    ApiKey.DELETE_RECORDS: _deleted_records,
    ApiKey.WRITE_TXN_MARKERS: _written_markers,
    ApiKey.CREATE_PARTITIONS: _partitions,
    ApiKey.CREATE_ACLS: _created_acls,
    ApiKey.DELETE_ACLS: _deleted_acls,
    ApiKey.ALTER_CONFIGS: _configs,
    ApiKey.INCREMENTAL_ALTER_CONFIGS: _configs,
    ApiKey.CREATE_DELEGATION_TOKEN: _created_token,
    ApiKey.RENEW_DELEGATION_TOKEN: _altered_token,
    ApiKey.EXPIRE_DELEGATION_TOKEN: _altered_token,
    ApiKey.DELETE_GROUPS: _deleted_groups,
    ApiKey.OFFSET_DELETE: _deleted_offsets,
    ApiKey.ELECT_LEADERS: _elections,
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: _reassignments,
    ApiKey.ALTER_CLIENT_QUOTAS: _quotas,
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: _users,
    ApiKey.UPDATE_FEATURES: _features,
    ApiKey.UNREGISTER_BROKER: _broker,
}
"""Every request by which a client changes the cluster, apart from records, groups' members and their offsets."""


def audited(api_key: int, handler: RequestHandler, audit: AuditLog) -> RequestHandler:
    """The handler, with its changes in the audit log; the same handler for an API that changes nothing."""
    if api_key == SET_PARTITION_COUNT_KEY:
        return _wrapped(handler, audit, _changed_count)
    if api_key == SCALE_TOPIC_KEY:
        return _wrapped(handler, audit, _scaled)
    changes = CHANGES.get(api_key)
    return handler if changes is None else _wrapped(handler, audit, lambda *both: _found(changes, *both))


def _wrapped(
    handler: RequestHandler, audit: AuditLog, find: Callable[[Request, Response], Iterable[Change]]
) -> RequestHandler:
    async def handle(request: Request) -> Response:
        response = await handler(request)
        if not request.connection.is_forwarded:
            for number, change in enumerate(find(request, response)):
                if number % LINES_AT_ONCE == LINES_AT_ONCE - 1:
                    await asyncio.sleep(0)
                audit.changed(request, change.resource, _error(change.error_code), change.detail)
        return response

    return handle


def _found(changes: Changes, request: Request, response: Response) -> Iterable[Change]:
    _, asked = decode(request)
    answer = entity_of(request, response)
    return () if getattr(asked, "validate_only", False) or answer is None else changes(asked, answer)


def _changed_count(request: Request, response: Response) -> Iterator[Change]:
    asked = decode_count_request(request.body)
    if not asked.validate_only:
        yield Change(f"TOPIC:{asked.topic}", response.entity.error_code, f"count {asked.partition_count}")


def _scaled(request: Request, response: Response) -> Iterator[Change]:
    asked = decode_scale_request(request.body)
    if asked.step is not ScaleStep.LOOK and not asked.validate_only:
        yield Change(f"TOPIC:{asked.topic}", response.entity.error_code, asked.step.name.lower())


_NAMES: dict[int, str] = {each.value: each.name.upper() for each in ErrorCode}


def _error(code: int) -> str | None:
    return None if code == ErrorCode.none else _NAMES.get(code, str(code))
