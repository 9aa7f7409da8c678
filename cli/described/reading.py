"""Reads files that describe a cluster, and names everything that is wrong with them at once.

Place: the first step of `headrace cluster plan` and `apply`; documents.py reads YAML, documents.py other documents.
Invariant: a description is returned only without an error: unknown fields, wrong values and objects that are described
twice are all named, with file and line.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from headrace.cli.client.acls import CLUSTER_NAME, Acl
from headrace.cli.client.quotas import CLIENT_ID, IP, USER, Entity, entity_of
from headrace.cli.described.documents import (
    FileDocument,
    FileError,
    FoundPart,
    NodePath,
    is_strimzi,
    parts_of,
    read_documents,
    text_of,
)
from headrace.cli.described.schema import (
    AclPart,
    ClientMetricsPart,
    ClusterFile,
    ConfigValue,
    GroupConfigsPart,
    LimitsPart,
    LinkPart,
    QuotaPart,
    TopicPart,
    UserPart,
)
from headrace.cli.described.state import ClusterState, FilePlace, Key, ObjectKind, TopicState, UserState, shown_key
from headrace.config.link_configs import OWN, SECRETS, is_reference, why_invalid
from headrace.storage.errors import InvalidError

_TOPICS, _CONFIGS = "topics", "clusterConfigs"
_TYPES: dict[str, Any] = {
    _TOPICS: TopicPart,
    "users": UserPart,
    "acls": AclPart,
    "quotas": QuotaPart,
    "links": LinkPart,
    "groupConfigs": GroupConfigsPart,
    "clientMetrics": ClientMetricsPart,
}
_AT = re.compile(r"(.*) - at `\$(.*)`")
_UNKNOWN = re.compile(r"Object contains unknown field `(.*)`")
_STEP = re.compile(r"\.([^.\[\]]+)|\[(\d+)\]|\[\.\.\.\]")
_FILE = re.compile(r"\$\{file:([^}]+)\}")
ERRORS_MAX = 50
"""Errors of one object that are named; after one is named, its field is left out and the rest is checked."""


@dataclass(slots=True)
class Description:
    """A described cluster, and where each object is described."""

    state: ClusterState
    places: dict[tuple[ObjectKind, Key], FilePlace] = field(default_factory=dict)


@dataclass(slots=True)
class _Collected:
    """What the files have so far."""

    errors: list[FileError] = field(default_factory=list)
    topics: dict[str, TopicState] = field(default_factory=dict)
    acls: set[Acl] = field(default_factory=set)
    users: dict[tuple[str, str], UserState] = field(default_factory=dict)
    quotas: dict[Entity, dict[str, float]] = field(default_factory=dict)
    configs: dict[str, str] = field(default_factory=dict)
    links: dict[str, dict[str, str | None]] = field(default_factory=dict)
    groups: dict[str, dict[str, str]] = field(default_factory=dict)
    client_metrics: dict[str, dict[str, str]] = field(default_factory=dict)
    places: dict[tuple[ObjectKind, Key], FilePlace] = field(default_factory=dict)

    def claim(self, kind: ObjectKind, key: Key, place: FilePlace) -> bool:
        """Return whether the object is described here for the first time."""
        if (first := self.places.setdefault((kind, key), place)) is place:
            return True
        self.errors.append(FileError(place, f"{shown_key(kind, key)} is described twice, first in {first}"))
        return False

    def state(self) -> ClusterState:
        """Return what is described."""
        acls = frozenset(self.acls)
        of_names = self.links, self.groups, self.client_metrics
        return ClusterState(self.topics, acls, self.users, self.quotas, self.configs, *of_names)


def read_description(named: Sequence[str], secrets: str = "secrets") -> Description:
    """Return the description in these files and directories. InvalidError with all errors, in order of their places."""
    found = _Collected()
    documents = read_documents(named, found.errors)
    for document in documents:
        for part in _parts(document, found.errors, secrets):
            is_first = part.section != _TOPICS or _claim_topic(found, part)
            value = _converted(part, _TYPES[part.section], found.errors)
            if value is not None and is_first:
                _ADD[part.section](found, value, part)
        if not is_strimzi(document):
            _add_configs(found, document)
    if not documents and not found.errors:
        found.errors.append(FileError(FilePlace(named[0], 1), "nothing is described here"))
    if found.errors:
        raise nothing_changed(map(str, found.errors))
    return Description(found.state(), found.places)


def nothing_changed(reasons: Iterable[str]) -> InvalidError:
    """Return the error that names all reasons, a line each."""
    lines = list(reasons)
    counted = "1 error" if len(lines) == 1 else f"{len(lines)} errors"
    return InvalidError("\n  ".join([f"{counted}, nothing was changed:", *lines]))


def _parts(document: FileDocument, errors: list[FileError], secrets: str) -> Iterator[FoundPart]:
    if is_strimzi(document):
        yield from parts_of(document, errors, str(_directory(document) / secrets))
        return
    if not isinstance(document.value, dict):
        errors.append(FileError(document.place(), "the document is not a mapping"))
        return
    for section, items in document.value.items():
        if section not in (*_TYPES, _CONFIGS):
            known = ", ".join(field.encode_name for field in msgspec.structs.fields(ClusterFile))
            errors.append(FileError(document.place((section,)), f"unknown field `{section}`: not one of {known}"))
        elif section in _TYPES and items is not None:
            if not isinstance(items, list):
                errors.append(FileError(document.place((section,)), f"`{section}` is not a list"))
                continue
            for index, item in enumerate(items):
                yield FoundPart(section, item, document, (section, index), {})


def _converted(part: FoundPart, wanted: Any, errors: list[FileError]) -> Any:
    """The typed part; None after errors. A field with an error is taken out, so that the others are checked, too."""
    value, failed = part.value, False
    for _ in range(ERRORS_MAX):
        try:
            converted = msgspec.convert(value, wanted)
        except msgspec.ValidationError as error:
            path, reason = _located(str(error))
            missing_again = failed and reason.startswith("Object missing required field")
            if not missing_again:
                place = part.document.place(part.where(path))
                errors.append(FileError(place, _shown(part.section, path, reason)))
            failed = True
            if not path or (value := _without(value, path)) is None:
                return None
        else:
            return None if failed else converted
    return None


def _located(message: str) -> tuple[NodePath, str]:
    """The path of an error and its reason. An unknown field is the last step of its path."""
    match = _AT.fullmatch(message)
    reason, steps = (match[1], match[2]) if match else (message, "")
    path: NodePath = tuple(int(step[2]) if step[2] else step[1] for step in _STEP.finditer(steps) if step[1] or step[2])
    if unknown := _UNKNOWN.fullmatch(reason):
        return (*path, unknown[1]), "unknown field"
    return path, reason


def _without(value: Any, path: NodePath) -> Any:
    """A copy without the part at the path; None if there is no such part."""
    head, *rest = path
    try:
        if not rest:
            if isinstance(value, dict):
                return {key: each for key, each in value.items() if key != head} if head in value else None
            return None
        inner = _without(value[head], tuple(rest))
    except (KeyError, IndexError, TypeError):
        return None
    if inner is None:
        return _without(value, (head,))
    if isinstance(value, dict):
        return {**value, str(head): inner}
    return [inner if index == head else each for index, each in enumerate(value)]


def _shown(section: str, path: NodePath, reason: str) -> str:
    dotted = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
    return f"{section}{dotted}: {reason[0].lower()}{reason[1:]}"


def _claim_topic(found: _Collected, part: FoundPart) -> bool:
    """Return whether the name is new; before the other fields are checked, so that all errors are named."""
    name = part.value.get("name") if isinstance(part.value, dict) else None
    return not isinstance(name, str) or found.claim(ObjectKind.TOPIC, name, part.document.place(part.where(())))


def _add_topic(found: _Collected, part: TopicPart, at: FoundPart) -> None:
    found.topics[part.name] = TopicState(
        part.partitions, part.replication_factor, _texts(part.configs, at, ("configs",))
    )


def _add_user(found: _Collected, part: UserPart, at: FoundPart) -> None:
    key = (part.name, part.mechanism)
    if found.claim(ObjectKind.USER, key, at.document.place(at.where(()))):
        password = part.password
        if match := _FILE.fullmatch(password):
            password = f"${{file:{_directory(at.document) / match[1]}}}"
        found.users[key] = UserState(part.iterations, password)


def _add_acls(found: _Collected, part: AclPart, at: FoundPart) -> None:
    """The same ACL may be in several documents: documents of users often repeat Describe."""
    name = part.resource.name
    place = at.document.place(at.where(()))
    if part.resource.type == "cluster":
        if name not in (None, CLUSTER_NAME):
            found.errors.append(FileError(place, f"acls.resource.name: a cluster is named {CLUSTER_NAME}"))
        name = CLUSTER_NAME
    if name is None:
        found.errors.append(FileError(place, "acls.resource.name is missing"))
        return
    for operation in part.operations:
        acl = Acl(part.resource.type, name, part.resource.pattern_type, part.principal, part.host, operation, part.type)
        found.acls.add(acl)
        found.places.setdefault((ObjectKind.ACL, acl), place)


def _add_quota(found: _Collected, part: QuotaPart, at: FoundPart) -> None:
    place = at.document.place(at.where(()))
    names: dict[str, str | None] = {}
    for kind, word, name in ((USER, "user", part.user), (CLIENT_ID, "clientId", part.client_id), (IP, "ip", part.ip)):
        if name is not None and word in part.defaults:
            found.errors.append(FileError(place, f"quotas.defaults: `{word}` has a name, too"))
        if name is not None or word in part.defaults:
            names[kind] = name
    limits = {key: value for key, value in msgspec.structs.asdict(part.limits).items() if value is not None}
    if not names:
        found.errors.append(FileError(place, "quotas: of whom? give user, clientId, ip or defaults"))
    elif IP in names and len(names) > 1:
        found.errors.append(FileError(place, "quotas: ip excludes user and clientId"))
    elif not limits:
        known = ", ".join(field.name for field in msgspec.structs.fields(LimitsPart))
        found.errors.append(FileError(place, f"quotas.limits is empty: give one of {known}"))
    elif found.claim(ObjectKind.QUOTA, entity := entity_of(names), place):
        found.quotas[entity] = limits


def _add_link(found: _Collected, part: LinkPart, at: FoundPart) -> None:
    place = at.document.place(at.where(()))
    if not found.claim(ObjectKind.LINK, part.name, place):
        return
    configs = _texts(part.configs, at, ("configs",))
    plain = [name for name in sorted(SECRETS & configs.keys()) if not is_reference(configs[name])]
    own = sorted(OWN & configs.keys())
    reason = f"{plain[0]}: a secret of a link is ${{env:HEADRACE_LINK_...}} in a file" if plain else None
    reason = reason or (f"{own[0]}: set by the cluster, not by a file" if own else why_invalid(configs))
    if reason:
        found.errors.append(FileError(place, f"links.configs: {reason}"))
        return
    found.links[part.name] = dict(configs)


def _add_group(found: _Collected, part: GroupConfigsPart, at: FoundPart) -> None:
    if found.claim(ObjectKind.GROUP, part.name, at.document.place(at.where(()))):
        found.groups[part.name] = _texts(part.configs, at, ("configs",))


def _add_client_metrics(found: _Collected, part: ClientMetricsPart, at: FoundPart) -> None:
    if found.claim(ObjectKind.CLIENT_METRICS, part.name, at.document.place(at.where(()))):
        found.client_metrics[part.name] = _texts(part.configs, at, ("configs",))


def _add_configs(found: _Collected, document: FileDocument) -> None:
    given = document.value.get(_CONFIGS) if isinstance(document.value, dict) else None
    if given is None:
        return
    part = FoundPart(_CONFIGS, given, document, (_CONFIGS,), {})
    configs: dict[str, ConfigValue] | None = _converted(part, dict[str, ConfigValue], found.errors)
    texts = _texts(configs or {}, part, ())
    for name in texts:
        if found.claim(ObjectKind.CONFIG, name, document.place((_CONFIGS, name))):
            found.configs[name] = texts[name]


def _texts(configs: dict[str, ConfigValue], at: FoundPart, path: NodePath) -> dict[str, str]:
    """Return the values as text, numbers as they are written."""
    return {name: at.document.numbers.get(at.where((*path, name)), text_of(value)) for name, value in configs.items()}


def _directory(document: FileDocument) -> Path:
    """The directory that paths in the file begin at; the current one for standard input."""
    return Path(document.file).absolute().parent


_ADD: dict[str, Callable[[_Collected, Any, FoundPart], None]] = {
    _TOPICS: _add_topic,
    "users": _add_user,
    "acls": _add_acls,
    "quotas": _add_quota,
    "links": _add_link,
    "groupConfigs": _add_group,
    "clientMetrics": _add_client_metrics,
}
