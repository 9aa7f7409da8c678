"""The changes that the console can make: what each one says, how it is checked, and how it is done.

Place: under pages/changes.py, which asks for confirmation first.
Invariant: `check` changes nothing; `apply` is called only with --allow-changes, after a confirmation. The cluster's own
rules decide: a refusal is its error, with its reason.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import NamedTuple

from headrace.cli.client.cluster import KafkaCluster, require
from headrace.cli.client.group_offsets import offsets_of
from headrace.cli.client.offsets import TopicPartition
from headrace.cli.client.quotas import CLIENT_ID, KEYS, USER, Entity, change_quotas, entity_of, shown_entity
from headrace.cli.client.topics import BY_DEFAULT, add_partitions, create_topic, delete_topic
from headrace.cli.configs import DELETE, SET, TOPIC, Change, change_configs
from headrace.cli.console.pages.groups import MOVES_MAX
from headrace.cli.console.parts import whole_number
from headrace.cli.console.rendering import link
from headrace.cli.numbers import INT32_MAX, INT64_MAX
from headrace.storage.errors import InvalidError

Form = Mapping[str, str]
"""The fields that say what is to be done."""
CLIENT_QUOTAS = tuple(key for key in KEYS if key != "connection_creation_rate")
"""Quotas that a user or a client id may have."""


class ChangeRequest(NamedTuple):
    """`says` is what will happen, as sentences. `types_name`: the user has to type the name of what is deleted."""

    title: str
    fields: tuple[str, ...]
    says: Callable[[Form], list[str]]
    check: Callable[[KafkaCluster, Form], None]
    apply: Callable[[KafkaCluster, Form], None]
    then: Callable[[Form], str]
    """The page that shows the result."""
    types_name: str = ""
    """The field with the name to type."""


def config_pairs(text: str) -> dict[str, str]:
    """Return the configs of lines `name=value`. InvalidError for another line, or a name that is given twice."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        name, equals, value = line.strip().partition("=")
        if not line.strip():
            continue
        if not equals or not name or name in found:
            raise InvalidError(f"configs: not a line of the form name=value, or given twice: {line.strip()[:80]}")
        found[name] = value
    return found


def config_change(form: Form) -> Change:
    """The value, or the default if `action` is delete."""
    name = form.get("config", "").strip()
    if not name:
        raise InvalidError("config: no name is given")
    if form.get("action") == "delete":
        return name, DELETE, None
    return name, SET, form.get("value", "")


def offset_moves(text: str) -> dict[TopicPartition, int]:
    """Return the moves of offsets of the preview's JSON. InvalidError for anything else."""
    try:
        rows = json.loads(text)
        found = {(str(topic), int(index)): int(offset) for topic, index, offset in rows}
    except (ValueError, TypeError, RecursionError) as error:
        raise InvalidError("moves: not those of a preview") from error
    if not 0 < len(found) <= MOVES_MAX or not all(0 <= offset <= INT64_MAX for offset in found.values()):
        raise InvalidError("moves: not those of a preview")
    return found


def quota_entity(form: Form) -> Entity:
    """Return the user, the client id, or both. InvalidError without either."""
    names = {kind: form.get(field, "") for kind, field in ((USER, "user"), (CLIENT_ID, "client_id"))}
    given = {kind: name for kind, name in names.items() if name}
    if not given:
        raise InvalidError("user, client_id: one of them names who is limited")
    return entity_of(given)


def quota_value(form: Form) -> tuple[str, float]:
    """Return the quota's key, and a number above 0. InvalidError for anything else."""
    key, text = form.get("key", ""), form.get("value", "").strip()
    if key not in CLIENT_QUOTAS:
        raise InvalidError(f"key: none of {', '.join(CLIENT_QUOTAS)}: {key[:40]}")
    try:
        value = float(text)
    except ValueError as error:
        raise InvalidError(f"value: not a number: {text[:40]}") from error
    if not 0 < value < INT64_MAX:
        raise InvalidError(f"value: not above 0: {text[:40]}")
    return key, value


def _name(form: Form) -> str:
    name = form.get("name", "").strip()
    if not name:
        raise InvalidError("name: no topic is named")
    return name


def _create(cluster: KafkaCluster, form: Form, *, validate_only: bool) -> None:
    answer = cluster.look_again(
        lambda: create_topic(
            cluster,
            _name(form),
            config_pairs(form.get("configs", "")),
            partitions=whole_number(form.get("partitions", ""), "partitions", 1, INT32_MAX) or BY_DEFAULT,
            validate_only=validate_only,
        )
    )
    require(answer.error_code, answer.error_message, _name(form))


