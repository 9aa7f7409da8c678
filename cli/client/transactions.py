"""Transactions: list, describe and abort them, and find those that will never end.

Place: under `headrace transactions`.
Invariant: an abort is sent once to the right broker. A hanging transaction is one that holds a partition back and that
no coordinator knows as open there; find_hanging only reads.
Source: KIP-664; org.apache.kafka.tools.TransactionsCommand (the rules of find-hanging).
"""

from __future__ import annotations

import datetime
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from kio.schema.errors import ErrorCode

from headrace.cli.client.cluster import TRANSACTIONAL_ID, KafkaCluster, WrongBrokerError, require
from headrace.cli.client.offsets import TopicPartition
from headrace.protocol.api_keys import ApiKey
from headrace.storage.errors import InvalidError, NotFoundError

NO_TRANSACTION = -1
FILTERED_FROM = {"duration": 1, "transactional id": 2}
"""The first version of ListTransactions with this filter."""
ABORT_TIMEOUT = datetime.timedelta(minutes=1)
"""The transaction timeout that an aborted id has until its producer starts again."""


class ListedTransaction(NamedTuple):
    """One transactional id, as its coordinator lists it."""

    transactional_id: str
    coordinator: int
    producer_id: int
    state: str


class DescribedProducer(NamedTuple):
    """A producer that a partition remembers."""

    topic: str
    partition: int
    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp: int
    coordinator_epoch: int
    start_offset: int | None
    """First offset of its open transaction in this partition."""


def list_transactions(
    cluster: KafkaCluster,
    *,
    states: Sequence[str] = (),
    producer_ids: Sequence[int] = (),
    duration_ms: int = -1,
    pattern: str | None = None,
) -> list[ListedTransaction]:
    """Return the transactions that pass all filters, by id. InvalidError for a filter that the cluster lacks."""
    m = cluster.message(ApiKey.LIST_TRANSACTIONS)
    for name, is_set in (("duration", duration_ms >= 0), ("transactional id", pattern is not None)):
        if is_set and m.version < FILTERED_FROM[name]:
            raise InvalidError(f"the cluster is too old to filter transactions by {name}")
    request = m.request(
        state_filters=tuple(states),
        producer_id_filters=tuple(producer_ids),
        duration_filter=duration_ms,
        transactional_id_pattern=pattern,
    )
    found: dict[str, ListedTransaction] = {}
    for node in cluster.nodes():
        answer = cluster.ask(ApiKey.LIST_TRANSACTIONS, request, node)
        require(answer.error_code)
        if answer.unknown_state_filters:
            raise InvalidError(f"unknown states: {', '.join(answer.unknown_state_filters)}")
        for each in answer.transaction_states:
            name = str(each.transactional_id)
            found[name] = ListedTransaction(name, node, int(each.producer_id), str(each.transaction_state))
    return sorted(found.values())


def describe_transactions(cluster: KafkaCluster, names: Iterable[str]) -> dict[str, Any]:
    """Return the DescribedTransaction of each id that exists."""
    m = cluster.message(ApiKey.DESCRIBE_TRANSACTIONS)
    found = {}
    for name in names:
        node = cluster.coordinator(name, TRANSACTIONAL_ID)
        (state,) = cluster.ask(
            ApiKey.DESCRIBE_TRANSACTIONS, m.request(transactional_ids=(name,)), node
        ).transaction_states
        if state.error_code is ErrorCode.transactional_id_not_found:
            continue
        require(state.error_code, None, name)
        found[name] = state
    return found


def describe_producers(cluster: KafkaCluster, leaders: dict[TopicPartition, int]) -> list[DescribedProducer]:
    """Return the producers that these partitions remember, by partition."""
    m = cluster.message(ApiKey.DESCRIBE_PRODUCERS)
    by_leader: defaultdict[int, defaultdict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for (topic, index), leader in leaders.items():
        by_leader[leader][topic].append(index)
    found = []
    for leader, topics in by_leader.items():
        wanted = tuple(m.make("TopicRequest", name=name, partition_indexes=tuple(p)) for name, p in topics.items())
        for topic in cluster.ask(ApiKey.DESCRIBE_PRODUCERS, m.request(topics=wanted), leader).topics:
            for partition in topic.partitions:
                require(partition.error_code, partition.error_message, f"{topic.name}:{partition.partition_index}")
                for each in partition.active_producers:
                    start = int(each.current_txn_start_offset)
                    found.append(
                        DescribedProducer(
                            str(topic.name),
                            int(partition.partition_index),
                            int(each.producer_id),
                            int(each.producer_epoch),
                            int(each.last_sequence),
                            int(each.last_timestamp),
                            int(each.coordinator_epoch),
                            start if start != NO_TRANSACTION else None,
                        )
                    )
    return sorted(found)


def find_hanging(
    cluster: KafkaCluster, leaders: dict[TopicPartition, int], now_ms: int, longest_ms: int
) -> list[DescribedProducer]:
    """Return the open transactions in these partitions that no coordinator will end.

    A transaction is checked if its producer wrote nothing for `longest_ms`, the longest timeout of any producer.
    """
    late = [
        each
        for each in describe_producers(cluster, leaders)
        if each.start_offset is not None and now_ms - each.last_timestamp > longest_ms
    ]
    if not late:
        return []
    listed = list_transactions(cluster, producer_ids=sorted({each.producer_id for each in late}))
    described = describe_transactions(cluster, [each.transactional_id for each in listed])
    known = {int(state.producer_id): state for state in described.values()}
    return [each for each in late if not _is_open(known.get(each.producer_id), each)]


def abort_in_partition(cluster: KafkaCluster, producer: DescribedProducer, leader: int) -> None:
    """Abort the producer's transaction in this partition: the partition's leader writes the marker. Errors as
    `require`.
    """
    m = cluster.message(ApiKey.WRITE_TXN_MARKERS)
    topic = m.make("WritableTxnMarkerTopic", name=producer.topic, partition_indexes=(producer.partition,))
    marker = m.make(
        "WritableTxnMarker",
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        transaction_result=False,
        topics=(topic,),
        coordinator_epoch=max(producer.coordinator_epoch, 0),
    )
    for answered in cluster.ask(ApiKey.WRITE_TXN_MARKERS, m.request(markers=(marker,)), leader).markers:
        for each in answered.topics:
            for partition in each.partitions:
                require(partition.error_code, None, f"{each.name}:{partition.partition_index}")


def abort_transaction(cluster: KafkaCluster, name: str) -> None:
    """Abort the id's open transaction, and fence its producer. NotFoundError for an unknown id.

    The coordinator ends it as if a new producer with this id had started. WrongBrokerError until it has ended.
    """
    if not describe_transactions(cluster, [name]):
        raise NotFoundError(f"transactional id does not exist: {name}")
    m = cluster.message(ApiKey.INIT_PRODUCER_ID)
    request = m.request(
        transactional_id=name,
        transaction_timeout=ABORT_TIMEOUT,
        producer_id=-1,
        producer_epoch=-1,
    )
    answer = cluster.ask(ApiKey.INIT_PRODUCER_ID, request, cluster.coordinator(name, TRANSACTIONAL_ID))
    if answer.error_code is ErrorCode.concurrent_transactions:
        raise WrongBrokerError(f"the coordinator is still ending the transaction: {name}")
    require(answer.error_code, None, name)


def _is_open(state: Any, producer: DescribedProducer) -> bool:
    """Return whether the coordinator knows of this producer's transaction in this partition, so that it will end it."""
    topics = () if state is None else state.topics
    return any(str(topic.topic) == producer.topic and producer.partition in topic.partitions for topic in topics)
