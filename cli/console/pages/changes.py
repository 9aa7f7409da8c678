"""Confirms changes, then applies them: GET shows what will happen, POST does it.

Place: /new-topic, /new-quota, /confirm/NAME and /apply/NAME.
Invariant of a change: `check` changes nothing; `apply` is called only with --allow-changes, after a confirmation.
The cluster's own rules decide: a refusal is its error, with its reason.
Invariant: without --allow-changes each of them is refused (403). A POST needs the token of the confirmation page;
the state is in the URL until then, so a colleague can look at a change before it is made.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import NamedTuple

from fastapi import FastAPI, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import RedirectResponse

from headrace.cli.client.groups import offsets_of
from headrace.cli.client.offsets import TopicPartition
from headrace.cli.client.quotas import CLIENT_ID, KEYS, USER, Entity, change_quotas, entity_of, shown_entity
from headrace.cli.client.topics import BY_DEFAULT, add_partitions, create_topic, delete_topic
from headrace.cli.configs import DELETE, SET, TOPIC, Change, change_configs
from headrace.cli.console.access import read_form
from headrace.cli.console.pages.groups import MOVES_MAX
from headrace.cli.console.parts import ConsoleParts, link, whole_number
from headrace.cli.options import INT32_MAX, INT64_MAX
from headrace.protocol.client.cluster import KafkaCluster, require
from headrace.storage.errors import HeadraceError, InvalidError, NotFoundError, RetryableError

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


READ_ONLY = "this console is read-only: start it with --allow-changes"
TYPED = "typed_name"
NOT_OURS = "the form is not of this console, or the console was restarted meanwhile: go back, load the page again"


def add_pages(app: FastAPI, console: ConsoleParts) -> None:
    """/new-topic, /new-quota, /confirm/NAME, /apply/NAME"""

    @app.get("/new-topic")
    def new_topic() -> Response:
        return console.pages.render("new_topic") if console.allows_changes else _refused(console, READ_ONLY)

    @app.get("/new-quota")
    def new_quota(user: str = "", client_id: str = "") -> Response:
        if not console.allows_changes:
            return _refused(console, READ_ONLY)
        return console.pages.render("new_quota", user=user, client_id=client_id, keys=CLIENT_QUOTAS)

    @app.get("/confirm/{name}")
    def confirm(name: str, request: Request) -> Response:
        change = change_of(name)
        if not console.allows_changes:
            return _refused(console, READ_ONLY)
        form = {field: request.query_params.get(field, "") for field in change.fields}
        return _confirmation(console, request, name, form)

    @app.post("/apply/{name}")
    async def apply(name: str, request: Request) -> Response:
        change = change_of(name)
        if not console.allows_changes:
            return _refused(console, READ_ONLY)
        form = await read_form(request)
        if not console.tokens.accepts(request, form):
            return _refused(console, NOT_OURS)
        fields = {field: form.get(field, "") for field in change.fields}
        return await run_in_threadpool(_apply, console, change, fields, form.get(TYPED, ""))


def change_of(name: str) -> ChangeRequest:
    """NotFoundError for an unknown name."""
    if name not in CHANGES:
        raise NotFoundError(f"no such change: {name[:40]}")
    return CHANGES[name]


def _confirmation(console: ConsoleParts, request: Request, name: str, form: dict[str, str]) -> Response:
    change, error = CHANGES[name], ""
    try:
        says = change.says(form)
        with console.link.opened() as cluster:
            change.check(cluster, form)
    except RetryableError:
        raise
    except HeadraceError as refusal:
        says, error = [], str(refusal)
    browser = console.tokens.browser_of(request)
    page = console.pages.render(
        "confirm",
        400 if error else 200,
        name=name,
        change=change,
        says=says,
        error=error,
        form=form,
        typed=form[change.types_name] if change.types_name else "",
        typed_field=TYPED,
        csrf_token=console.tokens.token(browser),
    )
    console.tokens.keep(request, page, browser)
    return page


def _apply(console: ConsoleParts, change: ChangeRequest, form: dict[str, str], typed: str) -> Response:
    if change.types_name and typed.strip() != form[change.types_name].strip():
        raise InvalidError("the name was not typed as it is: nothing was done")
    change.says(form)
    with console.link.opened() as cluster:
        change.apply(cluster, form)
    return RedirectResponse(change.then(form), 303)


def _refused(console: ConsoleParts, why: str) -> Response:
    return console.pages.render("error", 403, title="Not allowed", error=why, tried="", retries=False)
