"""The form of the files that describe a cluster, as types; `headrace cluster schema` prints it as JSON Schema.

Place: under reading.py, which converts each object of a file to one of these types. `headrace cluster export` writes
such a file.
Invariant: unknown fields are errors. The schema for editors is generated from these types (docs/operate/
cluster-file.schema.json, compared by a test).
Invariant of a file that is written: reading the file gives the same objects. No cluster shows a password, so each
user refers to a file that you have to make; only then can the description be applied to another cluster.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import groupby
from typing import Annotated, Any, Literal

import msgspec
import yaml
from msgspec import Meta

from headrace.cli.client.quotas import Entity
from headrace.cli.described.diff import shown_limit
from headrace.cli.described.documents import plain_value, quoted_texts
from headrace.cli.described.state import ClusterState
from headrace.storage.client_text import is_control

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


class LinkPart(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True, rename="camel"):
    """A link: topics of another cluster that are copied with their offsets (Headrace only)."""

    name: Annotated[str, Meta(pattern=r"^[a-zA-Z0-9._-]{1,100}$", description="The link's name.")]
    configs: Annotated[
        Configs,
        Meta(
            description="bootstrap.servers, topics, and more (docs/operate/LINKS.md). A secret is"
            " ${env:HEADRACE_LINK_...}, a variable of the workers."
        ),
    ]


class GroupConfigsPart(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True, rename="camel"):
    """The configs of a group. Those that are not given get their defaults."""

    name: Annotated[str, Meta(min_length=1, description="The group's id.")]
    configs: Annotated[Configs, Meta(min_length=1)]


class ClientMetricsPart(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True, rename="camel"):
    """A subscription to client metrics (KIP-714). Configs that are not given get their defaults."""

    name: Annotated[str, Meta(min_length=1, description="The subscription's name.")]
    configs: Annotated[Configs, Meta(min_length=1)]


class ClusterFile(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True, rename="camel"):
    """A part of a cluster; a directory of such files describes the whole."""

    topics: list[TopicPart] = []
    users: list[UserPart] = []
    acls: list[AclPart] = []
    quotas: list[QuotaPart] = []
    cluster_configs: Annotated[
        Configs, Meta(description="Configs of all brokers. Those that are not given stay as they are.")
    ] = {}
    links: list[LinkPart] = []
    group_configs: list[GroupConfigsPart] = []
    client_metrics: list[ClientMetricsPart] = []


def json_schema() -> str:
    """Return the JSON Schema of a file."""
    schema = msgspec.json.schema(ClusterFile)
    head = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A Kafka cluster described for `headrace cluster apply`",
    }
    return json.dumps(head | schema, indent=2) + "\n"


_WORDS = {"user": "user", "client-id": "clientId", "ip": "ip"}


def described_file(state: ClusterState, secrets: str = "secrets") -> str:
    """Return the text of the file. `secrets`: the directory of the users' passwords."""
    sections = {
        "topics": [_topic(name, state) for name in sorted(state.topics)],
        "users": [_user(key, state, secrets) for key in sorted(state.users)],
        "acls": list(_acls(state)),
        "quotas": [_quota(entity, state) for entity in sorted(state.quotas, key=str)],
        "clusterConfigs": quoted_texts(state.configs),
        "links": [_link(name, state) for name in sorted(state.links)],
        "groupConfigs": [{"name": name, "configs": quoted_texts(state.groups[name])} for name in sorted(state.groups)],
        "clientMetrics": [
            {"name": name, "configs": quoted_texts(state.client_metrics[name])} for name in sorted(state.client_metrics)
        ],
    }
    filled = {name: section for name, section in sections.items() if section}
    if not filled:
        return "{}\n"
    return "\n".join(_dump({name: section}) for name, section in filled.items())


def _dump(value: Any) -> str:
    """Return the value as YAML. Control characters that PyYAML writes as they are become escapes, because a terminal
    would obey them.
    """
    text = str(yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=10**6))
    if text.replace("\n", "").isprintable():
        return text
    return "".join(f"\\U{ord(each):08x}" if each != "\n" and is_control(each) else each for each in text)


class _Dumper(yaml.SafeDumper):  # type: ignore[misc]
    """Writes no anchors, and lists indented below their key."""

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)


def _text(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    """Text that documents.py would read as another type gets quotes."""
    quotes = None if isinstance(plain_value(text), str) else "'"
    if any(map(is_control, text)):
        quotes = '"'  # where _dump may write such characters by their numbers
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=quotes)


_Dumper.add_representer(str, _text)


def _topic(name: str, state: ClusterState) -> dict[str, Any]:
    topic = state.topics[name]
    found: dict[str, Any] = {
        "name": name,
        "partitions": topic.partitions,
        "replicationFactor": topic.replication_factor,
    }
    if topic.configs:
        found["configs"] = quoted_texts(topic.configs)
    return found


def _user(key: tuple[str, str], state: ClusterState, secrets: str) -> dict[str, Any]:
    name, mechanism = key
    return {
        "name": name,
        "mechanism": mechanism,
        "iterations": state.users[key].iterations,
        "password": f"${{file:{secrets}/{name}}}",
    }


def _acls(state: ClusterState) -> Iterator[dict[str, Any]]:
    """One entry for all operations of a principal on a resource."""
    ordered = sorted(state.acls, key=lambda acl: (acl.principal, acl.permission, *acl))
    for (principal, permission, kind, name, pattern, host), acls in groupby(
        ordered, key=lambda acl: (acl.principal, acl.permission, acl.resource, acl.name, acl.pattern, acl.host)
    ):
        resource = {"type": kind, "name": name, "patternType": pattern}
        operations = [acl.operation for acl in acls]
        yield {
            "principal": principal,
            "type": permission,
            "resource": resource,
            "host": host,
            "operations": operations,
        }


def _quota(entity: Entity, state: ClusterState) -> dict[str, Any]:
    found: dict[str, Any] = {_WORDS[kind]: name for kind, name in entity if name is not None}
    if defaults := [_WORDS[kind] for kind, name in entity if name is None]:
        found["defaults"] = defaults
    limits = state.quotas[entity]
    found["limits"] = {key: _number(limits[key]) for key in sorted(limits)}
    return found


def _link(name: str, state: ClusterState) -> dict[str, Any]:
    """Secrets are variables of the workers, which you have to set."""
    found = state.links[name]
    shown = {key: value if value is not None else secret_variable(name, key) for key, value in found.items()}
    return {"name": name, "configs": quoted_texts(shown)}


def secret_variable(link: str, config: str) -> str:
    """Return the reference to a secret of a link that a file has: ${env:HEADRACE_LINK_OLD_SASL_PASSWORD}."""
    return f"${{env:{re.sub('[^A-Z0-9]', '_', f'HEADRACE_LINK_{link}_{config}'.upper())}}}"


def _number(value: float) -> float:
    text = shown_limit(value)
    return int(text) if text.lstrip("-").isdigit() else value
