"""`headrace topics`: list, describe, create, alter and delete topics of any Kafka cluster; restore deleted ones.

Place: a Kafka client for a running cluster; Kafka's kafka-topics.sh. `restore` (restore_topics.py) uses the metastore.
Invariant: nothing is deleted without confirmation. A refusal is one line on stderr with the broker's reason and exit
status 1; of several topics each is deleted or not independently, with one line each. A command can be repeated
safely.
"""

from __future__ import annotations

import argparse
import functools
from typing import Any

from kio.schema.errors import ErrorCode

from headrace.cli.client.cluster import KafkaCluster, require
from headrace.cli.client.topics import BY_DEFAULT, create_topic, delete_topic, partition_rows, set_count
from headrace.cli.configs import DELETE, SET, TOPIC, Change, change_configs, describe_configs, shown
from headrace.cli.deletion_note import restorable_for_ms, restore_note
from headrace.cli.numbers import INT16_MAX, INT32_MAX, whole
from headrace.cli.output import write
from headrace.cli.restore_topics import add_restore
from headrace.cli.scaling import add_scaling, double, halve, refuse_unfit
from headrace.cli.tables import (
    add_flags,
    add_yes,
    confirm,
    do_each,
    open_cluster,
    pairs,
    refuse_twice,
    say,
    show,
)
from headrace.storage.client_text import one_line
from headrace.storage.clock import SystemClock

DESCRIPTION = """\
Topics of any running Kafka cluster.

  headrace topics create orders --partitions 12 --set retention.ms=86400000 -b 127.0.0.1:9092
  headrace topics describe orders -b 127.0.0.1:9092
  headrace topics alter orders --partitions 24 -b 127.0.0.1:9092
  headrace topics alter orders --double --partitions 48 -b 127.0.0.1:9092
  headrace topics alter orders --halve --partitions 24 -b 127.0.0.1:9092
"""
ACTIONS = "{list,describe,create,alter,delete,restore}"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    commands = parser.add_subparsers(title="commands", metavar=ACTIONS, required=True)
    listing = commands.add_parser("list", help="list all topics")
    describing = commands.add_parser("describe", help="show partitions, offsets and topic configs")
    describing.add_argument("topic", nargs="+")
    creating = commands.add_parser("create", help="create a topic")
    creating.add_argument("topic")
    partitions, replicas = whole(1, INT32_MAX), whole(1, INT16_MAX)
    creating.add_argument(
        "--partitions", type=partitions, default=BY_DEFAULT, metavar="N", help="default: the cluster's num.partitions"
    )
    creating.add_argument(
        "--replication-factor",
        type=replicas,
        default=BY_DEFAULT,
        metavar="N",
        help="default: the cluster's default.replication.factor",
    )
    creating.add_argument("--if-not-exists", action="store_true", help="do nothing if the topic exists")
    creating.add_argument("--validate-only", action="store_true", help="check the request without applying it")
    altering = commands.add_parser("alter", help="change the number of partitions, change configs")
    altering.add_argument("topic")
    altering.add_argument(
        "--partitions",
        type=partitions,
        metavar="N",
        help="new number of partitions; a lower one (Headrace only) removes partitions once they are empty",
    )
    add_scaling(altering)
    add_yes(altering)
    altering.add_argument(
        "--delete-config",
        action="append",
        default=[],
        metavar="KEY",
        help="delete a topic config, so that the default applies",
    )
    altering.set_defaults(refuse=altering.error)
    for command in (creating, altering):
        command.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a topic config")
    deleting = commands.add_parser("delete", help="delete topics and all their records")
    deleting.add_argument("topic", nargs="+")
    add_yes(deleting)
    runs = (run_list, run_describe, run_create, run_alter, run_delete)
    for command, run in zip((listing, describing, creating, altering, deleting), runs, strict=True):
        add_flags(command)
        command.set_defaults(run=run)
    add_restore(commands)


def run_list(args: argparse.Namespace) -> int:
    """One line per topic."""
    with open_cluster(args) as cluster:
        rows = [
            {"topic": topic.name, "partitions": len(topic.partitions), "id": getattr(topic, "topic_id", None)}
            for topic in cluster.metadata()
        ]
    show(args, rows, ("topic", "partitions", "id"))
    return 0


