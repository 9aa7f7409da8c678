"""Kafka's operations and resource types, by their numbers in requests and records.

Source: org.apache.kafka.common.acl.AclOperation and .resource.ResourceType; AclEntry.supportedOperations.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable

NOT_ASKED = -(2**31)
"""The value of authorized operations in an answer, if they were not requested."""


class AclOperation(enum.IntEnum):
    """AclOperation."""

    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


class AclResource(enum.IntEnum):
    """AclResource."""

    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


CLUSTER_NAME = "kafka-cluster"
"""The only resource of type CLUSTER."""
DENY = 2
ALLOW = 3
"""AclPermissionType."""
LITERAL = 3
PREFIXED = 4
"""PatternType."""
WILDCARD = "*"

SUPPORTED: dict[AclResource, tuple[AclOperation, ...]] = {
    AclResource.TOPIC: (
        AclOperation.READ,
        AclOperation.WRITE,
        AclOperation.CREATE,
        AclOperation.DELETE,
        AclOperation.ALTER,
        AclOperation.DESCRIBE,
        AclOperation.DESCRIBE_CONFIGS,
        AclOperation.ALTER_CONFIGS,
    ),
    AclResource.GROUP: (
        AclOperation.READ,
        AclOperation.DELETE,
        AclOperation.DESCRIBE,
        AclOperation.DESCRIBE_CONFIGS,
        AclOperation.ALTER_CONFIGS,
    ),
    AclResource.CLUSTER: (
        AclOperation.CREATE,
        AclOperation.ALTER,
        AclOperation.DESCRIBE,
        AclOperation.CLUSTER_ACTION,
        AclOperation.DESCRIBE_CONFIGS,
        AclOperation.ALTER_CONFIGS,
        AclOperation.IDEMPOTENT_WRITE,
    ),
}
"""The operations that answers with authorized operations (KIP-430) name."""


def bits(operations: Iterable[AclOperation]) -> int:
    """Authorized operations as answers have them: bit n is the operation n."""
    return sum(1 << operation for operation in operations)
