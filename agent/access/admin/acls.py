"""DescribeAcls (key 29), CreateAcls (30) and DeleteAcls (31), versions 1-3.

Place: request fields to AccessControlRecords in the metadata log, and the image back to fields.
Invariant: each creation and each filter gets a separate result; the accepted ones of a request
are appended together. Creating an existing ACL changes nothing. Served also while ACLs are not enforced
(docs/decisions/0018): with Kafka's answer for that case, SECURITY_DISABLED, ACLs could not be prepared.
Numbers are Kafka's (org.apache.kafka.common.acl and .resource); 0 is "unknown" and never stored, 1 is "any" and used
only in filters.
Source: KIP-11, KIP-140 (admin requests), KIP-290 (prefixed patterns; MATCH).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from itertools import groupby
from operator import attrgetter
from typing import Any, NamedTuple

from kio.schema.create_acls.v3.request import AclCreation, CreateAclsRequest
from kio.schema.create_acls.v3.response import AclCreationResult
from kio.schema.delete_acls.v3.request import DeleteAclsFilter, DeleteAclsRequest
from kio.schema.delete_acls.v3.response import DeleteAclsFilterResult, DeleteAclsMatchingAcl
from kio.schema.describe_acls.v3.request import DescribeAclsRequest
from kio.schema.describe_acls.v3.response import AclDescription, DescribeAclsResource
from kio.schema.errors import ErrorCode

from headrace.agent.cluster.log_change import PATIENCE_SECONDS, LogChange
from headrace.agent.cluster.view import ClusterView
from headrace.agent.limits.work_slices import ELEMENT_UNITS, WorkSlices
from headrace.metastore.log.image import MetadataImage
from headrace.metastore.log.kip631_records import AccessControlRecord
from headrace.metastore.log.own_records import RemoveAccessControlRecord
from headrace.protocol.errors import admin_error
from headrace.protocol.request import Request, Response
from headrace.protocol.typed import Schema, decode, reply
from headrace.storage.errors import HeadraceError

FILTERS_MAX = 100
"""Limit on different filters of one deletion: each is compared with every ACL, on the listener's loop."""
_PATTERN = attrgetter("resource_type", "resource_name", "pattern_type")
_ENTRY = attrgetter("principal", "host", "operation", "permission_type")
_MATCH_UNITS = 1
"""What it costs to compare a filter with an ACL."""
UNKNOWN = 0
ANY = 1
CLUSTER = 4
RESOURCE_TYPES = range(2, 8)
"""Topic, group, cluster, transactional id, delegation token, user."""
OPERATIONS = range(2, 16)
"""Operations from ALL to TWO_PHASE_COMMIT."""
PERMISSIONS = range(2, 4)
"""Deny, allow."""
MATCH = 2
LITERAL = 3
PREFIXED = 4
WILDCARD = "*"
CLUSTER_NAME = "kafka-cluster"


def _order_of(acl: AccessControlRecord) -> tuple[Any, Any]:
    return _PATTERN(acl), _ENTRY(acl)


class AclFilter(NamedTuple):
    """Kafka's AclBindingFilter: None and ANY match everything."""

    resource_type: int
    resource_name: str | None
    pattern_type: int
    principal: str | None
    host: str | None
    operation: int
    permission_type: int

    def why_refused(self) -> str | None:
        """Return None for a filter that this software fully understands."""
        elements = (
            ("resource type", self.resource_type, RESOURCE_TYPES),
            ("pattern type", self.pattern_type, range(MATCH, PREFIXED + 1)),
            ("operation", self.operation, OPERATIONS),
            ("permission type", self.permission_type, PERMISSIONS),
        )
        return next((f"unknown {what}: {value}" for what, value, known in elements if value not in (ANY, *known)), None)

    def matches(self, acl: AccessControlRecord) -> bool:
        """Return whether the filter matches the ACL."""
        return (
            self.resource_type in (ANY, acl.resource_type)
            and self._names(acl)
            and self.principal in (None, acl.principal)
            and self.host in (None, acl.host)
            and self.operation in (ANY, acl.operation)
            and self.permission_type in (ANY, acl.permission_type)
        )

    def _names(self, acl: AccessControlRecord) -> bool:
        """MATCH selects every pattern that includes the name; the other types select the pattern itself."""
        name, pattern = self.resource_name, acl.resource_name or ""
        if self.pattern_type not in (ANY, MATCH, acl.pattern_type):
            return False
        if name is None:
            return True
        if self.pattern_type != MATCH:
            return name == pattern
        return name.startswith(pattern) if acl.pattern_type == PREFIXED else pattern in (name, WILDCARD)


def why_illegal(acl: AccessControlRecord) -> str | None:
    """Return None for an ACL that may be created."""
    if acl.resource_type not in RESOURCE_TYPES:
        return f"invalid resource type: {acl.resource_type}"
    if acl.pattern_type not in (LITERAL, PREFIXED):
        return f"invalid pattern type: {acl.pattern_type}"
    if acl.operation not in OPERATIONS:
        return f"invalid operation: {acl.operation}"
    if acl.permission_type not in PERMISSIONS:
        return f"invalid permission type: {acl.permission_type}"
    if not acl.resource_name:
        return "resource name should not be empty"
    if acl.resource_type == CLUSTER and acl.resource_name != CLUSTER_NAME:
        return f"the only valid name for the cluster resource is {CLUSTER_NAME}"
    if ":" not in acl.principal:
        return f"principal is not of the form type:name: {acl.principal}"
    return None


