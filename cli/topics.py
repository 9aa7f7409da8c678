"""`headrace topics`: list, describe, create, alter or delete topics of any Kafka cluster; restore deleted ones.

Place: a Kafka client for a running cluster; Kafka's kafka-topics.sh. `restore` needs Postgres, and rules of agents
and compactors, so restored_topics.py is loaded only then, as a command is (commands.py). The console also says until
when a deleted topic can be restored.
Invariant of that note: says nothing of a cluster without the setting file.delete.delay.ms of Headrace, or if the
user may not read it.
Invariant: nothing is deleted without confirmation. A refusal is one line on stderr with the broker's reason and exit
status 1; of several topics each is deleted or not independently, with one line each. A command can be repeated
safely.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import uuid
from importlib import import_module
from typing import Any

from kio.schema.errors import ErrorCode

from headrace.cli.client.topics import BY_DEFAULT, create_topic, delete_topic, partition_rows, set_count
from headrace.cli.configs import BROKER, DELETE, SET, TOPIC, Change, change_configs, describe_configs, shown
from headrace.cli.options import INT16_MAX, INT32_MAX, STORE, add_settings, settings_from, whole
from headrace.cli.output import write
from headrace.cli.scaling import add_scaling, double, halve, refuse_unfit
from headrace.cli.tables import (
    add_flags,
    add_yes,
    confirm,
    do_each,
    iso_time,
    open_cluster,
    pairs,
    refuse_twice,
    say,
    show,
)
from headrace.config.errors import ConfigError
from headrace.protocol.client.cluster import KafkaCluster, require
from headrace.storage.client_text import one_line
from headrace.storage.clock import Clock, SystemClock
from headrace.storage.errors import HeadraceError

DELAY = "file.delete.delay.ms"


def restorable_for_ms(cluster: KafkaCluster) -> int | None:
    """Return for how long the cluster keeps what a deletion removes; None if it does not say, or deletes at once."""
    try:
        found = describe_configs(cluster, (BROKER, ""), [DELAY]) or describe_configs(
            cluster, (BROKER, str(min(cluster.nodes()))), [DELAY]
        )
    except HeadraceError:  # the topic is deleted, and this user may not read the setting
        return None
    value = next((str(config.value) for config in found if config.name == DELAY), "")
    return int(value) if value.isdecimal() and int(value) else None


def restore_note(topic: str, delay_ms: int, clock: Clock) -> str:
    """Return the sentence for people."""
    until = iso_time(clock.wall_ms() + delay_ms)
    return f"{topic} can be restored until {until}: headrace topics restore {topic} --metastore-url …"


RESTORE_DESCRIPTION = """\
Bring back a topic that was deleted by mistake, with its records, offsets, configs and groups; or, with --records, the
records of a topic that retention or DeleteRecords has removed. Possible for file.delete.delay.ms, while the files are
still in the bucket.

  headrace topics restore --list --metastore-url postgresql://headrace@db/headrace
  headrace topics restore orders --metastore-url postgresql://headrace@db/headrace
  headrace topics restore orders --as orders-before --metastore-url postgresql://headrace@db/headrace
  headrace topics restore orders --records --dry-run --metastore-url postgresql://headrace@db/headrace
"""


def add_restore(commands: Any) -> None:
    """Add the command and its arguments."""
    restoring = commands.add_parser(
        "restore",
        help="bring back deleted topics, or records below the log start",
        description=RESTORE_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    restoring.add_argument("topic", nargs="?", metavar="TOPIC")
    what = restoring.add_mutually_exclusive_group()
    what.add_argument("--list", action="store_true", help="show the deleted topics that can be restored")
    what.add_argument(
        "--records",
        action="store_true",
        help="of a topic that is there: the records below its log starts that retention would not remove again",
    )
    what.add_argument("--as", dest="new_name", metavar="NAME", help="bring the deleted topic back under another name")
    restoring.add_argument(
        "--id",
        type=uuid.UUID,
        metavar="UUID",
        help="of several deleted topics of the name; default: the newest deletion",
    )
    restoring.add_argument("--dry-run", action="store_true", help="show what would come back")
    restoring.add_argument("--json", action="store_true", help="JSON for scripts instead of text")
    add_settings(restoring, ("metastore.url", "bucket", *STORE), every=False)
    restoring.set_defaults(run=run_restore, refuse=restoring.error)


def run_restore(args: argparse.Namespace) -> int:
    """Restore, or show what can be."""
    if args.list == (args.topic is not None):
        args.refuse("name a topic, or set --list")
    settings = settings_from(args)
    if not settings.metastore_url:
        raise ConfigError("metastore.url is not set (--metastore-url or --config)")
    return int(asyncio.run(import_module("headrace.cli.restored_topics").restore(args, settings)))


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
