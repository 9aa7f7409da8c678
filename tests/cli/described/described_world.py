"""Random clusters and descriptions, a model of what each step does, and the promises that hold for every plan.

Place: under test_diff.py. The model changes values of state.py as a cluster would, without the code of the plan.
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

from headrace.cli.client.acls import Acl
from headrace.cli.client.quotas import Entity
from headrace.cli.described.diff import ApplyPlan, Scope, Wishes, make_plan
from headrace.cli.described.state import (
    Action,
    ApplyStep,
    ClusterAbilities,
    ClusterState,
    ObjectKind,
    Risk,
    TopicState,
    UserState,
)

TOPICS = ("a.orders", "a.bills", "b.orders")
USERS = ("a.ann", "b.bob")
MECHANISMS = ("SCRAM-SHA-256", "SCRAM-SHA-512")
PREFIXES = ("", "a.", "b.")
VALUES = {
    "retention.ms": ("1000", "5000", "-1"),
    "retention.bytes": ("100", "-1"),
    "cleanup.policy": ("delete", "compact", "compact,delete"),
    "segment.ms": ("7", "8"),
}
INHERITED = {"retention.ms": "3000", "retention.bytes": "-1", "cleanup.policy": "delete", "segment.ms": "9"}
CLUSTER_VALUES = {"log.retention.ms": ("1000", "-1"), "num.partitions": ("1", "2")}
RATES = ("producer_byte_rate", "request_percentage")
PARTITIONS_DEFAULT, FACTOR = 1, 3
ITERATIONS_DEFAULT = 4096
FOREVER = 10**9
LINKS = ("a.link", "b.link")


class World:
    """A cluster, a description and what the caller asks for, drawn from a seed."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)
        self._of_links = random.Random(f"links {seed}")
        self._of_groups = random.Random(f"groups {seed}")
        self.current = self._state(described=False)
        self.wanted = self._state(described=True)
        scopes = [Scope(kind, self._rng.choice(PREFIXES)) for kind in ObjectKind if self._rng.random() < 0.5]
        self.wishes = Wishes(tuple(scopes))
        self.facts = ClusterAbilities(inherited=dict.fromkeys(TOPICS, INHERITED))

    def plan(self, state: ClusterState) -> ApplyPlan:
        return make_plan(self.wanted, state, self.wishes, self.facts)

    def _state(self, *, described: bool) -> ClusterState:
        rng = self._rng
        topics = {}
        for name in TOPICS:
            if rng.random() < 0.6:
                count = None if described and rng.random() < 0.3 else rng.randint(1, 3)
                configs = {key: rng.choice(values) for key, values in VALUES.items() if rng.random() < 0.5}
                topics[name] = TopicState(count, None if described else FACTOR, configs)
        users = {
            (name, mechanism): UserState(rng.choice((None, 4096, 8192)) if described else rng.choice((4096, 8192)))
            for name in USERS
            for mechanism in MECHANISMS
            if rng.random() < 0.4
        }
        entities: list[Entity] = [(("user", "a.ann"),), (("user", None),), (("client-id", "b.app"),)]
        quotas = {
            entity: {
                key: rng.choice((1.5, 2.0)) for key in ("producer_byte_rate", "request_percentage")[: rng.randint(1, 2)]
            }
            for entity in entities
            if rng.random() < 0.5
        }
        configs = {key: rng.choice(values) for key, values in CLUSTER_VALUES.items() if rng.random() < 0.5}
        acls = frozenset(self._acl() for _ in range(rng.randint(0, 6)))
        links, groups, metrics = self._links(described=described), self._named_configs(), self._named_configs()
        return ClusterState(topics, acls, users, quotas, configs, links, groups, metrics)

    def _named_configs(self) -> dict[str, dict[str, str]]:
        rng = self._of_groups
        return {
            name: {key: rng.choice("12") for key in rng.sample(("x", "y"), rng.randint(1, 2))}
            for name in LINKS
            if rng.random() < 0.5
        }

    def _links(self, *, described: bool) -> dict[str, dict[str, str | None]]:
        rng, links = self._of_links, dict[str, dict[str, str | None]]()
        for name in LINKS:
            if rng.random() < 0.5:
                links[name] = {
                    "bootstrap.servers": "a:1",
                    "topics": rng.choice(("a", "b")),
                    "sasl.password": "${env:HEADRACE_LINK_P}" if described else None,
                }
                links[name] |= {"link.state": rng.choice(("active", "paused"))} if rng.random() < 0.5 else {}
        return links

    def _acl(self) -> Acl:
        rng = self._rng
        principal, permission = f"User:{rng.choice(USERS)}", rng.choice(("allow", "deny"))
        name, pattern = rng.choice(((TOPICS[0], "literal"), (TOPICS[0][:2], "prefix")))
        return Acl("topic", name, pattern, principal, "*", rng.choice(("Read", "Write")), permission)