class DescribeAcls:
    """The handler of key 29."""

    def __init__(self, cluster: ClusterView) -> None:
        self._cluster = cluster

    async def __call__(self, request: Request) -> Response:
        schema, entity = decode(request, DescribeAclsRequest)
        wanted = _filter(entity)
        code, message, found = ErrorCode.none, wanted.why_refused(), list[AccessControlRecord]()
        slices = WorkSlices()
        if message is not None:
            code = ErrorCode.invalid_request
        else:
            try:
                found = await _found(await self._cluster.catch_up(), wanted, slices)
            except HeadraceError as error:
                code, message = ErrorCode(admin_error(error)), str(error)
        resources = []
        for _, same in groupby(found, _PATTERN):
            acls = list(same)
            resources.append(await _resource(schema, acls, slices))
            await slices.did(ELEMENT_UNITS)
        response = schema.response(error_code=code, error_message=message, resources=tuple(resources))
        return reply(request, response)


class CreateAcls:
    """The handler of key 30."""

    def __init__(self, change: LogChange) -> None:
        self._change = change

    async def __call__(self, request: Request) -> Response:
        schema, entity = decode(request, CreateAclsRequest)
        wanted = [_record(creation) for creation in entity.creations]
        reasons = [why_illegal(acl) for acl in wanted]
        legal = {acl for acl, reason in zip(wanted, reasons, strict=True) if reason is None}
        code, message = await self._change.append(
            lambda image: _in_order(legal - image.access_controls), request.received_at + PATIENCE_SECONDS
        )
        results = tuple(
            schema.make(
                AclCreationResult,
                error_code=code if reason is None else ErrorCode.invalid_request,
                error_message=reason or message,
            )
            for reason in reasons
        )
        return reply(request, schema.response(results=results))


class DeleteAcls:
    """The handler of key 31."""

    def __init__(self, change: LogChange) -> None:
        self._change = change

    async def __call__(self, request: Request) -> Response:
        schema, entity = decode(request, DeleteAclsRequest)
        filters = [_filter(asked) for asked in entity.filters]
        distinct = list(dict.fromkeys(filters))
        refused = {wanted: reason for wanted in distinct[:FILTERS_MAX] if (reason := wanted.why_refused())}
        refused |= dict.fromkeys(distinct[FILTERS_MAX:], f"more than {FILTERS_MAX} filters in one request")
        matching: dict[AclFilter, list[AccessControlRecord]] = {}

        def judge(image: MetadataImage) -> list[RemoveAccessControlRecord]:
            matching.clear()
            matching.update((wanted, _matching(image, wanted)) for wanted in distinct if wanted not in refused)
            doomed = {acl for acls in matching.values() for acl in acls}
            return [RemoveAccessControlRecord(**asdict(acl)) for acl in _in_order(doomed)]

        code, message = await self._change.append(judge, request.received_at + PATIENCE_SECONDS)
        results = []
        for wanted in filters:
            reason = refused.get(wanted)
            gone = matching.get(wanted, []) if code is ErrorCode.none else []
            results.append(
                schema.make(
                    DeleteAclsFilterResult,
                    error_code=code if reason is None else ErrorCode.invalid_request,
                    error_message=reason or message,
                    matching_acls=tuple(_deleted(schema, acl) for acl in gone),
                )
            )
        return reply(request, schema.response(filter_results=tuple(results)))


def _filter(asked: DescribeAclsRequest | DeleteAclsFilter) -> AclFilter:
    return AclFilter(
        asked.resource_type_filter,
        asked.resource_name_filter,
        asked.pattern_type_filter,
        asked.principal_filter,
        asked.host_filter,
        asked.operation,
        asked.permission_type,
    )


def _record(creation: AclCreation) -> AccessControlRecord:
    return AccessControlRecord(
        resource_type=creation.resource_type,
        resource_name=creation.resource_name,
        pattern_type=creation.resource_pattern_type,
        principal=creation.principal,
        host=creation.host,
        operation=creation.operation,
        permission_type=creation.permission_type,
    )


def _in_order(acls: Iterable[AccessControlRecord]) -> list[AccessControlRecord]:
    """ACLs of one pattern are next to each other."""
    return sorted(acls, key=_order_of)


def _matching(image: MetadataImage, wanted: AclFilter) -> list[AccessControlRecord]:
    return _in_order(acl for acl in image.access_controls if wanted.matches(acl))


async def _found(image: MetadataImage, wanted: AclFilter, slices: WorkSlices) -> list[AccessControlRecord]:
    """The same in slices: a cluster may have 100,000 ACLs."""
    found = []
    for acl in image.access_controls:
        if wanted.matches(acl):
            found.append(acl)
        await slices.did(_MATCH_UNITS)
    return await slices.in_order(found, _order_of, ELEMENT_UNITS)


async def _resource(schema: Schema, acls: list[AccessControlRecord], slices: WorkSlices) -> DescribeAclsResource:
    """All ACLs of one pattern."""

    def shown(acl: AccessControlRecord) -> AclDescription:
        return schema.make(
            AclDescription,
            principal=acl.principal,
            host=acl.host,
            operation=acl.operation,
            permission_type=acl.permission_type,
        )

    resource_type, resource_name, pattern_type = _PATTERN(acls[0])
    return schema.make(
        DescribeAclsResource,
        resource_type=resource_type,
        resource_name=resource_name,
        pattern_type=pattern_type,
        acls=await slices.each(shown, acls),
    )


def _deleted(schema: Schema, acl: AccessControlRecord) -> DeleteAclsMatchingAcl:
    return schema.make(DeleteAclsMatchingAcl, error_code=ErrorCode.none, error_message=None, **asdict(acl))
