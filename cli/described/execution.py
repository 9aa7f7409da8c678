"""Checks the steps of a plan, and then carries them out, one request after another.

Place: the last part of `headrace cluster apply`, under cli/cluster.py.
Invariant: only `run_steps` changes the cluster. Before the first step, everything that can be checked is checked:
secrets are read, and the cluster is asked whether it would accept each step. A step is one request, so a run that is
interrupted has done each step or not; repeating it does the rest. A topic that exists already is no error: the answer
to an earlier request may have been lost. The caller compares again at the end, and so sees one that exists with other
values.
Invariant of rights: `why_not_allowed` names a step only if the cluster says that the caller lacks the right; if it says
nothing, the step itself may be refused.
Source: KIP-430 (authorized operations).
"""

from __future__ import annotations

import functools
import os
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence

from kio.schema.errors import ErrorCode

from headrace.cli.client.acls import Acl, WantedAcls, create_acls, delete_acls
from headrace.cli.client.quotas import change_quotas
from headrace.cli.client.topics import BY_DEFAULT, add_partitions, create_topic, delete_topic, set_count
from headrace.cli.client.users import ITERATIONS_DEFAULT, Credential, delete_credential, set_password
from headrace.cli.configs import BROKER, CLIENT_METRICS, DELETE, GROUP, SET, TOPIC, change_configs
from headrace.cli.configs import Change as ConfigChange
from headrace.cli.described.state import Action, ApplyStep, ClusterState, ObjectKind, UserKey
from headrace.config.errors import ConfigError
from headrace.config.load import resolved
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.client.cluster import KafkaCluster, require
from headrace.protocol.link_requests import LinkOp, LinkRequest
from headrace.storage.errors import HeadraceError, InvalidError

ALTER_OPERATION, DELETE_OPERATION = 7, 6
"""Kafka's codes of operations, which are the numbers of bits."""
_NOT_SAID = -(2**31)


def why_not_allowed(cluster: KafkaCluster, steps: Sequence[ApplyStep]) -> list[tuple[ApplyStep, str]]:
    """Return the steps that need a right which the caller lacks, and the right."""
    failed = []
    of_cluster = [step for step in steps if step.kind in (ObjectKind.ACL, ObjectKind.USER, ObjectKind.LINK)]
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
_OF_CONFIGS = (ObjectKind.CONFIG, ObjectKind.GROUP, ObjectKind.CLIENT_METRICS)
"""Kinds of which every step, a deletion, too, is a change of configs."""


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
    if step.kind in _OF_CONFIGS:
        return functools.partial(change_configs, cluster, _resource(step), _changes(step), validate_only=True)
    if step.action is Action.DELETE and step.kind is not ObjectKind.LINK:
        return None
    if step.kind is ObjectKind.TOPIC:
        if step.action is Action.CREATE:
            return functools.partial(_create_topic, cluster, step, wanted, validate_only=True)
        if not _is_count(step):
            return functools.partial(change_configs, cluster, _resource(step), _changes(step), validate_only=True)
        if _is_higher(step):
            return functools.partial(add_partitions, cluster, str(step.key), _count(step), validate_only=True)
    if step.kind is ObjectKind.LINK:
        return functools.partial(_change_link, cluster, step, validate_only=True)
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
        case ObjectKind.TOPIC | ObjectKind.CONFIG | ObjectKind.GROUP | ObjectKind.CLIENT_METRICS:
            change_configs(cluster, _resource(step), _changes(step))
        case ObjectKind.QUOTA:
            _change_quotas(cluster, step)
        case ObjectKind.LINK:
            _change_link(cluster, step)
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


def _change_link(cluster: KafkaCluster, step: ApplyStep, *, validate_only: bool = False) -> None:
    """A link that has copies is not dropped: whether they are promoted or deleted, no file says."""
    op = {Action.CREATE: LinkOp.CREATE, Action.ALTER: LinkOp.ALTER, Action.DELETE: LinkOp.DROP}[step.action]
    configs = {} if op is LinkOp.DROP else {change.field: change.after for change in step.changes}
    cluster.links(LinkRequest(op=op, link=str(step.key), configs=configs, validate_only=validate_only))


def _changes(step: ApplyStep) -> list[ConfigChange]:
    return [(change.field, DELETE if change.after is None else SET, change.after) for change in step.changes]


def _resource(step: ApplyStep) -> tuple[int, str]:
    types = {ObjectKind.TOPIC: TOPIC, ObjectKind.GROUP: GROUP, ObjectKind.CLIENT_METRICS: CLIENT_METRICS}
    return (types[step.kind], str(step.key)) if step.kind in types else (BROKER, "")


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
