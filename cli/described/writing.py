"""Writes a cluster as a file that describes it.

Place: `headrace cluster export`.
Invariant: reading the file gives the same objects. No cluster shows a password, so each user refers to a file that you
have to make; only then can the description be applied to another cluster.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import Any

import yaml

from headrace.cli.client.quotas import Entity
from headrace.cli.described.diff import shown_limit
from headrace.cli.described.documents import plain_value, quoted_texts
from headrace.cli.described.state import ClusterState
from headrace.storage.client_text import is_control

_WORDS = {"user": "user", "client-id": "clientId", "ip": "ip"}


def described_file(state: ClusterState, secrets: str = "secrets") -> str:
    """Return the text of the file. `secrets`: the directory of the users' passwords."""
    sections = {
        "topics": [_topic(name, state) for name in sorted(state.topics)],
        "users": [_user(key, state, secrets) for key in sorted(state.users)],
        "acls": list(_acls(state)),
        "quotas": [_quota(entity, state) for entity in sorted(state.quotas, key=str)],
        "clusterConfigs": quoted_texts(state.configs),
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


def _number(value: float) -> float:
    text = shown_limit(value)
    return int(text) if text.lstrip("-").isdigit() else value
