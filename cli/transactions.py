"""`headrace transactions`: list, describe and abort transactions; find those that will never end.

Place: a Kafka client for a running cluster; Kafka's kafka-transactions.sh, with its words.
Invariant: an abort needs confirmation; everything else only reads.
Source: KIP-664.
"""

from __future__ import annotations

import argparse

from headrace.cli.client.cluster import KafkaCluster
from headrace.cli.client.offsets import TopicPartition, partitions_of
from headrace.cli.client.transactions import (
    DescribedProducer,
    abort_in_partition,
    abort_transaction,
    describe_producers,
    describe_transactions,
    find_hanging,
    list_transactions,
)
from headrace.cli.numbers import INT16_MAX, INT32_MAX, INT64_MAX, whole
from headrace.cli.tables import Row, add_flags, add_yes, confirm, open_cluster, say, show
from headrace.cli.times import iso_time
from headrace.storage.clock import SystemClock
from headrace.storage.errors import InvalidError, NotFoundError

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