def run_describe(args: argparse.Namespace) -> int:
    """One line per partition; then the configs that were set for the topics."""
    with open_cluster(args) as cluster:
        topics = cluster.metadata(args.topic)
        found = [{**_described(cluster, topic), "configs": _own_configs(cluster, topic.name)} for topic in topics]
    if args.json:
        show(args, found, ())
        return 0
    partitions = [{"topic": topic["topic"], **partition} for topic in found for partition in topic["partitions"]]
    show(args, partitions, ("topic", "partition", "leader", "epoch", "replicas", "in_sync", "earliest", "latest"))
    configs = [
        {"topic": topic["topic"], "config": name, "value": value}
        for topic in found
        for name, value in topic["configs"].items()
    ]
    if configs:
        write()
        show(args, configs, ("topic", "config", "value"))
    return 0


def run_create(args: argparse.Namespace) -> int:
    """Create the topic."""
    with open_cluster(args) as cluster:
        answer = cluster.look_again(lambda: _create(cluster, args))
    exists = answer.error_code is ErrorCode.topic_already_exists and args.if_not_exists
    if not exists:
        require(answer.error_code, answer.error_message, args.topic)
    done = "exists" if exists else "would be created" if args.validate_only else "created"
    say(args, f"topic {args.topic} {done}", topic=args.topic, outcome=done)
    return 0


def run_alter(args: argparse.Namespace) -> int:
    """Change configs first, because they are refused more often than partitions."""
    changes: list[Change] = [(name, SET, value) for name, value in pairs(args.set, "config").items()]
    changes += [(name, DELETE, None) for name in args.delete_config]
    if not changes and args.partitions is None and not (args.double or args.halve):
        args.refuse("nothing to alter: set --partitions, --double, --halve, --set or --delete-config")
    refuse_unfit(args)
    refuse_twice([name for name, _, _ in changes], "config")
    with open_cluster(args) as cluster:
        outcome = "altered"
        if args.partitions is not None and not (args.double or args.halve):
            outcome = _confirm_count(cluster, args)
        if changes:
            cluster.look_again(lambda: change_configs(cluster, (TOPIC, args.topic), changes))
        if args.double:
            return double(cluster, args)
        if args.halve:
            return halve(cluster, args)
        if args.partitions is not None:
            set_count(cluster, args.topic, args.partitions)
    say(args, f"topic {args.topic} {outcome}", topic=args.topic, outcome="altered")
    return 0


def _confirm_count(cluster: KafkaCluster, args: argparse.Namespace) -> str:
    """Return what is said when the count has changed; a lower one has to be confirmed, because producers may lose
    records.
    """
    (found,) = cluster.metadata([args.topic])
    count, wanted = len(found.partitions), args.partitions
    if wanted >= count:
        return "altered"
    going = f"partition {wanted}" if wanted == count - 1 else f"partitions {wanted} to {count - 1}"
    confirm(
        args,
        f"{args.topic}: lower the count from {count} to {wanted}? {going} take no new records and are removed once they"
        " are empty. Producers that know the higher count get errors for records that they place there: Java's until it"
        " refreshes metadata (metadata.max.age.ms), librdkafka's until it is started again; only headrace.client places"
        " them again.",
    )
    return f"altered: {going} take no new records and are removed once they are empty"


def run_delete(args: argparse.Namespace) -> int:
    """Delete the topics, after confirmation."""
    confirm(args, f"delete {', '.join(args.topic)} and all their records?")
    deleted: list[str] = []

    def delete(topic: str) -> None:
        cluster.look_again(functools.partial(delete_topic, cluster, topic))
        deleted.append(topic)

    with open_cluster(args) as cluster:
        status = do_each(args, "topic", dict.fromkeys(args.topic), "deleted", delete)
        delay_ms = restorable_for_ms(cluster) if deleted and not args.json else None
    if delay_ms is not None:
        for topic in deleted:
            write(restore_note(one_line(topic), delay_ms, SystemClock()))
    return status


def _described(cluster: KafkaCluster, topic: Any) -> dict[str, Any]:
    partitions = partition_rows(cluster, topic)
    return {"topic": topic.name, "id": getattr(topic, "topic_id", None), "partitions": partitions}


def _own_configs(cluster: KafkaCluster, topic: str) -> dict[str, str]:
    return {config["config"]: config["value"] for config in shown(describe_configs(cluster, (TOPIC, topic)), TOPIC)}


def _create(cluster: KafkaCluster, args: argparse.Namespace) -> Any:
    return create_topic(
        cluster,
        args.topic,
        pairs(args.set, "config"),
        partitions=args.partitions,
        replication_factor=args.replication_factor,
        validate_only=args.validate_only,
    )
