"""Audits administrative requests: one line per resource that a request changed, or was refused to change.

Place: around the handlers that agent/apis/api_row.py registers; the rows of agent/serve/handlers.py name these
functions.
Invariant: what a handler answers passes unchanged. A request that another agent forwarded is audited there, with its
client's connection, and not a second time. Names of configs are in the log, values are not. A check without a change
(validate_only) is no line.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from kio.schema.errors import ErrorCode

from headrace.agent.access.audit import AuditLog
from headrace.protocol.request import Request, RequestHandler, Response
from headrace.protocol.scale_topic import (
    ScaleStep,
    decode_scale_request,
)
from headrace.protocol.set_partition_count import (
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


Changes = Callable[[Request, Response], Iterable[Change]]


def _of_entities(find: Callable[[Any, Any], Iterable[Change]]) -> Changes:
    """Changes found in the entities of a request and its response."""

    def found(request: Request, response: Response) -> Iterable[Change]:
        _, asked = decode(request)
        answer = entity_of(request, response)
        return () if getattr(asked, "validate_only", False) or answer is None else find(asked, answer)

    return found


@_of_entities
def topics(request: Any, response: Any) -> Iterator[Change]:
    for topic in response.topics:
        yield Change(f"TOPIC:{topic.name}", topic.error_code)


@_of_entities
def deleted_topics(request: Any, response: Any) -> Iterator[Change]:
    for topic in response.responses:
        named = topic.name if topic.name is not None else f"id={topic.topic_id}"
        yield Change(f"TOPIC:{named}", topic.error_code)


@_of_entities
def deleted_records(request: Any, response: Any) -> Iterator[Change]:
    for topic in response.topics:
        for partition in topic.partitions:
            before = f"before offset {partition.low_watermark}"
            yield Change(f"TOPIC:{topic.name}", partition.error_code, f"partition {partition.partition_index} {before}")


@_of_entities
def written_markers(request: Any, response: Any) -> Iterator[Change]:
    for marker in response.markers:
        for topic in marker.topics:
            for partition in topic.partitions:
                detail = (
                    f"partition {partition.partition_index} transaction of producer id {marker.producer_id} aborted"
                )
                yield Change(f"TOPIC:{topic.name}", partition.error_code, detail)


@_of_entities
def partitions(request: Any, response: Any) -> Iterator[Change]:
    counts = {topic.name: topic.count for topic in request.topics}
    for topic in response.results:
        yield Change(f"TOPIC:{topic.name}", topic.error_code, f"count {counts.get(topic.name)}")


@_of_entities
def created_acls(request: Any, response: Any) -> Iterator[Change]:
    for acl, result in zip(request.creations, response.results, strict=True):
        kind = _RESOURCE_TYPES.get(acl.resource_type, acl.resource_type)
        yield Change(f"{kind}:{acl.resource_name}", result.error_code, _acl(acl, acl.resource_pattern_type))


@_of_entities
def deleted_acls(request: Any, response: Any) -> Iterator[Change]:
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


@_of_entities
def configs(request: Any, response: Any) -> Iterator[Change]:
    asked = {
        (resource.resource_type, resource.resource_name): ",".join(config.name for config in resource.configs)
        for resource in request.resources
    }
    for resource in response.responses:
        kind = _CONFIG_RESOURCES.get(resource.resource_type, resource.resource_type)
        names = asked.get((resource.resource_type, resource.resource_name))
        yield Change(f"{kind}:{resource.resource_name}", resource.error_code, f"configs {names}")


@_of_entities
def created_token(request: Any, response: Any) -> Iterator[Change]:
    if response.error_code:
        yield Change("DELEGATION_TOKEN:", response.error_code)
    else:
        owner = f"owner {response.principal_type}:{response.principal_name}"
        yield Change(f"DELEGATION_TOKEN:{response.token_id}", response.error_code, owner)


@_of_entities
def altered_token(request: Any, response: Any) -> Iterator[Change]:
    """The request names it by its HMAC, which is a secret."""
    yield Change("DELEGATION_TOKEN:", response.error_code)


@_of_entities
def deleted_groups(request: Any, response: Any) -> Iterator[Change]:
    for group in response.results:
        yield Change(f"GROUP:{group.group_id}", group.error_code)


@_of_entities
def deleted_offsets(request: Any, response: Any) -> Iterator[Change]:
    if response.error_code != ErrorCode.none:
        yield Change(f"GROUP:{request.group_id}", response.error_code, "offsets")
        return
    for topic in response.topics:
        for partition in topic.partitions:
            what = f"offset of {topic.name} partition {partition.partition_index}"
            yield Change(f"GROUP:{request.group_id}", partition.error_code, what)


@_of_entities
def altered_share_offsets(request: Any, response: Any) -> Iterator[Change]:
    if response.error_code != ErrorCode.none:
        yield Change(f"GROUP:{request.group_id}", response.error_code, "share offsets")
        return
    for topic in response.responses:
        for partition in topic.partitions:
            what = f"share offset of {topic.topic_name} partition {partition.partition_index}"
            yield Change(f"GROUP:{request.group_id}", partition.error_code, what)


@_of_entities
def deleted_share_offsets(request: Any, response: Any) -> Iterator[Change]:
    if response.error_code != ErrorCode.none:
        yield Change(f"GROUP:{request.group_id}", response.error_code, "share offsets")
        return
    for topic in response.responses:
        yield Change(f"GROUP:{request.group_id}", topic.error_code, f"share offsets of {topic.topic_name}")


@_of_entities
def elections(request: Any, response: Any) -> Iterator[Change]:
    for topic in response.replica_election_results:
        for partition in topic.partition_result:
            yield Change(f"TOPIC:{topic.topic}", partition.error_code, f"partition {partition.partition_id}")


@_of_entities
def reassignments(request: Any, response: Any) -> Iterator[Change]:
    if response.error_code != ErrorCode.none:
        yield Change("CLUSTER:kafka-cluster", response.error_code)
    for topic in response.responses:
        for partition in topic.partitions:
            yield Change(f"TOPIC:{topic.name}", partition.error_code, f"partition {partition.partition_index}")


@_of_entities
def quotas(request: Any, response: Any) -> Iterator[Change]:
    for asked, entry in zip(request.entries, response.entries, strict=True):
        entity = " ".join(f"{part.entity_type}={part.entity_name or '<default>'}" for part in entry.entity)
        what = " ".join(f"{op.key}={'<removed>' if op.remove else op.value}" for op in asked.ops)
        yield Change(f"CLIENT_QUOTA:{entity}", entry.error_code, what)


@_of_entities
def users(request: Any, response: Any) -> Iterator[Change]:
    for result in response.results:
        deleted = [f"deleted mechanism {d.mechanism}" for d in request.deletions if d.name == result.user]
        changed = [f"set mechanism {u.mechanism}" for u in request.upsertions if u.name == result.user]
        yield Change(f"USER:{result.user}", result.error_code, " ".join(deleted + changed))


@_of_entities
def features(request: Any, response: Any) -> Iterator[Change]:
    results = {result.feature: result.error_code for result in getattr(response, "results", ())}
    for update in request.feature_updates:
        code = response.error_code if response.error_code != ErrorCode.none else results.get(update.feature, 0)
        yield Change(f"FEATURE:{update.feature}", code, f"level {update.max_version_level}")


@_of_entities
def broker(request: Any, response: Any) -> Iterator[Change]:
    yield Change(f"BROKER:{request.broker_id}", response.error_code)


def audited(changes: Changes | None, handler: RequestHandler, audit: AuditLog) -> RequestHandler:
    """The handler, with its changes in the audit log; the same handler for None, an API that changes nothing."""
    return handler if changes is None else _wrapped(handler, audit, changes)


def _wrapped(handler: RequestHandler, audit: AuditLog, find: Changes) -> RequestHandler:
    async def handle(request: Request) -> Response:
        response = await handler(request)
        if not request.connection.is_forwarded:
            for number, change in enumerate(find(request, response)):
                if number % LINES_AT_ONCE == LINES_AT_ONCE - 1:
                    await asyncio.sleep(0)
                audit.changed(request, change.resource, _error(change.error_code), change.detail)
        return response

    return handle


def partition_count(request: Request, response: Response) -> Iterator[Change]:
    asked = decode_count_request(request.body)
    if not asked.validate_only:
        yield Change(f"TOPIC:{asked.topic}", response.entity.error_code, f"count {asked.partition_count}")


def scaled(request: Request, response: Response) -> Iterator[Change]:
    asked = decode_scale_request(request.body)
    if asked.step is not ScaleStep.LOOK and not asked.validate_only:
        yield Change(f"TOPIC:{asked.topic}", response.entity.error_code, asked.step.name.lower())


_NAMES: dict[int, str] = {each.value: each.name.upper() for each in ErrorCode}


def _error(code: int) -> str | None:
    return None if code == ErrorCode.none else _NAMES.get(code, str(code))
