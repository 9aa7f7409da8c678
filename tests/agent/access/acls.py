"""ACLs as records of the metadata log."""

from __future__ import annotations

from typing import Any

from headrace.agent.access.authorization.operations import ALLOW, LITERAL, AclOperation, AclResource
from headrace.metastore.log.kip631_records import AccessControlRecord
from headrace.protocol.request import ANONYMOUS


def an_acl(name: str, **other: Any) -> AccessControlRecord:
    """User:alice may read the topic from anywhere; `other` fields differ."""
    usual: dict[str, Any] = {
        "resource_type": AclResource.TOPIC,
        "pattern_type": LITERAL,
        "principal": "User:alice",
        "host": "*",
        "operation": AclOperation.READ,
        "permission_type": ALLOW,
    }
    return AccessControlRecord(resource_name=name, **(usual | other))


def a_grant(operation: AclOperation, name: str, kind: AclResource = AclResource.TOPIC) -> AccessControlRecord:
    """A grant to clients that do not log in."""
    return an_acl(name, operation=operation, resource_type=kind, principal=ANONYMOUS)
