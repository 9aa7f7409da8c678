"""Rows about transactional producers, and about tools for transactions."""

from __future__ import annotations

from headrace.agent.access.authorization.operations import AclOperation, AclResource
from headrace.protocol.api_keys import ApiKey
from tests.acl_matrix.case import (
    CLUSTER_FAILED,
    GROUP,
    NO_CODES,
    TOPIC,
    TRANSACTION,
    Case,
    Need,
    on_cluster,
    on_group,
    on_topic,
)

DENIED = frozenset({"transactional_id_authorization_failed"})
ABSENT = "acl-absent"
"""A transactional id that is not used: kio does not read the start time -1 of one without an open transaction."""
_OF_BROKERS = 4
"""The version of AddPartitionsToTxn from which on only Kafka's brokers send it."""


def transaction_cases() -> list[Case]:
    """The transaction of a producer that does not exist: what is allowed fails for another reason."""
    write = (Need(AclOperation.WRITE, AclResource.TRANSACTIONAL_ID, TRANSACTION),)
    describe = (Need(AclOperation.DESCRIBE, AclResource.TRANSACTIONAL_ID, TRANSACTION),)
    producer = {"transactional_id": TRANSACTION, "producer_id": 1_000_000, "producer_epoch": 0}
    topics = [{"name": TOPIC, "partitions": [0]}]
    added = {f"v3_and_below_{name}": value for name, value in (producer | {"topics": topics}).items()}
    offsets = [{"name": TOPIC, "partitions": [{"partition_index": 0, "committed_offset": 1}]}]
    marker = {"producer_id": 1_000_000, "topics": [{"name": TOPIC, "partition_indexes": [0]}]}
    read_group = on_group(AclOperation.READ)
    return [
        Case(
            "AddPartitionsToTxn",
            ApiKey.ADD_PARTITIONS_TO_TXN,
            added,
            (*write, *on_topic(AclOperation.WRITE)),
            DENIED,
            version_max=_OF_BROKERS - 1,
        ),
        Case(
            "AddPartitionsToTxn-broker",
            ApiKey.ADD_PARTITIONS_TO_TXN,
            {"transactions": [producer | {"verify_only": True, "topics": topics}]},
            on_cluster(AclOperation.CLUSTER_ACTION),
            CLUSTER_FAILED,
            version_min=_OF_BROKERS,
        ),
        Case(
            "AddOffsetsToTxn", ApiKey.ADD_OFFSETS_TO_TXN, producer | {"group_id": GROUP}, (*write, *read_group), DENIED
        ),
        Case("EndTxn", ApiKey.END_TXN, producer | {"committed": False}, write, DENIED),
        Case(
            "TxnOffsetCommit",
            ApiKey.TXN_OFFSET_COMMIT,
            producer | {"group_id": GROUP, "topics": offsets},
            (*write, *read_group, *on_topic(AclOperation.READ)),
            DENIED,
        ),
        Case(
            "WriteTxnMarkers",
            ApiKey.WRITE_TXN_MARKERS,
            {"markers": [marker]},
            on_cluster(AclOperation.CLUSTER_ACTION),
            CLUSTER_FAILED,
        ),
        Case(
            "WriteTxnMarkers-alter",
            ApiKey.WRITE_TXN_MARKERS,
            {"markers": [marker]},
            on_cluster(AclOperation.ALTER),
            CLUSTER_FAILED,
        ),
        Case(
            "DescribeTransactions",
            ApiKey.DESCRIBE_TRANSACTIONS,
            {"transactional_ids": [ABSENT]},
            (Need(AclOperation.DESCRIBE, AclResource.TRANSACTIONAL_ID, ABSENT),),
            DENIED,
        ),
        Case("ListTransactions", ApiKey.LIST_TRANSACTIONS, {}, describe, NO_CODES, "transaction_states"),
    ]
