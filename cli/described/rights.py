"""The steps of a plan that the caller may not do, by what the cluster says of its rights.

Place: asked by `headrace cluster apply` before the first step; execution.py asks the cluster itself about steps that
can be checked by a request that changes nothing.
Invariant: only reads. What the cluster does not say is not refused here: the step itself is then.
Source: KIP-430 (authorized operations).
"""

from __future__ import annotations

from collections.abc import Sequence

from headrace.cli.client.cluster import KafkaCluster
from headrace.cli.described.state import Action, ApplyStep, ObjectKind
from headrace.protocol.api_keys import ApiKey

ALTER, DELETE = 7, 6
"""Kafka's codes of operations, which are the numbers of bits."""
_NOT_SAID = -(2**31)


def why_not_allowed(cluster: KafkaCluster, steps: Sequence[ApplyStep]) -> list[tuple[ApplyStep, str]]:
    """Return the steps that need a right which the caller lacks, and the right."""
    failed = []
    of_cluster = [step for step in steps if step.kind in (ObjectKind.ACL, ObjectKind.USER)]
    if of_cluster and not _holds(_of_cluster(cluster), ALTER):
        failed += [
            (step, "refused: cluster_authorization_failed: it needs ALTER on the cluster") for step in of_cluster
        ]
    deleted = [step for step in steps if step.kind is ObjectKind.TOPIC and step.action is Action.DELETE]
    found = cluster.topic_operations([str(step.key) for step in deleted]) if deleted else {}
    for step in deleted:
        if not _holds(found.get(str(step.key), _NOT_SAID), DELETE):
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