def applied(state: ClusterState, step: ApplyStep, wanted: ClusterState) -> ClusterState:
    """Return the cluster after the step."""
    deletes = step.action is Action.DELETE
    if isinstance(step.key, Acl):
        return replace(state, acls=state.acls - {step.key} if deletes else state.acls | {step.key})
    field = {
        ObjectKind.TOPIC: "topics",
        ObjectKind.USER: "users",
        ObjectKind.QUOTA: "quotas",
        ObjectKind.CONFIG: "configs",
        ObjectKind.LINK: "links",
        ObjectKind.GROUP: "groups",
        ObjectKind.CLIENT_METRICS: "client_metrics",
    }[step.kind]
    objects = dict(getattr(state, field))
    if deletes:
        del objects[step.key]
    elif step.kind is ObjectKind.TOPIC:
        objects[step.key] = _topic(objects.get(step.key), step, wanted)
    elif step.kind is ObjectKind.USER:
        (change,) = step.changes
        objects[step.key] = UserState(int(change.after or ITERATIONS_DEFAULT))
    elif step.kind is ObjectKind.QUOTA:
        objects[step.key] = _values(objects.get(step.key, {}), step, float)
    elif step.kind in (ObjectKind.LINK, ObjectKind.GROUP, ObjectKind.CLIENT_METRICS):
        objects[step.key] = _values(objects.get(step.key, {}), step, str)
    else:
        (change,) = step.changes
        objects[step.key] = change.after
    changed: dict[str, Any] = {field: objects}
    return replace(state, **changed)


def _topic(found: TopicState | None, step: ApplyStep, wanted: ClusterState) -> TopicState:
    if found is None:
        topic = wanted.topics[str(step.key)]
        return TopicState(topic.partitions or PARTITIONS_DEFAULT, FACTOR, topic.configs)
    if step.changes[0].field == "partitions":
        return replace(found, partitions=int(step.changes[0].after or 0))
    return replace(found, configs=_values(found.configs, step, str))


def _values(found: Any, step: ApplyStep, kind: type) -> dict[str, Any]:
    values = dict(found)
    for change in step.changes:
        if change.after is None:
            del values[change.field]
        else:
            values[change.field] = kind(change.after)
    return values


def broken_promises(world: World) -> list[str]:
    """Return what does not hold for the plan of this world."""
    plan = world.plan(world.current)
    states = [world.current]
    for step in plan.steps:
        states.append(applied(states[-1], step, world.wanted))
    end = states[-1]
    broken = [f"a second plan has steps: {step.name}" for step in world.plan(end).steps]
    broken += _not_as_described(world.wanted, end)
    broken += _not_left_alone(world, end)
    for number, state in enumerate(states):
        rest = state
        for step in world.plan(state).steps:
            rest = applied(rest, step, world.wanted)
        if rest != end:
            broken.append(f"interrupted after {number} steps, a repeated run ends elsewhere")
        broken += _access(world.current, state, end)
    for step, before in zip(plan.steps, states, strict=False):
        broken += _risk(step, before, applied(before, step, world.wanted))
    return broken


def _not_as_described(wanted: ClusterState, end: ClusterState) -> list[str]:
    broken = []
    for name, topic in wanted.topics.items():
        found = end.topics.get(name)
        same = found is not None and dict(found.configs) == dict(topic.configs)
        if found is None or not same or topic.partitions not in (None, found.partitions):
            broken.append(f"topic {name} is not as described")
    for key, user in wanted.users.items():
        if key not in end.users or user.iterations not in (None, end.users[key].iterations):
            broken.append(f"user {key} is not as described")
    broken += [f"quotas of {key} are not as described" for key, q in wanted.quotas.items() if end.quotas.get(key) != q]
    broken += [f"{key} is not as described" for key, value in wanted.configs.items() if end.configs.get(key) != value]
    for described, shown in ((wanted.groups, end.groups), (wanted.client_metrics, end.client_metrics)):
        broken += [f"{name} is not as described" for name, configs in described.items() if shown.get(name) != configs]
    return broken + [f"{acl} is missing" for acl in wanted.acls - end.acls]


