"""Makes the requests of `headrace cluster` to the running cluster.

Place: under cli/cluster.py. `plan` and `apply` compare what `read_cluster` returns with a description, `export` writes
it. `apply` checks the steps of its plan, and then carries them out, one request after another.
Invariant: only `run_steps` changes the cluster.
Invariant of what is read: internal topics and values that the cluster keeps secret are not part of the result.
Invariant of rights: `why_not_allowed` names a step only if the cluster says that the caller lacks the right; if it says
nothing, the step itself may be refused.
Source: KIP-430 (authorized operations).
Invariant of `apply`: before the first step, everything that can be checked is checked: secrets are read, and the
cluster is asked whether it would accept each step. A step is one request, so a run that is interrupted has done each
step or not; repeating it does the rest. A topic that exists already is no error: the answer to an earlier request may
have been lost. The caller compares again at the end, and so sees one that exists with other values.
"""

from __future__ import annotations

import functools
import os
import re
import secrets
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from kio.schema.errors import ErrorCode

from headrace.cli.client.acls import Acl, SecurityDisabledError, WantedAcls, create_acls, delete_acls, list_acls
from headrace.cli.client.cluster import KafkaCluster, require
from headrace.cli.client.features import is_headrace
from headrace.cli.client.quotas import change_quotas, list_quotas
from headrace.cli.client.topics import BY_DEFAULT, add_partitions, create_topic, delete_topic, set_count
from headrace.cli.client.users import ITERATIONS_DEFAULT, Credential, delete_credential, list_users, set_password
from headrace.cli.configs import BROKER, DELETE, SET, TOPIC, change_configs, describe_configs, describe_topics
from headrace.cli.configs import Change as ConfigChange
from headrace.cli.described.state import (
    Action,
    ApplyStep,
    ClusterAbilities,
    ClusterState,
    ObjectKind,
    TopicState,
    UserKey,
    UserState,
)
from headrace.config.errors import ConfigError
from headrace.config.load import resolved
from headrace.protocol.api_keys import ApiKey
from headrace.storage.errors import HeadraceError, InvalidError

SET_FOR_TOPIC, SET_FOR_ALL_BROKERS, DEFAULT = 1, 3, 5
"""Kafka's ConfigSource of values that were set for the topic, for the whole cluster, or not at all."""
EVERYTHING = frozenset(ObjectKind)
_INTERNAL = re.compile(
    r"__(consumer_offsets|transaction_state|share_group_state|cluster_metadata|remote_log_metadata.*)"
)
"""Topics of Kafka and Headrace themselves, also where Metadata does not call them internal."""


class FoundCluster(NamedTuple):
    """A cluster and what it can do."""

    state: ClusterState
    facts: ClusterAbilities


def read_cluster(
    cluster: KafkaCluster,
    kinds: Collection[ObjectKind] = EVERYTHING,
    configs_of: Collection[str] | None = None,
    cluster_configs: Collection[str] = (),
) -> FoundCluster:
    """Return the cluster's objects of these kinds. `configs_of`: the topics with configs in the result (None: all).

    A cluster without an authorizer has no ACLs. `cluster_configs`: configs of the cluster that are in the result also
    with their default: Headrace does not list a value that was set and is the default.
    """
    topics, inherited = _topics(cluster, configs_of) if ObjectKind.TOPIC in kinds else ({}, {})
    has_acls = True
    acls: frozenset[Acl] = frozenset()
    if ObjectKind.ACL in kinds:
        try:
            acls = frozenset(list_acls(cluster, WantedAcls()))
        except SecurityDisabledError:
            has_acls = False
    users = list_users(cluster) if ObjectKind.USER in kinds else []
    found = describe_configs(cluster, (BROKER, "")) if ObjectKind.CONFIG in kinds else []
    of_cluster = [each for each in found if each.config_source == SET_FOR_ALL_BROKERS and not each.read_only]
    state = ClusterState(
        topics,
        acls,
        {(each.user, each.mechanism): UserState(each.iterations) for each in users},
        list_quotas(cluster) if ObjectKind.QUOTA in kinds else {},
        {
            **_defaults(cluster, set(cluster_configs) - {str(each.name) for each in found}),
            **{str(each.name): str(each.value or "") for each in of_cluster if not each.is_sensitive},
        },
    )
    secret = frozenset(str(each.name) for each in found if each.is_sensitive)
    return FoundCluster(state, ClusterAbilities(is_headrace(cluster), has_acls, inherited, secret))


def _defaults(cluster: KafkaCluster, names: Collection[str]) -> dict[str, str]:
    """The values of those of these configs that have their default, as one broker shows them."""
    if not names:
        return {}
    found = describe_configs(cluster, (BROKER, str(cluster.nodes()[0])), sorted(names))
    return {
        str(each.name): str(each.value)
        for each in found
        if each.config_source == DEFAULT and not each.is_sensitive and each.value is not None
    }


