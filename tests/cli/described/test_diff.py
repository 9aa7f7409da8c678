"""The plan of every pair of a cluster and a description keeps its promises; and planted bugs are found."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from headrace.cli.client.acls import Acl
from headrace.cli.described import diff
from headrace.cli.described.diff import Scope, Wishes, make_plan
from headrace.cli.described.state import (
    Action,
    ApplyStep,
    ClusterAbilities,
    ClusterState,
    FieldChange,
    ObjectKind,
    Risk,
    TopicState,
    UserState,
)
from tests.cli.described.described_world import World, broken_promises
from tests.patch import Patch
from tests.planted import PlantedBugs, Trial

SEEDS = range(150)
BUGS = PlantedBugs("described clusters")
Plant = Callable[[Patch], object]


def _turns(patch: Patch, before: str, after: str) -> None:
    """Exchange two turns of the order."""
    first, second = diff._Turn[before], diff._Turn[after]
    exchanged = {first: second, second: first}
    original = patch.replace(diff, "_turn", lambda step: exchanged.get(turn := original(step), turn))


def _steps_without(patch: Patch, name: str, is_left_out: Callable[[ApplyStep], bool]) -> None:
    def steps(*arguments: Any) -> Any:
        return (step for step in original(*arguments) if not is_left_out(step))

    original = patch.replace(diff, name, steps)


def _only_described(wanted: Any, found: Any) -> Any:
    return (FieldChange(name, found.get(name), wanted[name]) for name in wanted if found.get(name) != wanted[name])


def _without_risk(patch: Patch, name: str, risk: Risk) -> None:
    def steps(*arguments: Any) -> Any:
        for step in original(*arguments):
            yield ApplyStep(step.action, step.kind, step.key, step.changes) if step.risk is risk else step

    original = patch.replace(diff, name, steps)


def _prune_everything(patch: Patch) -> None:
    original = patch.replace(
        diff, "_is_pruned", lambda wishes, kind, key: original(Wishes(tuple(_wide(wishes))), kind, key)
    )


def _wide(wishes: Wishes) -> list[Scope]:
    return [Scope(scope.kind) for scope in wishes.pruned]


PLANTED: dict[str, Plant] = {
    "allow is created before deny": lambda patch: _turns(patch, "ALLOWED", "DENIED"),
    "deny is deleted before allow": lambda patch: _turns(patch, "NO_LONGER_ALLOWED", "NO_LONGER_DENIED"),
    "acls are deleted before others are created": lambda patch: _turns(patch, "ALLOWED", "NO_LONGER_ALLOWED"),
    "configs that are not described stay": lambda patch: patch.replace(diff, "_changed", _only_described),
    "pruning ignores the prefix": _prune_everything,
    "pruning needs no scope": lambda patch: patch.replace(diff, "_is_pruned", lambda *_: True),
    "new iterations are not seen": lambda patch: _steps_without(
        patch, "_users", lambda step: step.action is Action.ALTER
    ),
    "a lower count has no risk": lambda patch: _without_risk(patch, "_altered_topic", Risk.PARTITIONS),
    "a deleted topic has no risk": lambda patch: _without_risk(patch, "_pruned", Risk.DATA),
    "unlimited is the lowest retention": lambda patch: patch.replace(
        diff, "_number", lambda text: None if text is None else max(0, int(text))
    ),
    "a new policy has no risk": lambda patch: patch.replace(diff, "_POLICIES", frozenset()),
    "an inherited value is not looked at": lambda patch: patch.replace(
        diff, "may_remove_records", lambda name, old, new: old != new and new == "1000"
    ),
    "a count is set with the next run only": lambda patch: _steps_without(
        patch, "_altered_topic", lambda step: step.changes[0].field == "partitions" and step.changes[0].after == "3"
    ),
}


@pytest.mark.parametrize("seed", SEEDS)
def test_every_plan_keeps_its_promises(seed: int) -> None:
    assert broken_promises(World(seed)) == []


@BUGS.cases(PLANTED)
def test_a_planted_bug_is_found(bug: str, trial: Trial) -> None:
    for seed in trial.seeds():
        with trial.planted(PLANTED[bug]):
            trial.saw(broken_promises(World(seed)))


def _topic(**configs: str) -> ClusterState:
    return ClusterState({"t": TopicState(3, 1, {name.replace("_", "."): value for name, value in configs.items()})})


def test_what_is_impossible_is_refused_with_its_reason() -> None:
    wanted = ClusterState(
        {"t": TopicState(2, 3)}, frozenset([Acl("topic", "t", "literal", "User:a", "*", "Read", "allow")])
    )
    facts = ClusterAbilities(can_lower_counts=False, has_acls=False)
    reasons = [refusal.reason for refusal in make_plan(wanted, _topic(), None, facts).refusals]
    assert reasons == [
        "replicationFactor is 1 since the topic was created, and cannot become 3",
        "partitions is 3, and this cluster cannot lower it to 2",
        "the cluster has no authorizer (authorizer.class.name), and so no ACLs",
    ]
    secret = ClusterAbilities(secret_configs=frozenset(["ssl.key.password"]))
    plan = make_plan(ClusterState(configs={"ssl.key.password": "x"}), ClusterState(), None, secret)
    assert (len(plan.refusals), plan.steps) == (1, ())


@pytest.mark.parametrize(
    ("before", "after", "risk"),
    [
        ({"retention_ms": "-1"}, {"retention_ms": "999999999"}, Risk.DATA),
        ({"retention_ms": "5"}, {"retention_ms": "-1"}, Risk.NONE),
        ({"retention_ms": "5"}, {"retention_ms": "6"}, Risk.NONE),
        ({"retention_bytes": "6"}, {"retention_bytes": "5"}, Risk.DATA),
        ({"retention_ms": "5"}, {}, Risk.DATA),
        ({"table_retention_ms": "-1"}, {"table_retention_ms": "999999999"}, Risk.DATA),
        ({"table_retention_ms": "6"}, {"table_retention_ms": "5"}, Risk.DATA),
        ({}, {"table_retention_ms": "5"}, Risk.DATA),
        ({"table_retention_ms": "5"}, {"table_retention_ms": "-1"}, Risk.NONE),
        ({"cleanup_policy": "compact"}, {"cleanup_policy": "compact,delete"}, Risk.DATA),
        ({"cleanup_policy": "compact,delete"}, {"cleanup_policy": "compact"}, Risk.NONE),
        ({"segment_ms": "9"}, {"segment_ms": "1"}, Risk.NONE),
    ],
)
def test_a_config_that_may_remove_records_has_a_risk(before: Any, after: Any, risk: Risk) -> None:
    """The worse value is assumed, because it is unknown here what a topic inherits."""
    (step,) = make_plan(_topic(**after), _topic(**before)).steps
    assert step.risk is risk


def test_passwords_are_set_again_on_request_only() -> None:
    users = {("a", "SCRAM-SHA-512"): UserState(None, "${env:A}")}
    current = ClusterState(users={("a", "SCRAM-SHA-512"): UserState(8192)})
    assert make_plan(ClusterState(users=users), current).steps == ()
    (step,) = make_plan(ClusterState(users=users), current, Wishes(set_passwords=True)).steps
    assert (step.action, step.kind, step.changes) == (
        Action.ALTER,
        ObjectKind.USER,
        (FieldChange("iterations", "8192", "8192"),),
    )


@pytest.mark.requirement("X14")
def test_copies_of_a_link_are_not_pruned() -> None:
    """A link creates them, and the cluster refuses to delete one."""
    wishes = Wishes((Scope(ObjectKind.TOPIC),))
    (step,) = make_plan(ClusterState(), _topic(), wishes).steps
    assert (step.action, step.key) == (Action.DELETE, "t")
    assert make_plan(ClusterState(), _topic(), wishes, ClusterAbilities(copies=frozenset("t"))).steps == ()
