"""Compares a described cluster with a running one: the ordered steps from one to the other. Pure.

Place: between reading.py and current.py, which make its inputs, and execution.py, which takes its steps.
Invariant of losses: a change that may remove records is never taken for harmless. A value that is unknown is taken
for the worse one.
Invariant:
- The steps of a plan, applied to the cluster that it was made for, leave no difference: a second plan is empty.
- After any number of them, a new plan makes the rest. So a run can be interrupted anywhere and repeated.
- What was allowed before and is allowed afterwards is allowed at every point between; what is denied at both ends is
  never allowed between. Therefore DENY before ALLOW when ACLs are created, and ALLOW before DELETE of a DENY.
- Without a scope nothing is deleted; a step that may remove records or partitions has a risk.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from headrace.cli.client.acls import Acl
from headrace.cli.client.quotas import CLIENT_ID, IP, USER
from headrace.cli.described.state import (
    Action,
    ApplyStep,
    ClusterAbilities,
    ClusterState,
    FieldChange,
    Key,
    ObjectKind,
    RefusedChange,
    Risk,
    TopicState,
)
from headrace.config.link_configs import STATE

FOREVER = -1
IS_SET = "(set)"
"""The value of a link's secret that is set: no cluster shows it, so it counts as the described one."""
_LIMITS = frozenset(
    (
        "retention.ms",
        "retention.bytes",
        "table.retention.ms",
        "log.retention.ms",
        "log.retention.minutes",
        "log.retention.hours",
        "log.retention.bytes",
    )
)
"""Configs that say how much is kept, in the topic or in its table: a lower value removes records."""
_POLICIES = frozenset(("cleanup.policy", "log.cleanup.policy"))
"""Configs that say what removes records: delete, compact."""


def may_remove_records(config: str, before: str | None, after: str | None) -> bool:
    """Return whether records that `before` keeps may be removed by `after`. None: unknown."""
    if config in _LIMITS:
        kept, will_keep = _number(before), _number(after)
        if will_keep == FOREVER:
            return False
        return kept is None or will_keep is None or kept == FOREVER or will_keep < kept
    if config in _POLICIES:
        return after is None or before is None or not _policies(after) <= _policies(before)
    return False


def _number(text: str | None) -> int | None:
    try:
        found = None if text is None else int(text)
    except ValueError:
        return None
    return FOREVER if found is not None and found < 0 else found


def _policies(text: str) -> set[str]:
    return {part.strip().lower() for part in text.split(",") if part.strip()}


DENY = "deny"
NO_FACTS = ClusterAbilities()


class Scope(NamedTuple):
    """Objects that are deleted if they are not described: those of a kind with names that begin with `prefix`."""

    kind: ObjectKind
    prefix: str = ""


@dataclass(frozen=True, slots=True)
class Wishes:
    """What the caller asks for besides the description."""

    pruned: tuple[Scope, ...] = ()
    set_passwords: bool = False
    """Set the passwords of described users again: no cluster shows whether they are still the same."""


@dataclass(frozen=True, slots=True)
class ApplyPlan:
    """The steps in their order, and what cannot be done. With refusals, no step is to be taken."""

    steps: tuple[ApplyStep, ...] = ()
    refusals: tuple[RefusedChange, ...] = field(default=())


class _Turn(enum.IntEnum):
    """The order of steps: what a later step needs or would expose comes first, deletions come last.

    A lower number of partitions cannot be checked without doing it, so that it is first: if it is refused, nothing has
    changed.
    """

    COUNTS_LOWERED = -1
    CONFIGS = 0
    QUOTAS = 1
    DENIED = 2
    ALLOWED = 3
    USERS = 4
    TOPICS = 5
    LINKS = 6
    NO_LONGER_ALLOWED = 7
    USERS_DELETED = 8
    NO_LONGER_DENIED = 9
    QUOTAS_DELETED = 10
    CONFIGS_DELETED = 11
    LINKS_DELETED = 12
    TOPICS_DELETED = 13