def _topics(
    cluster: KafkaCluster, configs_of: Collection[str] | None
) -> tuple[dict[str, TopicState], dict[str, dict[str, str]]]:
    """The topics, and what each would inherit without configs that were set for it."""
    listed = {
        str(topic.name): topic.partitions
        for topic in cluster.metadata()
        if not getattr(topic, "is_internal", False) and not _INTERNAL.fullmatch(str(topic.name))
    }
    hidden = sorted(set(configs_of or ()) - listed.keys())
    for topic in cluster.named_topics(hidden) if hidden else ():
        if topic.error_code is not ErrorCode.unknown_topic_or_partition:  # a topic that the caller may not see
            require(topic.error_code, None, str(topic.name))
    shown = [name for name in listed if configs_of is None or name in configs_of]
    configs = describe_topics(cluster, shown)
    states = {}
    for name, partitions in listed.items():
        own = {str(c.name): str(c.value) for c in configs.get(name, ()) if c.config_source == SET_FOR_TOPIC}
        factor = min((len(partition.replica_nodes) for partition in partitions), default=0)
        states[name] = TopicState(len(partitions), factor, own)
    return states, {name: _inherited(found) for name, found in configs.items()}


def _inherited(configs: Iterable[Any]) -> dict[str, str]:
    """The value of each config if it were not set for the topic: its first synonym of another source."""
    found = {}
    for config in configs:
        values = [s.value for s in config.synonyms if s.source != SET_FOR_TOPIC]
        if config.config_source != SET_FOR_TOPIC:
            values = [config.value]
        if values and values[0] is not None:
            found[str(config.name)] = str(values[0])
    return found


ALTER_OPERATION, DELETE_OPERATION = 7, 6
"""Kafka's codes of operations, which are the numbers of bits."""
_NOT_SAID = -(2**31)


def why_not_allowed(cluster: KafkaCluster, steps: Sequence[ApplyStep]) -> list[tuple[ApplyStep, str]]:
    """Return the steps that need a right which the caller lacks, and the right."""
    failed = []
    of_cluster = [step for step in steps if step.kind in (ObjectKind.ACL, ObjectKind.USER)]
    if of_cluster and not _holds(_of_cluster(cluster), ALTER_OPERATION):
        failed += [
            (step, "refused: cluster_authorization_failed: it needs ALTER on the cluster") for step in of_cluster
        ]
    deleted = [step for step in steps if step.kind is ObjectKind.TOPIC and step.action is Action.DELETE]
    found = cluster.topic_operations([str(step.key) for step in deleted]) if deleted else {}
    for step in deleted:
        if not _holds(found.get(str(step.key), _NOT_SAID), DELETE_OPERATION):
            failed.append((step, "refused: topic_authorization_failed: it needs DELETE on the topic"))
    return failed


def _of_cluster(cluster: KafkaCluster) -> int:
    if not cluster.serves(ApiKey.DESCRIBE_CLUSTER):
        return _NOT_SAID
    m = cluster.message(ApiKey.DESCRIBE_CLUSTER)
    request = m.request(include_cluster_authorized_operations=True, endpoint_type=1, include_fenced_brokers=False)
    return int(cluster.ask(ApiKey.DESCRIBE_CLUSTER, request).cluster_authorized_operations)


def _holds(operations: int, operation: int) -> bool:
    return operations == _NOT_SAID or bool(operations >> operation & 1)


Passwords = Mapping[UserKey, str]
Failed = tuple[ApplyStep, str]
"""A step and why it would be refused."""
COUNT = "partitions"
_MAY_NOT = "authorization_failed"


def read_passwords(steps: Sequence[ApplyStep], wanted: ClusterState) -> tuple[dict[UserKey, str], list[Failed]]:
    """Return the passwords that the steps need, and those that cannot be read."""
    found: dict[UserKey, str] = {}
    failed: list[Failed] = []
    for step in steps:
        if step.kind is not ObjectKind.USER or step.action is Action.DELETE:
            continue
        key = _user(step)
        try:
            password = resolved(wanted.users[key].password, os.environ)
        except ConfigError as error:
            failed.append((step, str(error)))
            continue
        if not password or len(str(password).splitlines()) > 1:
            failed.append((step, "the password is not one line"))
        found[key] = str(password)
    return found, failed


def check_steps(
    cluster: KafkaCluster, steps: Sequence[ApplyStep], wanted: ClusterState, *, only_reads: bool
) -> list[Failed]:
    """Ask the cluster whether it would accept each step; nothing is changed. Return those that it refuses.

    With `only_reads`, a caller without the right to change gets no answer, and so no refusal.
    """
    failed = [] if only_reads else why_not_allowed(cluster, steps)
    for step in steps:
        check = _check(cluster, step, wanted)
        if check is None:
            continue
        try:
            cluster.look_again(check)
        except HeadraceError as error:
            if not only_reads or _MAY_NOT not in str(error):
                failed.append((step, str(error)))
    return failed


