"""The form of the files that describe a cluster, as types; `headrace cluster schema` prints it as JSON Schema.

Place: under reading.py, which converts each object of a file to one of these types.
Invariant: unknown fields are errors. The schema for editors is generated from these types (docs/operate/
cluster-file.schema.json, compared by a test).
"""

from __future__ import annotations

import json
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

ConfigValue = str | int | float | bool | list[str]
Configs = dict[str, ConfigValue]
Count = Annotated[int, Meta(ge=1, le=2**31 - 1)]
Factor = Annotated[int, Meta(ge=1, le=2**15 - 1)]
Name = Annotated[str, Meta(min_length=1)]
Operation = Literal[
    "All",
    "Read",
    "Write",
    "Create",
    "Delete",
    "Alter",
    "Describe",
    "ClusterAction",
    "DescribeConfigs",
    "AlterConfigs",
    "IdempotentWrite",
    "CreateTokens",
    "DescribeTokens",
    "TwoPhaseCommit",
]


class TopicPart(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True, rename="camel"):
    """A topic. What is not given has the cluster's default."""

    name: Annotated[str, Meta(pattern=r"^[a-zA-Z0-9._-]{1,249}$", description="The topic's name.")]
    partitions: Annotated[
        Count | None,
        Meta(description="Number of partitions. A lower one than the cluster has needs --allow-fewer-partitions."),
    ] = None
    replication_factor: Annotated[
        Factor | None, Meta(description="Used when the topic is created; it cannot be changed later.")
    ] = None
    configs: Annotated[Configs, Meta(description="Topic configs. Those that are not given get their defaults.")] = {}


class UserPart(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True, rename="camel"):
    """A user with a password (SCRAM)."""

    name: Annotated[str, Meta(min_length=1, description="The user's name, without `User:`.")]
    mechanism: Literal["SCRAM-SHA-256", "SCRAM-SHA-512"] = "SCRAM-SHA-512"
    iterations: Annotated[int, Meta(ge=4096, le=16384)] | None = None
    password: Annotated[
        str,
        Meta(
            pattern=r"^\$\{(env|file):[^}]+\}$",
            description="Where the password is: ${file:PATH}, relative to this file, or ${env:NAME}.",
        ),
    ]


class ResourcePart(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True, rename="camel"):
    """What an ACL is about."""

    type: Literal["topic", "group", "cluster", "transactionalId", "delegationToken", "user"]
    name: Annotated[str, Meta(min_length=1, description="Needed for all types but `cluster`; * is any.")] | None = None
    pattern_type: Literal["literal", "prefix"] = "literal"


class AclPart(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True, rename="camel"):
    """ACLs: operations of one principal on one resource."""

    principal: Annotated[str, Meta(pattern=r"^[A-Za-z]+:.+$", description="User:NAME")]
    resource: ResourcePart
    operations: Annotated[list[Operation], Meta(min_length=1)]
    host: Annotated[str, Meta(min_length=1, description="An address; * is any.")] = "*"
    type: Literal["allow", "deny"] = "allow"


class LimitsPart(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Kafka's quotas."""

    producer_byte_rate: float | None = None
    consumer_byte_rate: float | None = None
    request_percentage: float | None = None
    controller_mutation_rate: float | None = None
    connection_creation_rate: float | None = None


class QuotaPart(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True, rename="camel"):
    """Quotas of a user, a client id, both, or an address."""

    user: Name | None = None
    client_id: Name | None = None
    ip: Name | None = None
    defaults: Annotated[
        list[Literal["user", "clientId", "ip"]],
        Meta(description="Kinds for which this is the default: it applies to all that have no separate quotas."),
    ] = []
    limits: LimitsPart


class ClusterFile(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True, rename="camel"):
    """A part of a cluster; a directory of such files describes the whole."""

    topics: list[TopicPart] = []
    users: list[UserPart] = []
    acls: list[AclPart] = []
    quotas: list[QuotaPart] = []
    cluster_configs: Annotated[
        Configs, Meta(description="Configs of all brokers. Those that are not given stay as they are.")
    ] = {}


def json_schema() -> str:
    """Return the JSON Schema of a file."""
    schema = msgspec.json.schema(ClusterFile)
    head = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A Kafka cluster described for `headrace cluster apply`",
    }
    return json.dumps(head | schema, indent=2) + "\n"