def make_plan(
    wanted: ClusterState, current: ClusterState, wishes: Wishes | None = None, facts: ClusterAbilities = NO_FACTS
) -> ApplyPlan:
    """Return the steps from `current` to `wanted`."""
    wishes = wishes or Wishes()
    refusals: list[RefusedChange] = []
    steps = [
        *_topics(wanted, current, wishes, facts, refusals),
        *_acls(wanted, current, wishes, facts, refusals),
        *_users(wanted, current, wishes),
        *_quotas(wanted, current, wishes),
        *_configs(wanted, current, wishes, facts, refusals),
        *_links(wanted, current, wishes, facts, refusals),
        *_named_configs(wanted, current, wishes),
    ]
    return ApplyPlan(tuple(sorted(steps, key=lambda step: (_turn(step), step.name))), tuple(refusals))


def prune_name(kind: ObjectKind, key: Key) -> str:
    """Return the name that begins with a scope's prefix: an ACL's principal, an entity's user, client or address."""
    if isinstance(key, Acl):
        return key.principal
    if isinstance(key, str):
        return key
    if kind is ObjectKind.USER:
        return str(key[0])
    named = dict(_pairs(key))
    return next((named[each] or "" for each in (USER, CLIENT_ID, IP) if each in named), "")


def _pairs(key: Key) -> Iterator[tuple[str, str | None]]:
    for part in key:
        if isinstance(part, tuple):
            yield part


def _topics(
    wanted: ClusterState, current: ClusterState, wishes: Wishes, facts: ClusterAbilities, refusals: list[RefusedChange]
) -> Iterator[ApplyStep]:
    for name, topic in wanted.topics.items():
        if (found := current.topics.get(name)) is None:
            yield ApplyStep(Action.CREATE, ObjectKind.TOPIC, name, tuple(_created(topic)))
            continue
        yield from _altered_topic(name, topic, found, facts, refusals)
    gone = current.topics.keys() - wanted.topics.keys() - facts.copies
    yield from _pruned(wishes, ObjectKind.TOPIC, gone, Risk.DATA)


def _created(topic: TopicState) -> Iterator[FieldChange]:
    for name, count in (("partitions", topic.partitions), ("replicationFactor", topic.replication_factor)):
        if count is not None:
            yield FieldChange(name, None, str(count))
    yield from (FieldChange(name, None, value) for name, value in sorted(topic.configs.items()))


def _altered_topic(
    name: str, topic: TopicState, found: TopicState, facts: ClusterAbilities, refusals: list[RefusedChange]
) -> Iterator[ApplyStep]:
    """Configs and count are two steps, because each is one request."""
    factor = topic.replication_factor
    if factor is not None and factor != found.replication_factor:
        reason = (
            f"replicationFactor is {found.replication_factor} since the topic was created, and cannot become {factor}"
        )
        refusals.append(RefusedChange(ObjectKind.TOPIC, name, reason))
    if changes := tuple(_changed(topic.configs, found.configs)):
        inherited = facts.inherited.get(name, {})
        loses = any(
            may_remove_records(
                change.field,
                inherited.get(change.field) if change.before is None else change.before,
                inherited.get(change.field) if change.after is None else change.after,
            )
            for change in changes
        )
        yield ApplyStep(Action.ALTER, ObjectKind.TOPIC, name, changes, Risk.DATA if loses else Risk.NONE)
    count, before = topic.partitions, found.partitions
    if count is None or before is None or count == before:
        return
    if count < before and not facts.can_lower_counts:
        reason = f"partitions is {before}, and this cluster cannot lower it to {count}"
        refusals.append(RefusedChange(ObjectKind.TOPIC, name, reason))
        return
    risk = Risk.PARTITIONS if count < before else Risk.NONE
    yield ApplyStep(Action.ALTER, ObjectKind.TOPIC, name, (FieldChange("partitions", str(before), str(count)),), risk)


