"""`headrace groups`: list and describe consumer groups, move their positions, delete them.

Place: a client like any other, beside a running cluster; Kafka's kafka-consumer-groups.sh.
Invariant: reset-offsets only says what it would do until --execute is given, and the broker refuses it while the
group has members. If the process dies in between, each partition's position is the old or the new one.
"""

from __future__ import annotations

import argparse
import datetime
import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any

from kio.schema.errors import ErrorCode

from headrace.cli.client.cluster import KafkaCluster, require
from headrace.cli.client.group_members import Member, members_of
from headrace.cli.client.offsets import EARLIEST, LATEST, TopicPartition, list_offsets, partitions_of, timestamp_ms
from headrace.cli.numbers import INT64_MAX, whole
from headrace.cli.tables import Row, add_flags, add_yes, confirm, do_each, open_cluster, show
from headrace.protocol.api_keys import ApiKey
from headrace.storage.errors import InvalidError, NotFoundError

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
FILTERED_FROM = {"state": 4, "type": 5}
"""The first version of ListGroups that can leave groups out by it."""
NO_GENERATION = -1
NOTHING_COMMITTED = -1
DESCRIPTION = """\
Consumer groups of a running cluster, ours or any other that speaks Kafka.

  headrace groups list -b 127.0.0.1:9092
  headrace groups describe billing --members -b 127.0.0.1:9092
  headrace groups reset-offsets billing --topic orders --to-earliest --execute -b 127.0.0.1:9092
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what the command takes."""
    commands = parser.add_subparsers(title="commands", metavar="{list,describe,reset-offsets,delete}", required=True)
    listing = commands.add_parser("list", help="all groups")
    listing.add_argument("--state", type=_one_of(STATES), action="append", default=[], help=", ".join(STATES))
    listing.add_argument("--type", type=_one_of(TYPES), action="append", default=[], help=", ".join(TYPES))
    describing = commands.add_parser("describe", help="positions and how far they lag; members")
    describing.add_argument("group")
    describing.add_argument("--members", action="store_true", help="who is in it, and who reads what")
    resetting = commands.add_parser("reset-offsets", help="move an empty group's positions; shows what it would do")
    resetting.add_argument("group")
    resetting.add_argument(
        "--topic", action="append", metavar="TOPIC[:PARTITION]", help="all that it has read if not given"
    )
    where = resetting.add_mutually_exclusive_group(required=True)
    where.add_argument("--to-earliest", action="store_true", help="the first record")
    where.add_argument("--to-latest", action="store_true", help="behind the last record")
    where.add_argument("--to-datetime", metavar="TIME", help="the first record from then on: 2026-01-31T12:00:00+00:00")
    where.add_argument("--to-offset", type=whole(0, INT64_MAX), metavar="N", help="this one, or the log's nearest end")
    resetting.add_argument("--execute", action="store_true", help="do it")
    deleting = commands.add_parser("delete", help="empty groups and their positions")
    deleting.add_argument("group", nargs="+")
    add_yes(deleting)
    runs = (run_list, run_describe, run_reset, run_delete)
    for command, run in zip((listing, describing, resetting, deleting), runs, strict=True):
        add_flags(command)
        command.set_defaults(run=run)


def run_list(args: argparse.Namespace) -> int:
    """One line per group; each broker knows its own."""
    with open_cluster(args) as cluster:
        m = cluster.message(ApiKey.LIST_GROUPS)
        for name, version in FILTERED_FROM.items():
            if getattr(args, name) and m.version < version:
                raise InvalidError(f"the cluster cannot choose groups by --{name}: it is too old")
        request = m.request(states_filter=tuple(args.state), types_filter=tuple(args.type))
        found: dict[str, Row] = {}
        for node_id in cluster.nodes():
            answer = cluster.ask(ApiKey.LIST_GROUPS, request, node_id)
            require(answer.error_code)
            for group in answer.groups:
                found[group.group_id] = {
                    "group": group.group_id,
                    "state": getattr(group, "group_state", None),
                    "type": getattr(group, "group_type", None),
                    "protocol": group.protocol_type or None,
                    "coordinator": node_id,
                }
    show(args, [found[name] for name in sorted(found)], ("group", "state", "type", "protocol", "coordinator"))
    return 0


def run_describe(args: argparse.Namespace) -> int:
    """One line per partition with a position, or per member."""
    with open_cluster(args) as cluster:
        committed = cluster.look_again(lambda: _committed(cluster, args.group))
        members = _members(cluster, args.group, has_positions=bool(committed))
        if args.members:
            show(args, members, ("member", "instance", "client", "host", "assignment"))
            return 0
        latest = list_offsets(cluster, dict.fromkeys(committed, LATEST))
        readers = {tp: member for member in members for tp in member["assignment"]}
    rows = [
        {
            "topic": topic,
            "partition": index,
            "position": offset,
            "latest": latest[topic, index],
            "lag": latest[topic, index] - offset,
            "member": readers.get(f"{topic}:{index}", {}).get("member"),
            "client": readers.get(f"{topic}:{index}", {}).get("client"),
        }
        for (topic, index), offset in sorted(committed.items())
    ]
    show(args, rows, ("topic", "partition", "position", "latest", "lag", "member", "client"))
    return 0


