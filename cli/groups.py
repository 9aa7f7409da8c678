"""`headrace groups`: list and describe consumer, share and streams groups, reset or delete their offsets, delete them.

Place: a Kafka client for a running cluster; Kafka's kafka-consumer-groups.sh and kafka-share-groups.sh in one.
Invariant: reset-offsets only prints the new offsets until --execute is given, and the broker refuses it while the
group has members. If the command is interrupted, each partition has either its old or its new offset.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Callable, Sequence

from headrace.cli.client.groups import (
    ShareGroupView,
    committed_offsets,
    delete_offsets,
    delete_share_offsets,
    describe_share_group,
    list_groups,
    offsets_of,
    read_members,
    share_progress,
)
from headrace.cli.client.offsets import (
    LATEST,
    ResetTo,
    TopicPartition,
    list_offsets,
    partitions_of,
    plan_reset,
    timestamp_ms,
)
from headrace.cli.options import INT64_MAX, whole
from headrace.cli.output import write, write_error
from headrace.cli.tables import add_flags, add_yes, confirm, do_each, open_cluster, show
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.client.cluster import KafkaCluster, require
from headrace.storage.errors import InvalidError

STATES = (
    "PreparingRebalance",
    "CompletingRebalance",
    "Assigning",
    "Reconciling",
    "Stable",
    "Empty",
    "Dead",
    "NotReady",
)
TYPES = ("classic", "consumer", "share", "streams")
DESCRIPTION = """\
Consumer groups, share groups and streams groups of any running Kafka cluster.

  headrace groups list --type share -b 127.0.0.1:9092
  headrace groups describe billing --members -b 127.0.0.1:9092
  headrace groups reset-offsets billing --topic orders --to-earliest --execute -b 127.0.0.1:9092
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    commands = parser.add_subparsers(
        title="commands", metavar="{list,describe,reset-offsets,delete-offsets,delete}", required=True
    )
    listing = commands.add_parser("list", help="list all groups")
    listing.add_argument("--state", type=_one_of(STATES), action="append", default=[], help=", ".join(STATES))
    listing.add_argument("--type", type=_one_of(TYPES), action="append", default=[], help=", ".join(TYPES))
    describing = commands.add_parser(
        "describe", help="show committed offsets (of a share group: start offsets) and lag, or members"
    )
    describing.add_argument("group")
    describing.add_argument("--members", action="store_true", help="show the members and their assignments")
    resetting = commands.add_parser(
        "reset-offsets", help="reset the offsets of an empty group; a dry run without --execute"
    )
    resetting.add_argument("group")
    resetting.add_argument(
        "--topic", action="append", metavar="TOPIC[:PARTITION]", help="default: all partitions with an offset"
    )
    where = resetting.add_mutually_exclusive_group(required=True)
    where.add_argument("--to-earliest", action="store_true", help="to the log start")
    where.add_argument("--to-latest", action="store_true", help="to the log end")
    where.add_argument(
        "--to-datetime", metavar="TIME", help="to the first record at or after this time: 2026-01-31T12:00:00+00:00"
    )
    where.add_argument(
        "--to-offset", type=whole(0, INT64_MAX), metavar="N", help="to this offset, or to the nearest offset in the log"
    )
    where.add_argument(
        "--shift-by",
        type=whole(-INT64_MAX, INT64_MAX),
        metavar="N",
        help="by this many offsets from the committed one; negative: back",
    )
    resetting.add_argument("--execute", action="store_true", help="commit the new offsets")
    forgetting = commands.add_parser("delete-offsets", help="delete the offsets of a group in some topics")
    forgetting.add_argument("group")
    forgetting.add_argument("--topic", action="append", required=True, metavar="TOPIC")
    add_yes(forgetting)
    deleting = commands.add_parser("delete", help="delete empty groups and their offsets")
    deleting.add_argument("group", nargs="+")
    add_yes(deleting)
    runs = (run_list, run_describe, run_reset, run_delete_offsets, run_delete)
    for command, run in zip((listing, describing, resetting, forgetting, deleting), runs, strict=True):
        add_flags(command)
        command.set_defaults(run=run)


def run_list(args: argparse.Namespace) -> int:
    """One line per group; each broker lists the groups it coordinates."""
    with open_cluster(args) as cluster:
        found = list_groups(cluster, args.state, args.type)
    show(args, list(found.values()), ("group", "state", "type", "protocol", "coordinator"))
    return 0


