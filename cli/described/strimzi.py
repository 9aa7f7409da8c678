"""Strimzi's KafkaTopic and KafkaUser documents as the parts of a file.

Place: under reading.py.
Invariant: a field is used, or it is of Kubernetes alone (metadata, status), or it is named in an error: nothing that
Strimzi would do is left out silently.
Source: Strimzi's API reference, KafkaTopic and KafkaUser (kafka.strimzi.io/v1, v1beta2).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headrace.cli.described.documents import FileDocument, FileError, NodePath

GROUP = "kafka.strimzi.io/"
MANAGED = "strimzi.io/managed"
QUOTAS = {
    "producerByteRate": "producer_byte_rate",
    "consumerByteRate": "consumer_byte_rate",
    "requestPercentage": "request_percentage",
    "controllerMutationRate": "controller_mutation_rate",
}
_USERS_TLS = {"tls-external"}


@dataclass(frozen=True, slots=True)
class FoundPart:
    """One object of a file before it is checked: its value, and where each of its fields is in the document."""

    section: str
    value: Any
    document: FileDocument
    path: NodePath
    fields: Mapping[str, NodePath]
    """Fields that are elsewhere than below `path`."""

    def where(self, inside: NodePath) -> NodePath:
        """Return the path in the document of a path in the value."""
        if inside and str(inside[0]) in self.fields:
            return (*self.fields[str(inside[0])], *inside[1:])
        return (*self.path, *inside) if not self.fields else self.path


class _Reader:
    """Takes fields from a document, and names the ones that have no meaning."""

    def __init__(self, document: FileDocument, errors: list[FileError]) -> None:
        self._document = document
        self._errors = errors

    def refuse(self, path: NodePath, reason: str) -> None:
        self._errors.append(FileError(self._document.place(path), reason))

    def mapping(self, path: NodePath) -> dict[str, Any]:
        """The mapping at a path; empty if there is none."""
        found: Any = self._document.value
        for key in path:
            found = found.get(key) if isinstance(found, dict) else None
        if found is not None and not isinstance(found, dict):
            self.refuse(path, f"`{_dotted(path)}` is not a mapping")
        return found if isinstance(found, dict) else {}

    def only(self, path: NodePath, known: tuple[str, ...]) -> dict[str, Any]:
        """The same; fields that are not known are named."""
        found = self.mapping(path)
        for key in found:
            if key not in known:
                self.refuse((*path, key), f"`{_dotted((*path, key))}` has no meaning here")
        return found


def is_strimzi(document: FileDocument) -> bool:
    """Return whether the document is one of Strimzi's."""
    value = document.value
    return isinstance(value, dict) and str(value.get("apiVersion", "")).startswith(GROUP)


def parts_of(document: FileDocument, errors: list[FileError], secrets: str) -> list[FoundPart]:
    """Return the parts of a KafkaTopic or KafkaUser. `secrets`: the directory with a directory for each Secret."""
    reader, kind = _Reader(document, errors), document.value.get("kind")
    reader.only((), ("apiVersion", "kind", "metadata", "spec", "status"))
    metadata = reader.mapping(("metadata",))
    name = metadata.get("name")
    if not isinstance(name, str):
        reader.refuse(("metadata",), "`metadata.name` is missing")
        return []
    if str(reader.mapping(("metadata", "annotations")).get(MANAGED, "true")).lower() == "false":
        reader.refuse(("metadata", "annotations"), f"`{MANAGED}: false` has no meaning here: leave the document out")
    if kind == "KafkaTopic":
        return [_topic(reader, document, name)]
    if kind == "KafkaUser":
        return _user(reader, document, name, secrets)
    reader.refuse(("kind",), f"`{kind}` has no meaning here: only KafkaTopic and KafkaUser have")
    return []


