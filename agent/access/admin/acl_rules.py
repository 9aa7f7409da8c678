"""Decides which ACLs a filter matches, and which ACLs may be created. Pure.

Place: under agent/access/admin/acls.py.
Invariant: numbers are Kafka's (org.apache.kafka.common.acl and .resource); 0 is "unknown" and never
stored, 1 is "any" and used only in filters.
Source: KIP-11, KIP-140 (admin requests), KIP-290 (prefixed patterns; MATCH).
"""

from __future__ import annotations

from typing import NamedTuple

from headrace.metastore.log.kip631_records import AccessControlRecord

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