def _acls(
    wanted: ClusterState, current: ClusterState, wishes: Wishes, facts: ClusterAbilities, refusals: list[RefusedChange]
) -> Iterator[ApplyStep]:
    if wanted.acls and not facts.has_acls:
        reason = "the cluster has no authorizer (authorizer.class.name), and so no ACLs"
        refusals.append(RefusedChange(ObjectKind.ACL, min(wanted.acls), reason))
        return
    yield from (ApplyStep(Action.CREATE, ObjectKind.ACL, acl) for acl in wanted.acls - current.acls)
    yield from _pruned(wishes, ObjectKind.ACL, current.acls - wanted.acls)


def _users(wanted: ClusterState, current: ClusterState, wishes: Wishes) -> Iterator[ApplyStep]:
    for key, user in wanted.users.items():
        found = current.users.get(key)
        after = None if user.iterations is None else str(user.iterations)
        if found is None:
            yield ApplyStep(Action.CREATE, ObjectKind.USER, key, (FieldChange("iterations", None, after),))
        elif wishes.set_passwords or user.iterations not in (None, found.iterations):
            before = str(found.iterations)
            yield ApplyStep(Action.ALTER, ObjectKind.USER, key, (FieldChange("iterations", before, after or before),))
    yield from _pruned(wishes, ObjectKind.USER, current.users.keys() - wanted.users.keys())


def _quotas(wanted: ClusterState, current: ClusterState, wishes: Wishes) -> Iterator[ApplyStep]:
    for entity, limits in wanted.quotas.items():
        found = current.quotas.get(entity, {})
        changes = tuple(_changed(_texts(limits), _texts(found)))
        if changes:
            yield ApplyStep(Action.ALTER if found else Action.CREATE, ObjectKind.QUOTA, entity, changes)
    for entity in current.quotas.keys() - wanted.quotas.keys():
        if _is_pruned(wishes, ObjectKind.QUOTA, entity):
            gone = tuple(_changed({}, _texts(current.quotas[entity])))
            yield ApplyStep(Action.DELETE, ObjectKind.QUOTA, entity, gone)


def _configs(
    wanted: ClusterState, current: ClusterState, wishes: Wishes, facts: ClusterAbilities, refusals: list[RefusedChange]
) -> Iterator[ApplyStep]:
    """Configs of the cluster are described one by one: a cluster has many that the files do not mention."""
    secret = "its value is a secret, which no file should have: `headrace configs set`"
    refusals += (
        RefusedChange(ObjectKind.CONFIG, name, secret) for name in sorted(wanted.configs.keys() & facts.secret_configs)
    )
    for change in _changed(wanted.configs, current.configs):
        if change.field in facts.secret_configs:
            continue
        loses = may_remove_records(*change)
        risk = Risk.DATA if loses else Risk.NONE
        if change.after is not None:
            action = Action.CREATE if change.before is None else Action.ALTER
            yield ApplyStep(action, ObjectKind.CONFIG, change.field, (change,), risk)
        elif _is_pruned(wishes, ObjectKind.CONFIG, change.field):
            yield ApplyStep(Action.DELETE, ObjectKind.CONFIG, change.field, (change,), risk)


def _links(
    wanted: ClusterState, current: ClusterState, wishes: Wishes, facts: ClusterAbilities, refusals: list[RefusedChange]
) -> Iterator[ApplyStep]:
    """Compare links without what an operator changes while they run: whether they are paused, if no file says it."""
    if wanted.links and not facts.has_links:
        reason = "the cluster cannot copy topics of others: it is no Headrace, or its agents are older"
        refusals.append(RefusedChange(ObjectKind.LINK, min(wanted.links), reason))
        return
    for name, configs in wanted.links.items():
        found = current.links.get(name)
        shown = {key: value for key, value in (found or {}).items() if key != STATE or STATE in configs}
        before = {key: IS_SET if value is None else value for key, value in shown.items()}
        after = {key: _described(value, before.get(key)) for key, value in configs.items()}
        if changes := tuple(_changed(after, before)):
            yield ApplyStep(Action.CREATE if found is None else Action.ALTER, ObjectKind.LINK, name, changes)
    yield from _pruned(wishes, ObjectKind.LINK, current.links.keys() - wanted.links.keys())


