"""Reads YAML or JSON files as values that know the line of each of their parts.

Place: under reading.py. Strimzi's KafkaTopic and KafkaUser documents become parts of a file, too.
Invariant: an anchor may be used again, but aliases repeat at most ALIASED_MAX values in a document, and parts are
nested at most DEPTH_MAX deep: a few hundred bytes do not become millions of values. Each error has a file and a
line, and a file with an error does not hide the errors of others. Plain text stays as it is written: only null,
true, false and numbers of YAML 1.2 have another type, so a topic named `no` or a config value 1_000 is text.
Invariant of Strimzi's documents: a field is used, or it is of Kubernetes alone (metadata, status), or it is named in
an error: nothing that Strimzi would do is left out silently.
Source: Strimzi's API reference, KafkaTopic and KafkaUser (kafka.strimzi.io/v1, v1beta2).
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from headrace.cli.described.state import FilePlace

NodePath = tuple[str | int, ...]
"""The keys and indexes that lead to a part of a document."""
SUFFIXES = (".yaml", ".yml", ".json")
STDIN = "-"
_INTEGER = re.compile(r"[-+]?(0|[1-9][0-9]*)")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|(0|[1-9][0-9]*)(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
ALIASED_MAX = 200_000
DEPTH_MAX = 50
_DIGITS_MAX = 400
_WORDS = {"": None, "~": None, "null": None, "true": True, "false": False}


class FileError(ValueError):
    """An error of a file, at a place."""

    def __init__(self, place: FilePlace, reason: str) -> None:
        super().__init__(f"{place}: {reason}")


@dataclass(slots=True)
class FileDocument:
    """One document of a file: its value, and the line of each part."""

    file: str
    value: Any = None
    lines: dict[NodePath, int] = field(default_factory=dict)
    numbers: dict[NodePath, str] = field(default_factory=dict)
    """Fractions as they are written: a config keeps 1.50."""
    nodes: set[int] = field(default_factory=set)
    """The parts that were read, each once."""
    aliased: int = 0
    """How often a part was read again."""

    def place(self, path: NodePath = ()) -> FilePlace:
        """Return where a part is; where its nearest parent is, if it has no line."""
        while path and path not in self.lines:
            path = path[:-1]
        return FilePlace(self.file, self.lines.get(path, 1))


def read_documents(named: Iterable[str], errors: list[FileError]) -> list[FileDocument]:
    """Return the documents of all files, in order of their names; what cannot be read is added to `errors`."""
    found: list[FileDocument] = []
    for name in named:
        if name == STDIN:
            found += _documents("standard input", sys.stdin.read(), errors)
            continue
        for path in _files(Path(name), errors):
            try:
                text = path.read_text(encoding="utf-8")
            except OSError as error:
                errors.append(FileError(FilePlace(str(path), 1), f"cannot be read: {error.strerror}"))
            except UnicodeDecodeError:
                errors.append(FileError(FilePlace(str(path), 1), "is not UTF-8 text"))
            else:
                found += _documents(str(path), text, errors)
    return found


def _files(path: Path, errors: list[FileError]) -> list[Path]:
    """The file, or all files of a directory and those below it; hidden ones are left out."""
    if not path.is_dir():
        return [path]
    files = sorted(
        each
        for each in path.rglob("*")
        if each.suffix in SUFFIXES
        and each.is_file()
        and not any(part.startswith(".") for part in each.relative_to(path).parts)
    )
    if not files:
        errors.append(FileError(FilePlace(str(path), 1), f"no files: {', '.join(SUFFIXES)}"))
    return files


def _documents(file: str, text: str, errors: list[FileError]) -> Iterator[FileDocument]:
    try:
        for node in yaml.compose_all(text, yaml.SafeLoader):
            if node is None or (isinstance(node, yaml.ScalarNode) and not node.value):
                continue  # nothing between two lines of dashes
            document = FileDocument(file)
            document.value = _value(node, (), document, errors)
            yield document
    except FileError as error:
        errors.append(error)
    except RecursionError:
        errors.append(FileError(FilePlace(file, 1), f"is nested deeper than {DEPTH_MAX} parts"))
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        errors.append(FileError(FilePlace(file, line), f"not YAML: {error.problem}"))
    except yaml.YAMLError as error:
        errors.append(FileError(FilePlace(file, 1), f"not YAML: {str(error).splitlines()[0]}"))


def _value(node: yaml.Node, path: NodePath, document: FileDocument, errors: list[FileError]) -> Any:
    document.lines.setdefault(path, node.start_mark.line + 1)
    _refuse_endless(node, path, document)
    if isinstance(node, yaml.SequenceNode):
        return [_value(each, (*path, index), document, errors) for index, each in enumerate(node.value)]
    if isinstance(node, yaml.MappingNode):
        found: dict[str, Any] = {}
        for key_node, each in node.value:
            key, line = str(key_node.value), key_node.start_mark.line + 1
            if key in found:
                first = document.lines[(*path, key)]
                errors.append(
                    FileError(FilePlace(document.file, line), f"`{key}` is given twice, first in line {first}")
                )
                continue
            document.lines[(*path, key)] = line
            found[key] = _value(each, (*path, key), document, errors)
        return found
    if node.style in ("'", '"', "|", ">"):
        return node.value
    value = plain_value(node.value)
    if isinstance(value, float):
        document.numbers[path] = node.value
    return value


def _refuse_endless(node: yaml.Node, path: NodePath, document: FileDocument) -> None:
    """FileError for one part too many."""
    place = FilePlace(document.file, node.start_mark.line + 1)
    if len(path) > DEPTH_MAX:
        raise FileError(place, f"is nested deeper than {DEPTH_MAX} parts, or an alias contains itself")
    document.aliased += id(node) in document.nodes
    document.nodes.add(id(node))
    if document.aliased > ALIASED_MAX:
        raise FileError(place, f"aliases repeat more than {ALIASED_MAX} values")


def plain_value(text: str) -> Any:
    """Return the value of a scalar without quotes, by the core schema of YAML 1.2.

    6.048e+08, as Helm writes large numbers, is the whole number.
    """
    if text in _WORDS:
        return _WORDS[text]
    if len(text) > _DIGITS_MAX:
        return text
    if _INTEGER.fullmatch(text):
        return int(text)
    if not _FLOAT.fullmatch(text):
        return text
    number = float(text)
    return int(number) if "e" in text.lower() and number.is_integer() else number


def text_of(value: Any) -> str:
    """Return a config's value as text: true, 5, compact,delete."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return ",".join(map(text_of, value))
    return str(value)


def quoted_texts(values: Mapping[str, str]) -> dict[str, Any]:
    """Return config values for a file, with the type that reads back as the same text."""
    return {name: _typed(value) for name, value in sorted(values.items())}


def _typed(text: str) -> Any:
    plain = plain_value(text)
    return plain if isinstance(plain, int) and text_of(plain) == text else text


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