def run_steps(
    cluster: KafkaCluster, steps: Sequence[ApplyStep], wanted: ClusterState, passwords: Passwords
) -> Iterator[ApplyStep]:
    """Carry out the steps in order; gives each one that is done. Errors as `require`."""
    for step in steps:
        cluster.look_again(functools.partial(_run, cluster, step, wanted, passwords))
        yield step


def _check(cluster: KafkaCluster, step: ApplyStep, wanted: ClusterState) -> Callable[[], None] | None:
    """Return the step as a request that changes nothing; None if there is no such request."""
    if step.action is Action.DELETE and step.kind is not ObjectKind.CONFIG:
        return None
    if step.kind is ObjectKind.TOPIC:
        if step.action is Action.CREATE:
            return functools.partial(_create_topic, cluster, step, wanted, validate_only=True)
        if not _is_count(step):
            return functools.partial(change_configs, cluster, _resource(step), _changes(step), validate_only=True)
        if _is_higher(step):
            return functools.partial(add_partitions, cluster, str(step.key), _count(step), validate_only=True)
    if step.kind is ObjectKind.CONFIG:
        return functools.partial(change_configs, cluster, _resource(step), _changes(step), validate_only=True)
    if step.kind is ObjectKind.QUOTA:
        return functools.partial(_change_quotas, cluster, step, validate_only=True)
    return None


def _run(cluster: KafkaCluster, step: ApplyStep, wanted: ClusterState, passwords: Passwords) -> None:
    deletes = step.action is Action.DELETE
    match step.kind:
        case ObjectKind.TOPIC if deletes:
            delete_topic(cluster, str(step.key))
        case ObjectKind.TOPIC if step.action is Action.CREATE:
            _create_topic(cluster, step, wanted)
        case ObjectKind.TOPIC if _is_count(step):
            set_count(cluster, str(step.key), _count(step))
        case ObjectKind.TOPIC | ObjectKind.CONFIG:
            change_configs(cluster, _resource(step), _changes(step))
        case ObjectKind.QUOTA:
            _change_quotas(cluster, step)
        case ObjectKind.ACL:
            assert isinstance(step.key, Acl)
            if deletes:
                delete_acls(cluster, [WantedAcls.of(step.key)])
            else:
                create_acls(cluster, [step.key])
        case ObjectKind.USER:
            user, mechanism = _user(step)
            if deletes:
                delete_credential(cluster, user, mechanism)
            else:
                iterations = wanted.users[user, mechanism].iterations or _iterations(step)
                credential = Credential(user, mechanism, iterations)
                set_password(cluster, credential, passwords[user, mechanism], secrets.token_bytes)


def _create_topic(cluster: KafkaCluster, step: ApplyStep, wanted: ClusterState, *, validate_only: bool = False) -> None:
    name = str(step.key)
    topic = wanted.topics[name]
    answer = create_topic(
        cluster,
        name,
        topic.configs,
        partitions=topic.partitions or BY_DEFAULT,
        replication_factor=topic.replication_factor or BY_DEFAULT,
        validate_only=validate_only,
    )
    if answer.error_code is not ErrorCode.topic_already_exists:
        require(answer.error_code, answer.error_message, name)


def _change_quotas(cluster: KafkaCluster, step: ApplyStep, *, validate_only: bool = False) -> None:
    limits = {change.field: float(change.after) for change in step.changes if change.after is not None}
    removed = [change.field for change in step.changes if change.after is None]
    change_quotas(cluster, step.key, limits, removed, validate_only=validate_only)  # type: ignore[arg-type]


def _changes(step: ApplyStep) -> list[ConfigChange]:
    return [(change.field, DELETE if change.after is None else SET, change.after) for change in step.changes]


def _resource(step: ApplyStep) -> tuple[int, str]:
    return (TOPIC, str(step.key)) if step.kind is ObjectKind.TOPIC else (BROKER, "")


def _is_count(step: ApplyStep) -> bool:
    return [change.field for change in step.changes] == [COUNT]


def _count(step: ApplyStep) -> int:
    return int(step.changes[0].after or 0)


def _is_higher(step: ApplyStep) -> bool:
    return _count(step) > int(step.changes[0].before or 0)


def _user(step: ApplyStep) -> UserKey:
    if not isinstance(step.key, tuple) or len(step.key) != 2:
        raise InvalidError(f"not a user: {step.key}")
    return str(step.key[0]), str(step.key[1])


def _iterations(step: ApplyStep) -> int:
    return int(step.changes[0].after or ITERATIONS_DEFAULT)