def _topic(reader: _Reader, document: FileDocument, name: str) -> FoundPart:
    spec = reader.only(("spec",), ("topicName", "partitions", "replicas", "config"))
    named = {"name": "topicName", "partitions": "partitions", "replicationFactor": "replicas", "configs": "config"}
    value = {field: spec[theirs] for field, theirs in named.items() if spec.get(theirs) is not None}
    fields: dict[str, NodePath] = {field: ("spec", theirs) for field, theirs in named.items()}
    if "name" not in value:
        value["name"] = name
        fields["name"] = ("metadata", "name")
    return FoundPart("topics", value, document, (), fields)


def _user(reader: _Reader, document: FileDocument, name: str, secrets: str) -> list[FoundPart]:
    reader.only(("spec",), ("authentication", "authorization", "quotas"))
    kind = reader.mapping(("spec", "authentication")).get("type")
    found: list[FoundPart] = []
    principal = f"CN={name}" if kind in _USERS_TLS else name
    if kind == "scram-sha-512":
        found.append(_credential(reader, document, name, secrets))
    elif kind == "tls":
        why = "no certificate is issued here: issue one yourself, and use tls-external"
        reader.refuse(("spec", "authentication", "type"), f"`spec.authentication.type: tls` has no meaning here: {why}")
    elif kind in _USERS_TLS or kind is None:
        reader.only(("spec", "authentication"), ("type",))
    else:
        reader.refuse(("spec", "authentication", "type"), f"`spec.authentication.type: {kind}` has no meaning here")
    found += _acls(reader, document, principal)
    if quotas := reader.only(("spec", "quotas"), tuple(QUOTAS)):
        limits = {ours: quotas[theirs] for theirs, ours in QUOTAS.items() if theirs in quotas}
        fields: dict[str, NodePath] = {"limits": ("spec", "quotas")}
        found.append(FoundPart("quotas", {"user": principal, "limits": limits}, document, (), fields))
    return found


def _credential(reader: _Reader, document: FileDocument, name: str, secrets: str) -> FoundPart:
    at: NodePath = ("spec", "authentication", "password")
    reader.only(("spec", "authentication"), ("type", "password"))
    reader.only(at, ("valueFrom",))
    reader.only((*at, "valueFrom"), ("secretKeyRef",))
    reference = reader.only((*at, "valueFrom", "secretKeyRef"), ("name", "key"))
    value = {"name": name}
    if reference.get("name") and reference.get("key"):
        value["password"] = f"${{file:{secrets}/{reference['name']}/{reference['key']}}}"
    else:
        why = "no password is generated here"
        reader.refuse(("spec", "authentication"), f"`{_dotted(at)}.valueFrom.secretKeyRef` is missing: {why}")
        value["password"] = "${file:missing}"
    return FoundPart("users", value, document, (), {"name": ("metadata", "name"), "password": at})


def _acls(reader: _Reader, document: FileDocument, principal: str) -> list[FoundPart]:
    authorization = reader.only(("spec", "authorization"), ("type", "acls"))
    if authorization and authorization.get("type") != "simple":
        kind = authorization.get("type")
        reader.refuse(("spec", "authorization", "type"), f"`spec.authorization.type: {kind}` has no meaning here")
    found = []
    given = authorization.get("acls") or []
    for index, acl in enumerate(given if isinstance(given, list) else []):
        path: NodePath = ("spec", "authorization", "acls", index)
        if not isinstance(acl, dict):
            reader.refuse(path, "an ACL is not a mapping")
            continue
        value = {key: each for key, each in acl.items() if key != "operation"}
        if "operation" in acl:
            value["operations"] = [*value.get("operations", []), acl["operation"]]
        fields: dict[str, NodePath] = {key: (*path, key) for key in acl}
        fields["operations"] = (*path, "operations" if "operations" in acl else "operation")
        found.append(FoundPart("acls", {**value, "principal": f"User:{principal}"}, document, path, fields))
    return found


def _dotted(path: NodePath) -> str:
    return ".".join(map(str, path))
