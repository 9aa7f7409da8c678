"""The values of this package: what a cluster is described to be, what it is, and the steps between the two.

Place: read from files by reading.py and from a cluster by current.py, compared by diff.py, carried out by execution.py.
Invariant: no value depends on a connection or a file, so the comparison is a pure function.

Words. An *object* is a topic, an ACL, a user with one mechanism, the quotas of one entity, one config of the whole
cluster, a link, the configs of a group, or a subscription to client metrics. A *key* names an object among those of its
kind. A described object is described completely: what it does not mention has its default. Objects that are not
described are left alone, unless a scope says that they are pruned.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from headrace.cli.client.acls import Acl, shown_acl
from headrace.cli.client.quotas import Entity, Limits, shown_entity


class ObjectKind(enum.StrEnum):
    """Kinds of objects, by their sections in a file."""

    TOPIC = "topics"
    ACL = "acls"
    USER = "users"
    QUOTA = "quotas"
    CONFIG = "clusterConfigs"
    LINK = "links"
    GROUP = "groupConfigs"
    CLIENT_METRICS = "clientMetrics"


UserKey = tuple[str, str]
"""A user's name and a mechanism."""
Key = str | Acl | UserKey | Entity
"""A topic's name, an ACL, a user with a mechanism, an entity with quotas, the name of a config, a link, a group or a
subscription."""
LinkConfigs = Mapping[str, str | None]
"""A link's configs. None: a secret that is set, and that no cluster shows."""


class FilePlace(NamedTuple):
    """A line of a file. Lines begin at 1."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(frozen=True, slots=True)
class TopicState:
    """A topic. None: the cluster's default when it is created, any value later."""

    partitions: int | None = None
    replication_factor: int | None = None
    configs: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class UserState:
    """A user's credential. `password` is a reference, `${file:…}` or `${env:…}`; a cluster shows none."""

    iterations: int | None = None
    password: str = ""


@dataclass(frozen=True, slots=True)
class ClusterState:
    """All objects by kind and key."""

    topics: Mapping[str, TopicState] = field(default_factory=dict)
    acls: frozenset[Acl] = frozenset()
    users: Mapping[UserKey, UserState] = field(default_factory=dict)
    quotas: Mapping[Entity, Limits] = field(default_factory=dict)
    configs: Mapping[str, str] = field(default_factory=dict)
    links: Mapping[str, LinkConfigs] = field(default_factory=dict)
    groups: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """The configs of groups, by group."""
    client_metrics: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """The configs of subscriptions to client metrics (KIP-714), by name."""

    def configs_of(self, kind: ObjectKind) -> Mapping[str, Mapping[str, str]]:
        """Return the objects of a kind that are a name with configs: GROUP or CLIENT_METRICS."""
        return self.groups if kind is ObjectKind.GROUP else self.client_metrics


@dataclass(frozen=True, slots=True)
class ClusterAbilities:
    """What decides whether a change is possible, and whether it removes records."""

    can_lower_counts: bool = True
    """Whether the cluster can lower the number of a topic's partitions: Headrace can, Apache Kafka cannot."""
    has_acls: bool = True
    """Whether the cluster has an authorizer."""
    inherited: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """The configs of each topic as they are without values that were set for the topic."""
    secret_configs: frozenset[str] = frozenset()
    """Configs of the cluster with values that it does not show."""
    has_links: bool = True
    """Whether the cluster can copy topics of others: Headrace can."""
    copies: frozenset[str] = frozenset()
    """Topics that links copy: links create and delete them, no file does."""


class Action(enum.StrEnum):
    """Kinds of steps."""

    CREATE = "create"
    ALTER = "alter"
    DELETE = "delete"


class Risk(enum.StrEnum):
    """What a step may take away, by the flag that allows it."""

    NONE = ""
    DATA = "--allow-data-loss"
    PARTITIONS = "--allow-fewer-partitions"


class FieldChange(NamedTuple):
    """One field of a step. None: there is none."""

    field: str
    before: str | None
    after: str | None


@dataclass(frozen=True, slots=True)
class ApplyStep:
    """One request that brings the cluster nearer to its description. Repeating it changes nothing more."""

    action: Action
    kind: ObjectKind
    key: Key
    changes: tuple[FieldChange, ...] = ()
    risk: Risk = Risk.NONE

    @property
    def name(self) -> str:
        """The object as text."""
        return shown_key(self.kind, self.key)


class RefusedChange(NamedTuple):
    """A described change that cannot be made."""

    kind: ObjectKind
    key: Key
    reason: str


def shown_key(kind: ObjectKind, key: Key) -> str:
    """Return an object's kind and name as text."""
    if isinstance(key, Acl):
        return f"acl {shown_acl(key)}"
    if kind is ObjectKind.QUOTA and not isinstance(key, str):
        return f"quotas of {shown_entity(key)}"  # type: ignore[arg-type]
    if kind is ObjectKind.USER:
        return f"user {key[0]} {key[1]}"
    words = {
        ObjectKind.TOPIC: "topic",
        ObjectKind.LINK: "link",
        ObjectKind.GROUP: "configs of group",
        ObjectKind.CLIENT_METRICS: "client metrics",
    }
    return f"{words.get(kind, 'cluster config')} {key}"
