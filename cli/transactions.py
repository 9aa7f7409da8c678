"""`headrace transactions`: list, describe or abort transactions; find those that will never end.

Place: a Kafka client for a running cluster; Kafka's kafka-transactions.sh, with its words.
Invariant of requests: an abort is sent once to the right broker. A hanging transaction is one that holds a partition
back and that no coordinator knows as open there; find_hanging only reads.
Source: KIP-664; org.apache.kafka.tools.TransactionsCommand (the rules of find-hanging).
Invariant: an abort needs confirmation; everything else only reads.
Source: KIP-664.
"""

from __future__ import annotations

import argparse
import datetime
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from kio.schema.errors import ErrorCode

from headrace.cli.client.offsets import TopicPartition, partitions_of
from headrace.cli.options import INT16_MAX, INT32_MAX, INT64_MAX, whole
from headrace.cli.tables import Row, add_flags, add_yes, confirm, iso_time, open_cluster, say, show
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.client.cluster import TRANSACTIONAL_ID, KafkaCluster, WrongBrokerError, require
from headrace.storage.clock import SystemClock
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


DESCRIPTION = """\
Transactions of any running Kafka cluster.

  headrace transactions list --state Ongoing -b 127.0.0.1:9092
  headrace transactions find-hanging -b 127.0.0.1:9092
  headrace transactions describe copier -b 127.0.0.1:9092
  headrace transactions abort --transactional-id copier -b 127.0.0.1:9092
  headrace transactions abort --topic orders --partition 3 --start-offset 4711 -b 127.0.0.1:9092
"""
ACTIONS = "{list,describe,describe-producers,abort,find-hanging}"
LONGEST_MINUTES = 15
"""transaction.max.timeout.ms of a cluster."""
PRODUCER_COLUMNS = (
    "topic", "partition", "producer_id", "producer_epoch", "last_sequence", "last_timestamp", "coordinator_epoch",
    "start_offset",
)  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    commands = parser.add_subparsers(title="commands", metavar=ACTIONS, required=True)
    listing = commands.add_parser("list", help="list transactional ids and the state of their transactions")
    listing.add_argument("--state", action="append", default=[], metavar="NAME", help="Ongoing, CompleteCommit, …")
    listing.add_argument("--producer-id", action="append", default=[], type=whole(0, INT64_MAX), metavar="ID")
    listing.add_argument(
        "--duration-filter", type=whole(0, INT64_MAX), default=-1, metavar="MS", help="open for longer than this"
    )
    listing.add_argument("--transactional-id-pattern", metavar="REGEX", help="ids that match as a whole")
    describing = commands.add_parser("describe", help="show the transactions of ids and their partitions")
    describing.add_argument("transactional_id", nargs="+")
    producers = commands.add_parser("describe-producers", help="show the producers that partitions remember")
    aborting = commands.add_parser("abort", help="abort an open transaction; its producer is fenced")
    aborting.add_argument("--transactional-id", metavar="ID", help="abort the whole transaction of this id")
    aborting.add_argument("--start-offset", type=whole(0, INT64_MAX), metavar="OFFSET", help="its first offset there")
    for flag, high in (("producer-id", INT64_MAX), ("producer-epoch", INT16_MAX), ("coordinator-epoch", INT32_MAX)):
        aborting.add_argument(f"--{flag}", type=whole(0, high), metavar="N", help="instead of --start-offset")
    add_yes(aborting)
    finding = commands.add_parser("find-hanging", help="find open transactions that no coordinator will end")
    finding.add_argument(
        "--max-transaction-timeout",
        type=whole(0, INT32_MAX),
        default=LONGEST_MINUTES,
        metavar="MINUTES",
        help=f"the cluster's transaction.max.timeout.ms ({LONGEST_MINUTES} minutes)",
    )
    for command, required in ((producers, True), (aborting, False), (finding, False)):
        command.add_argument("--topic", required=required)
        command.add_argument("--partition", type=whole(0, INT32_MAX), metavar="N")
    runs = (run_list, run_describe, run_describe_producers, run_abort, run_find_hanging)
    for command, run in zip((listing, describing, producers, aborting, finding), runs, strict=True):
        add_flags(command)
        command.set_defaults(run=run)


def run_list(args: argparse.Namespace) -> int:
    """One line per transactional id; each broker lists those it coordinates."""
    with open_cluster(args) as cluster:
        found = list_transactions(
            cluster,
            states=args.state,
            producer_ids=args.producer_id,
            duration_ms=args.duration_filter,
            pattern=args.transactional_id_pattern,
        )
    show(args, [each._asdict() for each in found], ("transactional_id", "coordinator", "producer_id", "state"))
    return 0


