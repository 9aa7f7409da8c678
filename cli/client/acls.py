"""ACLs: list, create and delete them, by Kafka's words and numbers.

Place: under `headrace acls` and `headrace cluster apply`.
Invariant: a list of ACLs is sent in one request. Creating an ACL that exists and deleting one that does not exist
change nothing.
Source: KIP-140 (admin requests), KIP-290 (patterns), org.apache.kafka.common.acl and .resource.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from kio.schema.errors import ErrorCode

from headrace.protocol.api_keys import ApiKey
from headrace.protocol.client.cluster import KafkaCluster, require
from headrace.storage.errors import InvalidError

RESOURCES = {"topic": 2, "group": 3, "cluster": 4, "transactionalId": 5, "delegationToken": 6, "user": 7}
OPERATIONS = {
    "All": 2,
    "Read": 3,
    "Write": 4,
    "Create": 5,
    "Delete": 6,
    "Alter": 7,
    "Describe": 8,
    "ClusterAction": 9,
    "DescribeConfigs": 10,
    "AlterConfigs": 11,
    "IdempotentWrite": 12,
    "CreateTokens": 13,
    "DescribeTokens": 14,
    "TwoPhaseCommit": 15,
}
PERMISSIONS = {"deny": 2, "allow": 3}
PATTERNS = {"literal": 3, "prefix": 4}
ANY, MATCH = 1, 2
"""Used in filters: everything; every pattern that applies to the name."""
CLUSTER_NAME = "kafka-cluster"
"""The name of the only resource of the type `cluster`."""
EVERY_HOST = "*"


class Acl(NamedTuple):
    """One ACL, in the words of RESOURCES, PATTERNS, OPERATIONS and PERMISSIONS. Sorted, DENY is after ALLOW."""

    resource: str
    name: str
    pattern: str
    principal: str
    host: str
    operation: str
    permission: str


class WantedAcls(NamedTuple):
    """A filter for ACLs that are listed or deleted: None and ANY match all."""

    resource: int = ANY
    name: str | None = None
    pattern: int = ANY
    principal: str | None = None
    host: str | None = None
    operation: int = ANY
    permission: int = ANY

    @classmethod
    def of(cls, acl: Acl) -> WantedAcls:
        """Return the filter that matches this ACL alone."""
        return cls(
            RESOURCES[acl.resource],
            acl.name,
            PATTERNS[acl.pattern],
            acl.principal,
            acl.host,
            OPERATIONS[acl.operation],
            PERMISSIONS[acl.permission],
        )


class SecurityDisabledError(InvalidError):
    """The cluster has no authorizer, so it has no ACLs either."""


def list_acls(cluster: KafkaCluster, wanted: WantedAcls) -> list[Acl]:
    """Return the ACLs that match, sorted. SecurityDisabledError if the cluster has no authorizer."""
    m = cluster.message(ApiKey.DESCRIBE_ACLS)
    answer = cluster.ask(ApiKey.DESCRIBE_ACLS, m.request(**_fields(wanted)))
    if answer.error_code is ErrorCode.security_disabled:
        raise SecurityDisabledError("the cluster has no authorizer, and so no ACLs")
    require(answer.error_code, answer.error_message)
    return sorted(
        _acl(resource, each, resource.pattern_type) for resource in answer.resources for each in resource.acls
    )


def create_acls(cluster: KafkaCluster, acls: Sequence[Acl]) -> None:
    """Create them all. The error names the first ACL that was refused; the others are created."""
    m = cluster.message(ApiKey.CREATE_ACLS)
    creations = tuple(
        m.make(
            "AclCreation",
            resource_type=RESOURCES[acl.resource],
            resource_name=acl.name,
            resource_pattern_type=PATTERNS[acl.pattern],
            principal=acl.principal,
            host=acl.host,
            operation=OPERATIONS[acl.operation],
            permission_type=PERMISSIONS[acl.permission],
        )
        for acl in acls
    )
    cluster.nodes()
    answer = cluster.ask(ApiKey.CREATE_ACLS, m.request(creations=creations), cluster.controller)
    for acl, result in zip(acls, answer.results, strict=True):
        require(result.error_code, result.error_message, shown_acl(acl))


def delete_acls(cluster: KafkaCluster, filters: Iterable[WantedAcls]) -> list[Acl]:
    """Delete all ACLs that match one of the filters, and return them."""
    m = cluster.message(ApiKey.DELETE_ACLS)
    wanted = tuple(m.make("DeleteAclsFilter", **_fields(each)) for each in filters)
    cluster.nodes()
    answer = cluster.ask(ApiKey.DELETE_ACLS, m.request(filters=wanted), cluster.controller)
    found: set[Acl] = set()
    for result in answer.filter_results:
        require(result.error_code, result.error_message)
        for each in result.matching_acls:
            require(each.error_code, each.error_message, each.resource_name)
            found.add(_acl(each, each, each.pattern_type))
    return sorted(found)


def shown_acl(acl: Acl) -> str:
    """Return the ACL as a line: `allow User:a Read topic literal:orders from *`."""
    return f"{acl.permission} {acl.principal} {acl.operation} {acl.resource} {acl.pattern}:{acl.name} from {acl.host}"


def word_of(words: dict[str, int], number: int) -> str:
    """Return the word of a number; the number itself, if a newer cluster has more words."""
    return next((word for word, each in words.items() if each == number), str(number))


_FILTERED = ("resource_type", "resource_name", "pattern_type", "principal", "host")


def _fields(wanted: WantedAcls) -> dict[str, Any]:
    values = zip((*_FILTERED, "operation", "permission_type"), wanted, strict=True)
    return {f"{name}_filter" if name in _FILTERED else name: value for name, value in values}


def _acl(resource: Any, entry: Any, pattern: int) -> Acl:
    return Acl(
        word_of(RESOURCES, resource.resource_type),
        str(resource.resource_name),
        word_of(PATTERNS, pattern),
        str(entry.principal),
        str(entry.host),
        word_of(OPERATIONS, entry.operation),
        word_of(PERMISSIONS, entry.permission_type),
    )
