"""The metadata image as a tree of directories: a pure function of the image.

Place: under the shell's commands, which do not depend on topics or agents.
Invariant: the same image gives the same tree. The children of a directory are created on first access, so a
million partitions cost nothing until then.
Source: KIP-631, kafka-shell.sh; the names are those of Kafka's metadata shell.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property, partial
from typing import Any

from headrace.cli.record_json import plain
from headrace.metastore.log.image import AgentImage, MetadataImage, TopicImage
from headrace.metastore.log.kip631_records import CredentialInfo, EntityData
from headrace.metastore.log.own_records import ScramKeys
from headrace.metastore.log.scram_keys import MECHANISMS

RESOURCE_NAMES = {2: "topics", 4: "brokers"}
"""ConfigResource types, as directories below /configs."""
_MECHANISM_NAMES = {number: name for name, number in MECHANISMS.items()}
"""ScramMechanism types."""
DEFAULT_NAME = "<default>"
REDACTED = "[redacted]"
"""Shown instead of a secret."""


class Directory:
    """Named nodes; `make` creates them on first access."""

    def __init__(self, make: Callable[[], Mapping[str, Node]]) -> None:
        self._make = make

    @cached_property
    def children(self) -> Mapping[str, Node]:
        """Name to node, in listing order."""
        return self._make()


Node = Directory | str
"""A file is its contents."""


def tree(image: MetadataImage) -> Directory:
    """The root."""
    topics = sorted(image.topics_by_id.values(), key=lambda topic: topic.name)
    makers: dict[str, Callable[[], Mapping[str, Node]]] = {
        "acls": lambda: {str(n): text(acl) for n, acl in enumerate(sorted(image.access_controls, key=repr))},
        "brokers": lambda: _directories(partial(_broker, image), dict(sorted(image.agents.items()))),
        "clientQuotas": lambda: {_entity(entity): _files(values) for entity, values in image.quotas.items()},
        "configs": partial(_configs, image),
        "delegationTokens": lambda: {token_id: text(token) for token_id, token in image.delegation_tokens.items()},
        "features": lambda: {name: text(levels._asdict()) for name, levels in sorted(image.features.items())},
        "local": lambda: {"metadataFormat": str(image.metadata_format), "offset": str(image.offset)},
        "scram": lambda: {user: Directory(partial(_scram, found)) for user, found in image.scram_credentials.items()},
        "topicIds": lambda: {plain(topic.topic_id): topic.name for topic in topics},
        "topics": lambda: _directories(_topic, {topic.name: topic for topic in topics}),
    }
    return Directory(lambda: {name: Directory(make) for name, make in makers.items()})


def find(root: Directory, path: str) -> Node | None:
    """The node at an absolute, normalised path."""
    node: Node = root
    for name in filter(None, path.split("/")):
        if not isinstance(node, Directory) or name not in node.children:
            return None
        node = node.children[name]
    return node


def walk(path: str, node: Node) -> Iterator[str]:
    """The paths of the node and of everything below it, parents first."""
    yield path
    if isinstance(node, Directory):
        for name, child in node.children.items():
            yield from walk(f"{path.rstrip('/')}/{name}", child)


def text(value: Any) -> str:
    """A value as a file's contents."""
    return value if isinstance(value, str) else json.dumps(plain(value), indent=2)


def _directories(make: Callable[[Any], Mapping[str, Node]], items: Mapping[Any, Any]) -> Mapping[str, Node]:
    """A directory for each item."""
    return {str(name): Directory(partial(make, item)) for name, item in items.items()}


def _files(values: Mapping[str, Any]) -> Directory:
    """A file for each value."""
    return Directory(lambda: {name: text(value) for name, value in sorted(values.items())})


def _broker(image: MetadataImage, agent: AgentImage) -> Mapping[str, Node]:
    registration = {
        "incarnationId": agent.incarnation_id,
        "brokerEpoch": agent.broker_epoch,
        "endPoints": [listener._asdict() for listener in agent.listeners],
        "features": {name: levels._asdict() for name, levels in agent.features.items()},
        "rack": agent.rack,
    }
    failed = {str(plain(topic_id)): found for topic_id, found in image.failed_replicas.get(agent.node_id, {}).items()}
    return {
        "inControlledShutdown": text(agent.leaving),
        "isFenced": text(agent.fenced),
        "registration": text(registration),
        **({"failedReplicas": _files(failed)} if failed else {}),
    }


def _topic(topic: TopicImage) -> Mapping[str, Node]:
    about = {
        "topicNumber": topic.topic_number,
        "replicationFactor": topic.replication_factor,
        "initialPartitionCount": topic.initial_partition_count,
        "undeletedPartitionCount": topic.undeleted_partition_count,
    }
    partitions = {str(index): Directory(partial(_partition, topic, index)) for index in topic.indexes}
    return {"data": text(about), "id": plain(topic.topic_id), "name": topic.name, **partitions}


def _partition(topic: TopicImage, index: int) -> Mapping[str, Node]:
    assignment = topic.assignment(index)
    about = {
        "partitionId": index,
        "leaderEpoch": topic.leader_epochs[index],
        "replicas": assignment.replicas,
        "addingReplicas": assignment.adding,
        "removingReplicas": assignment.removing,
    }
    return {"data": text(about)}


def _configs(image: MetadataImage) -> Mapping[str, Node]:
    kinds: dict[str, dict[str, Node]] = {}
    for (kind, name), values in sorted(image.configs.items()):
        kinds.setdefault(RESOURCE_NAMES.get(kind, str(kind)), {})[name or DEFAULT_NAME] = _files(values)
    return {kind: Directory(partial(dict, resources)) for kind, resources in kinds.items()}


def _entity(entity: tuple[EntityData, ...]) -> str:
    """Return the name of an entity, for example `user=anna,client-id=<default>`."""
    return ",".join(
        f"{part.entity_type}={DEFAULT_NAME if part.entity_name is None else part.entity_name}" for part in entity
    )


def _secrets(credential: CredentialInfo | ScramKeys) -> tuple[str, ...]:
    return ("saltedPassword",) if isinstance(credential, CredentialInfo) else ("storedKey", "serverKey")


def _scram(credentials: tuple[CredentialInfo | ScramKeys, ...]) -> Mapping[str, Node]:
    return {
        _MECHANISM_NAMES.get(found.mechanism, str(found.mechanism)): text(
            {"iterations": found.iterations, "salt": REDACTED} | dict.fromkeys(_secrets(found), REDACTED)
        )
        for found in credentials
    }
