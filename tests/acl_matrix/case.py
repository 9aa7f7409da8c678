"""A row of the matrix of __main__.py: a request, the grants that it needs, and how it is made in any version.

Place: under cases.py and data_cases.py.
Invariant: `needs` is exactly what Kafka asks for; `codes` are the errors that a client without any grant gets.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import Field, fields, is_dataclass
from typing import Any, NamedTuple, get_args, get_origin, get_type_hints

from headrace.agent.access.authorization.operations import CLUSTER_NAME, AclOperation, AclResource
from headrace.protocol.answers import empty_value, is_required

TOPIC, NEW_TOPIC, OLD_TOPIC, GROUP, TRANSACTION = "acl-topic", "acl-new", "acl-old", "acl-group", "acl-transaction"
CONSUMER_GROUP, OWNER = "acl-consumer-group", "User:owner"
SECOND = datetime.timedelta(seconds=1)


class Need(NamedTuple):
    """One grant."""

    operation: AclOperation
    resource_type: AclResource
    name: str = CLUSTER_NAME


class Case(NamedTuple):
    """One request. `values` may have fields of several versions; `counted` is the path of an array of the answer that
    has fewer elements without a grant. `version_min`: the first version that can say it."""

    label: str
    api_key: int
    values: Mapping[str, Any]
    needs: tuple[Need, ...]
    codes: frozenset[str]
    counted: str = ""
    version_min: int = 0
    version_max: int = 1_000
    """The last version that asks for the same."""
    opening: tuple[int, Mapping[str, Any]] | None = None
    """API and values of a request that is sent before it on the same connection; its answer is not judged."""


def build(entity_type: Any, values: Mapping[str, Any]) -> Any:
    """An entity of kio with these values; fields of other versions are left out, missing ones are empty."""
    hints = get_type_hints(entity_type)
    return entity_type(
        **{
            field.name: _value(field, hints[field.name], values)
            for field in fields(entity_type)
            if field.name in values or is_required(field)
        }
    )


def _value(field: Field[Any], hint: Any, values: Mapping[str, Any]) -> Any:
    if field.name not in values:
        return None if type(None) in get_args(hint) else empty_value(field)
    value = values[field.name]
    if isinstance(value, dict):
        return build(next(each for each in (hint, *get_args(hint)) if is_dataclass(each)), value)
    if isinstance(value, (list, tuple)):
        kinds = [kind for kind in (hint, *get_args(hint)) if get_origin(kind) is tuple]
        inner = get_args(kinds[0])[0]
        return tuple(build(inner, each) if isinstance(each, dict) else each for each in value)
    return value


TOPIC_FAILED = frozenset({"topic_authorization_failed"})
GROUP_FAILED = frozenset({"group_authorization_failed"})
CLUSTER_FAILED = frozenset({"cluster_authorization_failed"})
NO_CODES = frozenset[str]()


def on_topic(operation: AclOperation, name: str = TOPIC) -> tuple[Need, ...]:
    """One grant on a topic."""
    return (Need(operation, AclResource.TOPIC, name),)


def on_group(operation: AclOperation, name: str = GROUP) -> tuple[Need, ...]:
    """One grant on a group."""
    return (Need(operation, AclResource.GROUP, name),)


def on_cluster(operation: AclOperation) -> tuple[Need, ...]:
    """One grant on the cluster."""
    return (Need(operation, AclResource.CLUSTER),)