def _not_left_alone(world: World, end: ClusterState) -> list[str]:
    """Objects that are not described: in a scope they are gone, else they are what they were."""
    before, wanted = world.current, world.wanted
    broken = [
        f"{acl}: pruned or kept against the scope"
        for acl in before.acls - wanted.acls
        if (acl in end.acls) == _in_scope(world.wishes, ObjectKind.ACL, acl.principal)
    ]
    groups: list[tuple[ObjectKind, Any, Any, Any]] = [
        (ObjectKind.TOPIC, before.topics, wanted.topics, end.topics),
        (ObjectKind.USER, before.users, wanted.users, end.users),
        (ObjectKind.QUOTA, before.quotas, wanted.quotas, end.quotas),
        (ObjectKind.CONFIG, before.configs, wanted.configs, end.configs),
        (ObjectKind.GROUP, before.groups, wanted.groups, end.groups),
        (ObjectKind.CLIENT_METRICS, before.client_metrics, wanted.client_metrics, end.client_metrics),
    ]
    for kind, had, described, has in groups:
        for key in had.keys() - described.keys():
            if _in_scope(world.wishes, kind, _name(kind, key)):
                broken += [f"{kind} {key} is in the scope, and still there"] if key in has else []
            elif has.get(key) != had[key]:
                broken.append(f"{kind} {key} is not described, and changed")
    return broken


def _in_scope(wishes: Wishes, kind: ObjectKind, name: str) -> bool:
    return any(scope.kind is kind and name.startswith(scope.prefix) for scope in wishes.pruned)


def _name(kind: ObjectKind, key: Any) -> str:
    if kind is ObjectKind.USER:
        return str(key[0])
    if kind is ObjectKind.QUOTA:
        return str(key[0][1] or "")
    return str(key)


def _access(before: ClusterState, state: ClusterState, after: ClusterState) -> list[str]:
    broken = []
    for principal in (f"User:{name}" for name in USERS):
        for operation in ("Read", "Write"):
            was, is_, will = (_may(each, principal, operation) for each in (before, state, after))
            if was == will and is_ != was:
                broken.append(f"{principal} {operation} was {was}, will be {will}, and is {is_} between")
    return broken


def _may(state: ClusterState, principal: str, operation: str) -> bool:
    """Return whether an ACL allows it on the first topic, and none denies it; both patterns include the topic."""
    permissions = {acl.permission for acl in state.acls if (acl.principal, acl.operation) == (principal, operation)}
    return permissions == {"allow"}


def _risk(step: ApplyStep, before: ClusterState, after: ClusterState) -> list[str]:
    """A step without a risk takes nothing away."""
    if step.risk is not Risk.NONE:
        return []
    broken = [f"{step.name} is deleted without a risk" for _ in before.topics.keys() - after.topics.keys()]
    for name in before.topics.keys() & after.topics.keys():
        had, has = before.topics[name], after.topics[name]
        if (has.partitions or 0) < (had.partitions or 0):
            broken.append(f"{name} loses partitions without a risk")
        if _kept(has.configs) < _kept(had.configs) or not _removers(has.configs) <= _removers(had.configs):
            broken.append(f"{name} may lose records without a risk")
    if _limit(after.configs.get("log.retention.ms")) < _limit(before.configs.get("log.retention.ms")):
        broken.append("topics may lose records without a risk")
    return broken


class _Kept(tuple[int, int]):
    """How long and how much a topic keeps; less in either is less."""

    def __lt__(self, other: object) -> bool:
        assert isinstance(other, _Kept)
        return self[0] < other[0] or self[1] < other[1]


def _kept(configs: Any) -> _Kept:
    values = INHERITED | dict(configs)
    return _Kept((_limit(values["retention.ms"]), _limit(values["retention.bytes"])))


def _removers(configs: Any) -> set[str]:
    values = INHERITED | dict(configs)
    return set(str(values["cleanup.policy"]).split(","))


def _limit(text: object) -> int:
    """Return the number; an unknown one is -1, which is the worst case."""
    return FOREVER if text in (None, "-1") else int(str(text))