def _named_configs(wanted: ClusterState, current: ClusterState, wishes: Wishes) -> Iterator[ApplyStep]:
    """Configs of groups and of subscriptions: without any, the object is not there."""
    for kind in (ObjectKind.GROUP, ObjectKind.CLIENT_METRICS):
        described, shown = wanted.configs_of(kind), current.configs_of(kind)
        for name, configs in described.items():
            found = shown.get(name, {})
            if changes := tuple(_changed(configs, found)):
                yield ApplyStep(Action.ALTER if found else Action.CREATE, kind, name, changes)
        for name in shown.keys() - described.keys():
            if _is_pruned(wishes, kind, name):
                yield ApplyStep(Action.DELETE, kind, name, tuple(_changed({}, shown[name])))


def _described(value: str | None, before: str | None) -> str:
    """Return a described value of a link's config, for the comparison with what the cluster shows."""
    if value is None:
        return before or IS_SET
    return IS_SET if before == IS_SET else value


def _changed(wanted: Mapping[str, str], found: Mapping[str, str]) -> Iterator[FieldChange]:
    for name in sorted(wanted.keys() | found.keys()):
        before, after = found.get(name), wanted.get(name)
        if before != after:
            yield FieldChange(name, before, after)


def _texts(limits: Mapping[str, float]) -> dict[str, str]:
    return {key: shown_limit(value) for key, value in limits.items()}


def shown_limit(value: float) -> str:
    """Return the shortest text of a quota that gives the same number: 1024, not 1024.0."""
    return str(int(value)) if value == int(value) else repr(value)


def _pruned(wishes: Wishes, kind: ObjectKind, keys: Iterable[Key], risk: Risk = Risk.NONE) -> Iterator[ApplyStep]:
    yield from (ApplyStep(Action.DELETE, kind, key, (), risk) for key in keys if _is_pruned(wishes, kind, key))


def _is_pruned(wishes: Wishes, kind: ObjectKind, key: Key) -> bool:
    return any(kind is scope.kind and prune_name(kind, key).startswith(scope.prefix) for scope in wishes.pruned)


def _turn(step: ApplyStep) -> _Turn:
    deletes = step.action is Action.DELETE
    if step.risk is Risk.PARTITIONS:
        return _Turn.COUNTS_LOWERED
    if isinstance(step.key, Acl):
        if step.key.permission == DENY:
            return _Turn.NO_LONGER_DENIED if deletes else _Turn.DENIED
        return _Turn.NO_LONGER_ALLOWED if deletes else _Turn.ALLOWED
    first, last = {
        ObjectKind.CONFIG: (_Turn.CONFIGS, _Turn.CONFIGS_DELETED),
        ObjectKind.QUOTA: (_Turn.QUOTAS, _Turn.QUOTAS_DELETED),
        ObjectKind.USER: (_Turn.USERS, _Turn.USERS_DELETED),
        ObjectKind.TOPIC: (_Turn.TOPICS, _Turn.TOPICS_DELETED),
        ObjectKind.LINK: (_Turn.LINKS, _Turn.LINKS_DELETED),
        ObjectKind.GROUP: (_Turn.CONFIGS, _Turn.CONFIGS_DELETED),
        ObjectKind.CLIENT_METRICS: (_Turn.CONFIGS, _Turn.CONFIGS_DELETED),
    }[step.kind]
    return last if deletes else first