def run_describe(args: argparse.Namespace) -> int:
    """One line per transactional id. NotFoundError names an unknown one."""
    names = list(dict.fromkeys(args.transactional_id))
    with open_cluster(args) as cluster:
        found = cluster.look_again(lambda: describe_transactions(cluster, names))
    if missing := [name for name in names if name not in found]:
        raise NotFoundError(f"transactional id does not exist: {', '.join(missing)}")
    rows = [
        {
            "transactional_id": name,
            "producer_id": int(state.producer_id),
            "producer_epoch": int(state.producer_epoch),
            "state": str(state.transaction_state),
            "timeout_ms": int(state.transaction_timeout.total_seconds() * 1000),
            "start": iso_time(int(state.transaction_start_ms)) if state.transaction_start_ms > 0 else None,
            "partitions": [f"{topic.topic}:{index}" for topic in state.topics for index in topic.partitions],
        }
        for name, state in found.items()
    ]
    columns = ("transactional_id", "producer_id", "producer_epoch", "state", "timeout_ms", "start", "partitions")
    show(args, rows, columns)
    return 0


def run_describe_producers(args: argparse.Namespace) -> int:
    """One line per partition and producer."""
    with open_cluster(args) as cluster:
        found = cluster.look_again(lambda: describe_producers(cluster, _partitions(cluster, args)))
    show(args, [_row(each) for each in found], PRODUCER_COLUMNS)
    return 0


def run_abort(args: argparse.Namespace) -> int:
    """Abort by transactional id, or in one partition as Kafka's tool does."""
    if args.transactional_id is not None:
        if args.topic or args.start_offset is not None or args.producer_id is not None:
            raise InvalidError("--transactional-id excludes --topic, --start-offset and --producer-id")
        confirm(args, f"abort the open transaction of {args.transactional_id}, and fence its producer?")
        with open_cluster(args) as cluster:
            cluster.look_again(lambda: abort_transaction(cluster, args.transactional_id))
        say(args, f"aborted: {args.transactional_id}", transactional_id=args.transactional_id, outcome="aborted")
        return 0
    if args.topic is None or args.partition is None:
        raise InvalidError("which transaction? set --transactional-id, or --topic, --partition and --start-offset")
    where = f"{args.topic}:{args.partition}"
    with open_cluster(args) as cluster:
        producer = _given(args) or _at_offset(cluster, args)
        confirm(args, f"abort the transaction of producer {producer.producer_id} in {where}?")
        cluster.look_again(
            lambda: abort_in_partition(cluster, producer, _partitions(cluster, args)[args.topic, args.partition])
        )
    say(
        args,
        f"aborted: producer {producer.producer_id} in {where}",
        topic=args.topic,
        partition=args.partition,
        producer_id=producer.producer_id,
        outcome="aborted",
    )
    return 0


def run_find_hanging(args: argparse.Namespace) -> int:
    """One line per hanging transaction and partition."""
    if args.partition is not None and args.topic is None:
        raise InvalidError("--partition needs --topic")
    with open_cluster(args) as cluster:
        leaders = cluster.look_again(lambda: _partitions(cluster, args))
        now_ms = SystemClock().wall_ms()
        found = find_hanging(cluster, leaders, now_ms, args.max_transaction_timeout * 60_000)
    rows = [{**_row(each), "duration_minutes": (now_ms - each.last_timestamp) // 60_000} for each in found]
    show(args, rows, (*PRODUCER_COLUMNS, "duration_minutes"))
    return 0


def _partitions(cluster: KafkaCluster, args: argparse.Namespace) -> dict[TopicPartition, int]:
    """Leaders of the partitions that the flags name; all without flags."""
    topics = [args.topic] if args.topic else [str(topic.name) for topic in cluster.metadata()]
    found = partitions_of(cluster, topics)
    if args.partition is None:
        return found
    if (args.topic, args.partition) not in found:
        raise NotFoundError(f"partition does not exist: {args.topic}:{args.partition}")
    return {(args.topic, args.partition): found[args.topic, args.partition]}


def _given(args: argparse.Namespace) -> DescribedProducer | None:
    """The producer that the flags describe completely, as for brokers that cannot describe producers."""
    values = (args.producer_id, args.producer_epoch, args.coordinator_epoch)
    if any(value is None for value in values):
        return None
    return DescribedProducer(
        args.topic, args.partition, args.producer_id, args.producer_epoch, -1, -1, args.coordinator_epoch, None
    )


def _at_offset(cluster: KafkaCluster, args: argparse.Namespace) -> DescribedProducer:
    if args.start_offset is None:
        raise InvalidError("set --start-offset, or --producer-id, --producer-epoch and --coordinator-epoch")
    found = cluster.look_again(lambda: describe_producers(cluster, _partitions(cluster, args)))
    for each in found:
        if each.start_offset == args.start_offset:
            return each
    raise NotFoundError(f"no open transaction begins there: {args.topic}:{args.partition} offset={args.start_offset}")


def _row(producer: DescribedProducer) -> Row:
    return producer._asdict()