def _grow(cluster: KafkaCluster, form: Form, *, validate_only: bool) -> None:
    count = whole_number(form.get("partitions", ""), "partitions", 1, INT32_MAX)
    if count is None:
        raise InvalidError("partitions: no number is given")
    cluster.look_again(lambda: add_partitions(cluster, _name(form), count, validate_only=validate_only))


def _configure(cluster: KafkaCluster, form: Form, *, validate_only: bool) -> None:
    changes, resource = [config_change(form)], (TOPIC, _name(form))
    cluster.look_again(lambda: change_configs(cluster, resource, changes, validate_only=validate_only))


def _reset(cluster: KafkaCluster, form: Form) -> None:
    moves = offset_moves(form.get("moves", ""))
    group = form.get("group", "")
    change = offsets_of(cluster, group).change
    cluster.look_again(lambda: change(cluster, group, moves))


def _limit(cluster: KafkaCluster, form: Form, *, validate_only: bool) -> None:
    entity, (key, value) = quota_entity(form), quota_value(form)
    cluster.look_again(lambda: change_quotas(cluster, entity, {key: value}, validate_only=validate_only))


def _says_limit(form: Form) -> list[str]:
    key, value = quota_value(form)
    return [
        f"{key} of {shown_entity(quota_entity(form))} is {value:,.10g} from then on.",
        "A client over its quota is not refused: its answers and its next requests wait.",
    ]


def _require_topic(cluster: KafkaCluster, name: str) -> None:
    cluster.metadata([name])


def _require_empty(cluster: KafkaCluster, group: str) -> None:
    """The coordinator would refuse it, too."""
    if offsets_of(cluster, group).members:
        raise InvalidError(f"the group has members, stop them first: group={group}")


def _topic_page(form: Form) -> str:
    return link("/topic", name=_name(form))


def _says_create(form: Form) -> list[str]:
    count = form.get("partitions", "").strip()
    configs = config_pairs(form.get("configs", ""))
    return [
        f"Topic {_name(form)} is created with {count or 'the default number of'} partitions.",
        *(f"Its {name} is {value}." for name, value in configs.items()),
    ]


def _says_configure(form: Form) -> list[str]:
    name, operation, value = config_change(form)
    done = f"is set to {value}" if operation == SET else "is removed from the topic, so that the default applies"
    return [f"{name} of topic {_name(form)} {done}."]


CHANGES: dict[str, ChangeRequest] = {
    "create-topic": ChangeRequest(
        "Create a topic",
        ("name", "partitions", "configs"),
        _says_create,
        lambda cluster, form: _create(cluster, form, validate_only=True),
        lambda cluster, form: _create(cluster, form, validate_only=False),
        _topic_page,
    ),
    "delete-topic": ChangeRequest(
        "Delete a topic",
        ("name",),
        lambda form: [
            f"Topic {_name(form)} and all its records are deleted.",
            f"For file.delete.delay.ms from then on headrace topics restore {_name(form)} brings it back; later"
            " nothing does.",
        ],
        lambda cluster, form: _require_topic(cluster, _name(form)),
        lambda cluster, form: cluster.look_again(lambda: delete_topic(cluster, _name(form))),
        lambda form: "/topics",
        types_name="name",
    ),
    "alter-topic-config": ChangeRequest(
        "Change a topic's config",
        ("name", "config", "value", "action"),
        _says_configure,
        lambda cluster, form: _configure(cluster, form, validate_only=True),
        lambda cluster, form: _configure(cluster, form, validate_only=False),
        _topic_page,
    ),
    "add-partitions": ChangeRequest(
        "Add partitions",
        ("name", "partitions"),
        lambda form: [
            f"Topic {_name(form)} has {form.get('partitions', '').strip()} partitions from then on.",
            "New records of a key may go to another partition than its earlier ones: the order of keys is kept only by"
            " headrace topics alter --double.",
        ],
        lambda cluster, form: _grow(cluster, form, validate_only=True),
        lambda cluster, form: _grow(cluster, form, validate_only=False),
        _topic_page,
    ),
    "set-quota": ChangeRequest(
        "Set a quota",
        ("user", "client_id", "key", "value"),
        _says_limit,
        lambda cluster, form: _limit(cluster, form, validate_only=True),
        lambda cluster, form: _limit(cluster, form, validate_only=False),
        lambda form: "/clients",
    ),
    "reset-offsets": ChangeRequest(
        "Reset offsets",
        ("group", "moves"),
        lambda form: [
            f"Group {form.get('group', '')} continues at the offsets of the preview in"
            f" {len(offset_moves(form.get('moves', '')))} partitions."
        ],
        lambda cluster, form: _require_empty(cluster, form.get("group", "")),
        _reset,
        lambda form: link("/group", name=form.get("group", "")),
    ),
}
"""Changes by the name in the URL."""