def run_describe(args: argparse.Namespace) -> int:
    """One line per partition with an offset, or one per member."""
    with open_cluster(args) as cluster:
        share = cluster.look_again(lambda: describe_share_group(cluster, args.group))
        if share is not None:
            return _describe_share(cluster, args, share)
        committed = cluster.look_again(lambda: committed_offsets(cluster, args.group))
        members = read_members(cluster, args.group, has_offsets=bool(committed))
        if args.members:
            show(args, members, ("member", "instance", "client", "host", "assignment"))
            return 0
        latest = list_offsets(cluster, dict.fromkeys(committed, LATEST))
        readers = {tp: member for member in members for tp in member["assignment"]}
    rows = [
        {
            "topic": topic,
            "partition": index,
            "current_offset": offset,
            "log_end_offset": latest[topic, index],
            "lag": latest[topic, index] - offset,
            "member": readers.get(f"{topic}:{index}", {}).get("member"),
            "client": readers.get(f"{topic}:{index}", {}).get("client"),
        }
        for (topic, index), offset in sorted(committed.items())
    ]
    show(args, rows, ("topic", "partition", "current_offset", "log_end_offset", "lag", "member", "client"))
    return 0


def _describe_share(cluster: KafkaCluster, args: argparse.Namespace, share: ShareGroupView) -> int:
    if args.members:
        show(args, share.members, ("member", "client", "host", "assignment"))
        return 0
    progress = cluster.look_again(lambda: share_progress(cluster, args.group))
    latest = list_offsets(cluster, dict.fromkeys(progress, LATEST))
    rows = [
        {
            "topic": topic,
            "partition": index,
            "start_offset": offset,
            "log_end_offset": latest[topic, index],
            "lag": lag,
            "members": sum(f"{topic}:{index}" in member["assignment"] for member in share.members),
        }
        for (topic, index), (offset, lag) in sorted(progress.items())
    ]
    show(args, rows, ("topic", "partition", "start_offset", "log_end_offset", "lag", "members"))
    return 0


def run_reset(args: argparse.Namespace) -> int:
    """Print the new offsets; with --execute, commit them."""
    with open_cluster(args) as cluster:
        group = offsets_of(cluster, args.group)
        committed = group.offsets
        wanted = _partitions(cluster, args.topic) if args.topic else sorted(committed)
        if not wanted:
            raise InvalidError(f"the group has no offsets, set --topic: group={args.group}")
        moves, warnings = plan_reset(cluster, _reset_to(args), wanted, committed)
        for warning in warnings:
            write_error(f"warning: {warning}")
        if args.execute:
            cluster.look_again(lambda: group.change(cluster, args.group, moves))
    rows = [
        {"topic": topic, "partition": index, "current_offset": committed.get((topic, index)), "new_offset": offset}
        for (topic, index), offset in sorted(moves.items())
    ]
    show(args, rows, ("topic", "partition", "current_offset", "new_offset"))
    if not args.execute and not args.json:
        write("\ndry run, nothing was changed: repeat with --execute")
    return 0


def run_delete_offsets(args: argparse.Namespace) -> int:
    """Delete the group's offsets in the topics, after confirmation."""
    confirm(args, f"delete the offsets of {args.group} in {', '.join(args.topic)}?")
    with open_cluster(args) as cluster:
        is_share = cluster.look_again(lambda: describe_share_group(cluster, args.group)) is not None

        def forget(topic: str) -> None:
            if is_share:
                delete_share_offsets(cluster, args.group, [topic])
            else:
                delete_offsets(cluster, args.group, partitions_of(cluster, [topic]))

        return do_each(
            args,
            "topic",
            dict.fromkeys(args.topic),
            "deleted",
            lambda topic: cluster.look_again(functools.partial(forget, topic)),
        )


def run_delete(args: argparse.Namespace) -> int:
    """Delete the groups, after confirmation."""
    confirm(args, f"delete {', '.join(args.group)} and all their offsets?")
    with open_cluster(args) as cluster:
        return do_each(
            args,
            "group",
            dict.fromkeys(args.group),
            "deleted",
            lambda group: cluster.look_again(functools.partial(_delete, cluster, group)),
        )


def _one_of(known: Sequence[str]) -> Callable[[str], str]:
    """Return a parser for argparse's `type`: one of the words, in upper or lower case, as in Kafka's tool."""

    def word(text: str) -> str:
        for name in known:
            if name.lower() == text.lower():
                return name
        raise argparse.ArgumentTypeError(f"not one of {', '.join(known)}: {text}")

    return word


def _partitions(cluster: KafkaCluster, asked: list[str]) -> list[TopicPartition]:
    """`topic` means all its partitions, `topic:3` one partition."""
    wanted: list[TopicPartition] = []
    for text in asked:
        topic, colon, index = text.rpartition(":")
        if not colon:
            wanted += partitions_of(cluster, [text])
        elif index.isdecimal():
            wanted.append((topic, int(index)))
        else:
            raise InvalidError(f"not a topic or topic:partition: {text}")
    return wanted


def _reset_to(args: argparse.Namespace) -> ResetTo:
    at = args.to_datetime
    return ResetTo(args.to_latest, None if at is None else timestamp_ms(at), args.to_offset, args.shift_by)


def _delete(cluster: KafkaCluster, group: str) -> None:
    m = cluster.message(ApiKey.DELETE_GROUPS)
    request = m.request(groups_names=(group,))
    (answer,) = cluster.ask(ApiKey.DELETE_GROUPS, request, cluster.coordinator(group)).results
    require(answer.error_code, None, group)
