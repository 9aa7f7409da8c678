"""`headrace topics alter --double` and `--halve`: other partition counts, all keys in order, under unmodified clients.

Place: a part of topics.py. The agents do the work: the command may be stopped at any time, and repeated. If its agent
goes away it continues through another one.
Invariant: nothing is doubled under readers that do not keep the order, and no halving waits for groups that may never
read, unless --force says so. What is left to wait for is named on stderr: partitions without a boundary or that are not
merged, and groups that have to commit.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

from headrace.cli.options import INT32_MAX, whole
from headrace.cli.output import write_error
from headrace.cli.tables import say
from headrace.protocol.client.cluster import TRIES, KafkaCluster
from headrace.protocol.own_requests import ScaleRequest, ScaleResponse, ScaleStep, ShownReader

LOOK_SECONDS = 1.0
TIMEOUT_MS = 25_000
"""Longer than broker.session.timeout.ms, for silent agents are waited for; shorter than request.timeout.ms."""
NAMED_MAX = 20
"""Groups in a line."""

LeftToDo = Callable[[ScaleResponse], str | None]
"""What is waited for; None if that is nothing."""


def add_scaling(altering: argparse.ArgumentParser) -> None:
    """Add the arguments to those of `topics alter`."""
    altering.add_argument(
        "--double",
        action="store_true",
        help="twice the partitions, with the order of all keys, also under unmodified clients (Headrace only);"
        " --partitions names the count after it, so that a command that is repeated doubles once",
    )
    altering.add_argument(
        "--halve", action="store_true", help="the way back, to --partitions: half as many (Headrace only)"
    )
    altering.add_argument("--cancel", action="store_true", help="with --halve: give it up, if nothing is merged yet")
    altering.add_argument(
        "--force",
        action="store_true",
        help="double also with readers that do not keep the order; halve without groups that never had members",
    )
    altering.add_argument(
        "--producers-max-age-ms",
        type=whole(1, INT32_MAX),
        default=0,
        metavar="MS",
        help="with --double: the longest metadata.max.age.ms of the topic's producers; default: Kafka's, 300000",
    )
    altering.add_argument(
        "--no-wait", action="store_true", help="do not wait until all groups read all partitions, or the count is lower"
    )
    altering.add_argument(
        "--validate-only", action="store_true", help="check a --double or --halve without applying it"
    )


def refuse_unfit(args: argparse.Namespace) -> None:
    """Arguments that do not go together."""
    scales = args.double + args.halve
    if scales > 1:
        args.refuse("--double and --halve exclude each other")
    if scales and args.partitions is None and not (args.validate_only or args.cancel):
        args.refuse("--double and --halve need --partitions, the count after it: a repeated command does nothing more")
    if args.producers_max_age_ms and not args.double:
        args.refuse("--producers-max-age-ms needs --double")
    if args.cancel and (not args.halve or args.validate_only):
        args.refuse("--cancel needs --halve, and excludes --validate-only")
    if not scales and (args.force or args.no_wait or args.validate_only):
        args.refuse("--force, --no-wait and --validate-only need --double or --halve")


def double(cluster: KafkaCluster, args: argparse.Namespace) -> int:
    """Double the topic and wait until everything is read as before; 0."""
    answer = _begin(cluster, args, ScaleStep.DOUBLE)
    if args.validate_only:
        return _say(args, answer, "would be doubled")
    if others := [reader.group_id for reader in answer.readers if not _waits(reader)]:
        _tell(f"warning: read new partitions at once: {_some(others)}")
    return _say(args, answer if args.no_wait else _follow(cluster, args.topic, answer, left_to_double), "doubled")


def halve(cluster: KafkaCluster, args: argparse.Namespace) -> int:
    """Halve the topic and wait until clients see the lower count, or give it up; 0."""
    if args.cancel:
        return _say(args, cluster.scale_topic(_wanted(args, ScaleStep.CANCEL)), "no longer halves")
    answer = _begin(cluster, args, ScaleStep.HALVE)
    if args.validate_only:
        return _say(args, answer, "would be halved")
    if args.no_wait:
        return _say(args, answer, "halves")
    return _say(args, _follow(cluster, args.topic, answer, lambda now: left_to_halve(now, args.partitions)), "halved")


def left_to_double(answer: ScaleResponse) -> str | None:
    """Boundaries, and groups that have not committed up to them."""
    late = [reader.group_id for reader in answer.readers if reader.late and _waits(reader)]
    parts = []
    if answer.boundaries < answer.parents:
        parts.append(f"boundaries set: {answer.boundaries} of {answer.parents}")
    if late:
        parts.append(f"groups that have not committed up to them: {_some(late)}")
    return "; ".join(parts) or None


def left_to_halve(answer: ScaleResponse, lower: int) -> str | None:
    """Children that are not merged, and groups that have to read them; then the count."""
    if answer.partition_count <= lower:
        return None
    parts = [f"partitions merged: {answer.boundaries} of {answer.parents}"]
    if late := [reader.group_id for reader in answer.readers if reader.late]:
        parts.append(f"groups that have not committed all of the others: {_some(late)}")
    return "; ".join(parts)


def _wanted(args: argparse.Namespace, step: ScaleStep) -> ScaleRequest:
    count, quiet_ms = args.partitions or 0, args.producers_max_age_ms
    return ScaleRequest(args.topic, step, args.force, args.validate_only, quiet_ms, TIMEOUT_MS, count)


def _begin(cluster: KafkaCluster, args: argparse.Namespace, step: ScaleStep) -> ScaleResponse:
    """Ask for it, also at other agents if one goes away: the request names the count, so it takes effect once."""
    cluster.nodes()
    cluster.scale_topic(ScaleRequest(args.topic, ScaleStep.LOOK))  # refused by other brokers, once
    return cluster.scale_topic(_wanted(args, step), TRIES)


def _say(args: argparse.Namespace, answer: ScaleResponse, done: str) -> int:
    say(
        args,
        f"topic {args.topic} {done}",
        topic=args.topic,
        outcome=done,
        partitions=answer.partition_count,
        boundaries=answer.boundaries,
        late_groups=[reader.group_id for reader in answer.readers if reader.late and (args.halve or _waits(reader))],
    )
    return 0


def _follow(cluster: KafkaCluster, topic: str, answer: ScaleResponse, left_to_do: LeftToDo) -> ScaleResponse:
    printed = None
    while (left := left_to_do(answer)) is not None:
        if left != printed:
            _tell(f"partitions: {answer.partition_count}; {left}")
            printed = left
        cluster.pause(LOOK_SECONDS)
        answer = cluster.scale_topic(ScaleRequest(topic, ScaleStep.LOOK), TRIES)
    return answer


def _waits(reader: ShownReader) -> bool:
    """Return whether the coordinator keeps children from the group."""
    return reader.kind == "consumer"


def _tell(line: str) -> None:
    write_error(line)


def _some(groups: list[str]) -> str:
    shown = ", ".join(groups[:NAMED_MAX])
    return shown if len(groups) <= NAMED_MAX else f"{shown}, ... ({len(groups)})"