def run_reset(args: argparse.Namespace) -> int:
    """Show the new positions; with --execute, commit them."""
    with open_cluster(args) as cluster:
        committed = cluster.look_again(lambda: _committed(cluster, args.group))
        wanted = _partitions(cluster, args.topic) if args.topic else sorted(committed)
        if not wanted:
            raise InvalidError(f"the group has read nothing: name a --topic: group={args.group}")
        moves, warnings = _targets(cluster, args, wanted)
        for warning in warnings:
            print(f"warning: {warning}", file=sys.stderr)
        if args.execute:
            cluster.look_again(lambda: _commit(cluster, args.group, moves))
    rows = [
        {"topic": topic, "partition": index, "position": committed.get((topic, index)), "new_position": offset}
        for (topic, index), offset in sorted(moves.items())
    ]
    show(args, rows, ("topic", "partition", "position", "new_position"))
    if not args.execute and not args.json:
        print("\nnothing was changed: repeat with --execute")
    return 0


def run_delete(args: argparse.Namespace) -> int:
    """Delete them, once confirmed."""
    confirm(args, f"delete {', '.join(args.group)} and all positions?")
    with open_cluster(args) as cluster:
        return do_each(
            args,
            "group",
            dict.fromkeys(args.group),
            "deleted",
            lambda group: cluster.look_again(functools.partial(_delete, cluster, group)),
        )


def _one_of(known: Sequence[str]) -> Callable[[str], str]:
    """For argparse's `type`: one of the words, in whatever case, as Kafka's tool takes them."""

    def word(text: str) -> str:
        for name in known:
            if name.lower() == text.lower():
                return name
        raise argparse.ArgumentTypeError(f"not one of {', '.join(known)}: {text}")

    return word


def _committed(cluster: KafkaCluster, group: str) -> dict[TopicPartition, int]:
    m = cluster.message(ApiKey.OFFSET_FETCH)
    request = m.request(group_id=group, topics=None, require_stable=False)
    answer = cluster.ask(ApiKey.OFFSET_FETCH, request, cluster.coordinator(group))
    require(answer.error_code, None, group)
    found = {}
    for topic in answer.topics:
        for partition in topic.partitions:
            require(partition.error_code, None, f"{topic.name}:{partition.partition_index}")
            if partition.committed_offset != NOTHING_COMMITTED:
                found[str(topic.name), int(partition.partition_index)] = int(partition.committed_offset)
    return found


def _members(cluster: KafkaCluster, group: str, *, has_positions: bool) -> list[Member]:
    """None of a group that only keeps positions; NotFoundError where there are not even those."""
    try:
        return cluster.look_again(lambda: members_of(cluster, group))
    except NotFoundError:
        if not has_positions:
            raise
        return []


def _partitions(cluster: KafkaCluster, asked: list[str]) -> list[TopicPartition]:
    """`topic` is all its partitions, `topic:3` one."""
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


def _targets(
    cluster: KafkaCluster, args: argparse.Namespace, wanted: list[TopicPartition]
) -> tuple[dict[TopicPartition, int], list[str]]:
    """New positions inside the log, as Kafka's tool sets them; and where that is not what was asked for."""
    earliest = list_offsets(cluster, dict.fromkeys(wanted, EARLIEST))
    latest = list_offsets(cluster, dict.fromkeys(wanted, LATEST))
    if args.to_earliest:
        return earliest, []
    if args.to_latest:
        return latest, []
    if args.to_offset is not None:
        moves = {tp: min(max(args.to_offset, earliest[tp]), latest[tp]) for tp in wanted}
        return moves, [
            f"offset {args.to_offset} is outside {topic}:{index} ({earliest[topic, index]}..{latest[topic, index]}):"
            f" its new position is {offset}"
            for (topic, index), offset in moves.items()
            if offset != args.to_offset
        ]
    found = list_offsets(cluster, dict.fromkeys(wanted, timestamp_ms(args.to_datetime)))
    return {tp: latest[tp] if offset < 0 else offset for tp, offset in found.items()}, [
        f"{topic}:{index} has no record from then on: its new position is its end, {latest[topic, index]}"
        for (topic, index), offset in found.items()
        if offset < 0
    ]


def _commit(cluster: KafkaCluster, group: str, positions: dict[TopicPartition, int]) -> None:
    m = cluster.message(ApiKey.OFFSET_COMMIT)
    topics: dict[str, list[Any]] = {}
    for (topic, index), offset in positions.items():
        partition = m.make(
            "OffsetCommitRequestPartition",
            partition_index=index,
            committed_offset=offset,
            committed_leader_epoch=-1,
            committed_metadata="",
        )
        topics.setdefault(topic, []).append(partition)
    request = m.request(
        group_id=group,
        generation_id_or_member_epoch=NO_GENERATION,
        member_id="",
        group_instance_id=None,
        retention_time=datetime.timedelta(milliseconds=-1),
        topics=tuple(
            m.make("OffsetCommitRequestTopic", name=topic, partitions=tuple(partitions))
            for topic, partitions in topics.items()
        ),
    )
    for topic in cluster.ask(ApiKey.OFFSET_COMMIT, request, cluster.coordinator(group)).topics:
        for partition in topic.partitions:
            if partition.error_code in (ErrorCode.unknown_member_id, ErrorCode.illegal_generation):
                raise InvalidError(f"the group has members: stop them first: group={group}")
            require(partition.error_code, None, f"{topic.name}:{partition.partition_index}")


def _delete(cluster: KafkaCluster, group: str) -> None:
    m = cluster.message(ApiKey.DELETE_GROUPS)
    request = m.request(groups_names=(group,))
    (answer,) = cluster.ask(ApiKey.DELETE_GROUPS, request, cluster.coordinator(group)).results
    require(answer.error_code, None, group)
