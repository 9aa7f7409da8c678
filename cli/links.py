"""`headrace link`: copy topics of another Kafka cluster here with their offsets, follow the copy, promote it.

Place: a Kafka client for a running Headrace; the agents and workers do the work (docs/operate/LINKS.md), so each
command may be stopped at any time and repeated. `create --dry-run` connects to the source from this machine.
Invariant: no secret is printed. What waits says what for, on stderr, and ends with an error when its time is over.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from headrace.cli.link_source import dry_run, source_configs
from headrace.cli.link_verify import add_verify, run_verify
from headrace.cli.options import INT32_MAX, INT64_MAX, whole
from headrace.cli.output import ProgressBar, write, write_error
from headrace.cli.tables import add_flags, add_yes, client_file, confirm, open_cluster, pairs, say, show
from headrace.config.link_configs import EXCLUDE, GROUPS, MAX_RATE, TOPICS, why_invalid
from headrace.protocol.client.cluster import KafkaCluster
from headrace.protocol.link_requests import NEVER, LinkOp, LinkRequest, ShownGroup, ShownLink, ShownTopic
from headrace.storage.errors import InvalidError, UnavailableError

DESCRIPTION = """\
Links: topics of another Kafka cluster, copied here with their offsets until they are promoted.

  headrace link create old --from kafka:9092 --command-config old.properties --topics 'orders.*' --dry-run
  headrace link create old --from kafka:9092 --command-config old.properties --topics 'orders.*'
  headrace link show old --follow
  headrace link promote old --topics orders.eu --fence-source
  headrace link drop old
"""
LINK_COLUMNS = ("link", "state", "source", "topics", "lag", "lag_bytes", "lag_seconds", "problems", "problem")
TOPIC_COLUMNS = ("topic", "partitions", "records", "lag", "lag_seconds", "lost", "promotion", "problems")
GROUP_COLUMNS = ("group", "kind", "at_the_source", "here", "partitions", "behind", "copied_seconds_ago", "problem")
OWN_FILE = ("--config", "-c")
"""The client's file of this cluster: --command-config is that of the source."""
LOOK_SECONDS = 1.0
TIMEOUT_SECONDS = 3_600


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    names = "{create,alter,list,show,verify,pause,resume,promote,drop}"
    commands = parser.add_subparsers(title="commands", metavar=names, required=True)
    _add_create(commands.add_parser("create", help="begin to copy topics of another cluster"))
    _add_alter(commands.add_parser("alter", help="change which topics are copied, how fast, or the login"))
    _add(commands.add_parser("list", help="all links, and how far they are"), run_list, named=False)
    showing = commands.add_parser("show", aliases=["describe"], help="one link with its topics")
    showing.add_argument("--follow", action="store_true", help="show the progress until all topics have caught up")
    _add(showing, run_show)
    _add(commands.add_parser("groups", help="the groups of which the link copies the offsets"), run_groups)
    verifying = commands.add_parser("verify", help="compare the source and the copies, record for record")
    add_verify(verifying)
    _add(verifying, run_verify)
    _add(commands.add_parser("pause", help="copy nothing until it is resumed"), run_pause)
    _add(commands.add_parser("resume", help="continue where it was paused"), run_resume)
    _add_promote(commands.add_parser("promote", help="make copies ordinary topics, which take records"))
    dropping = commands.add_parser("drop", aliases=["delete"], help="end a link")
    dropping.add_argument("--topics", action="append", default=[], metavar="TOPIC[,..]", help=_SOME_TO_DELETE)
    dropping.add_argument("--promote", action="store_true", help="promote its topics first, and wait for it")
    dropping.add_argument("--delete-topics", action="store_true", help="delete its copies; their source keeps them")
    _add_timeout(dropping)
    add_yes(dropping)
    _add(dropping, run_drop)


_SOME_TO_DELETE = "with --delete-topics: delete only these copies, which are copied again if the link names them"


def _add(parser: argparse.ArgumentParser, run: Callable[[argparse.Namespace], int], *, named: bool = True) -> None:
    if named:
        parser.add_argument("link", help="the link's name")
    add_flags(parser, file_names=OWN_FILE)
    parser.set_defaults(run=run)


def _add_source(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--from", dest="source", metavar="HOST:PORT[,..]", help="addresses of the source")
    parser.add_argument(
        "--command-config",
        type=client_file,
        metavar="FILE",
        help="properties file of a client of the source: its login, as Kafka's tools have it",
    )
    parser.add_argument("--topics", action="append", default=[], metavar="PATTERN[,..]", help="RE2, whole names")
    parser.add_argument("--exclude", action="append", default=[], metavar="PATTERN[,..]", help="not these of them")
    parser.add_argument(
        "--groups", action="append", default=[], metavar="PATTERN[,..]", help="groups, the offsets of which come, too"
    )
    parser.add_argument(
        "--max-bytes-per-second", type=whole(0, INT64_MAX), metavar="N", help="read no faster; 0: no limit"
    )
    parser.add_argument("--set", action="append", default=[], metavar="CONFIG=VALUE", help="another config of the link")


def _add_create(parser: argparse.ArgumentParser) -> None:
    _add_source(parser)
    parser.add_argument("--dry-run", action="store_true", help="look what would be copied, from this machine")
    _add(parser, run_create)


def _add_alter(parser: argparse.ArgumentParser) -> None:
    _add_source(parser)
    parser.add_argument("--unset", action="append", default=[], metavar="CONFIG", help="back to its default")
    _add(parser, run_alter)


def _add_promote(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--topics", action="append", default=[], metavar="TOPIC[,..]", help="default: all of the link")
    parser.add_argument("--force", action="store_true", help="with what the copy has, also without the rest")
    parser.add_argument("--fence-source", action="store_true", help="first deny writes to the topic at the source")
    parser.add_argument("--dry-run", action="store_true", help="say what is missing, change nothing")
    parser.add_argument("--no-wait", action="store_true", help="do not wait until it is done")
    _add_timeout(parser)
    _add(parser, run_promote)


def _add_timeout(parser: argparse.ArgumentParser) -> None:
    explained = "how long to wait for the promotion (%(default)s)"
    kind = whole(1, INT32_MAX)
    parser.add_argument("--timeout", type=kind, default=TIMEOUT_SECONDS, metavar="SECONDS", help=explained)


def run_create(args: argparse.Namespace) -> int:
    """Create the link, or look what it would copy."""
    configs = _given(args)
    if reason := why_invalid(configs):
        raise InvalidError(reason)
    with open_cluster(args) as cluster:
        cluster.links(_request(args, LinkOp.CREATE, configs=configs, validate_only=True))
        if args.dry_run:
            return dry_run(args, cluster, configs)
        cluster.links(_request(args, LinkOp.CREATE, configs=configs))
    return _say(args, "created")


def run_alter(args: argparse.Namespace) -> int:
    """Change configs."""
    changes: dict[str, str | None] = {**_given(args), **dict.fromkeys(args.unset)}
    if not changes:
        raise InvalidError("nothing to change: name what is different, or --unset CONFIG")
    with open_cluster(args) as cluster:
        cluster.links(_request(args, LinkOp.ALTER, configs=changes))
    return _say(args, "altered")


def run_list(args: argparse.Namespace) -> int:
    """One line per link."""
    with open_cluster(args) as cluster:
        found = cluster.links(LinkRequest(op=LinkOp.LIST)).links
    if args.json:
        write(json.dumps(msgspec.to_builtins(found)))
        return 0
    show(args, [_link_row(link) for link in found], LINK_COLUMNS)
    return 0


def run_show(args: argparse.Namespace) -> int:
    """The link, then one line per topic."""
    with open_cluster(args) as cluster:
        link = _shown(cluster, args.link)
        if args.follow:
            link = _follow(cluster, args.link, link)
    if args.json:
        write(json.dumps(msgspec.to_builtins(link)))
        return 0
    show(args, [_link_row(link)], LINK_COLUMNS)
    write()
    rows = [{"config": name, "value": "(hidden)" if value is None else value} for name, value in link.configs.items()]
    show(args, rows, ("config", "value"))
    write()
    show(args, [_topic_row(topic) for topic in link.topics], TOPIC_COLUMNS)
    return 0


def run_groups(args: argparse.Namespace) -> int:
    """One line per group."""
    with open_cluster(args) as cluster:
        (link,) = cluster.links(_request(args, LinkOp.GROUPS)).links
    if args.json:
        write(json.dumps(msgspec.to_builtins({"groups": link.groups, "problem": link.groups_problem})))
        return 0
    if link.groups_problem:
        write_error(link.groups_problem)
    show(args, [_group_row(group) for group in link.groups], GROUP_COLUMNS)
    return 0


def run_pause(args: argparse.Namespace) -> int:
    """Stop copying."""
    return _simple(args, LinkOp.PAUSE, "paused")


def run_resume(args: argparse.Namespace) -> int:
    """Continue."""
    return _simple(args, LinkOp.RESUME, "resumed")


def run_promote(args: argparse.Namespace) -> int:
    """Ask for the promotion, and wait until it is done."""
    topics = _names(args.topics)
    with open_cluster(args) as cluster:
        request = _request(
            args, LinkOp.PROMOTE, topics=topics, force=args.force, fence=args.fence_source, validate_only=args.dry_run
        )
        answer = cluster.links(request)
        behind = {topic.name: topic.lag for link in answer.links for topic in link.topics if topic.lag}
        left = {name: behind[name] for name in answer.topics if name in behind}
        if args.force and left:
            write_error(f"left behind: {', '.join(f'{name}: {lag:,} offsets' for name, lag in left.items())}")
        if not args.dry_run and not args.no_wait:
            _wait_for(cluster, args, answer.topics)
    outcome = "would be promoted" if args.dry_run else "asked for" if args.no_wait else "promoted"
    text = f"{outcome}: {', '.join(answer.topics)}"
    say(args, text, link=args.link, topics=list(answer.topics), outcome=outcome, left_behind=left)
    return 0


def run_drop(args: argparse.Namespace) -> int:
    """End the link, or delete some of its copies."""
    topics = _names(args.topics)
    if args.promote and (args.delete_topics or topics):
        args.refuse("--promote excludes --delete-topics and --topics")
    with open_cluster(args) as cluster:
        if args.promote and _linked(_shown(cluster, args.link)):
            answer = cluster.links(_request(args, LinkOp.PROMOTE))
            _wait_for(cluster, args, answer.topics)
        request = _request(args, LinkOp.DROP, topics=topics, delete_topics=args.delete_topics)
        checked = cluster.links(msgspec.structs.replace(request, validate_only=True))
        if args.delete_topics and checked.topics:
            confirm(args, f"delete {len(checked.topics)} copies ({', '.join(checked.topics[:10])})?")
        done = cluster.links(request)
    return _say(args, "deleted" if topics else "dropped", topics=list(done.topics))


def _given(args: argparse.Namespace) -> dict[str, str]:
    """The configs that the flags name."""
    found = source_configs(args.command_config, args.source)
    lists = {TOPICS: ",".join(args.topics), EXCLUDE: ",".join(args.exclude), GROUPS: ",".join(args.groups)}
    found |= {name: value for name, value in lists.items() if value}
    if args.max_bytes_per_second is not None:
        found[MAX_RATE] = str(args.max_bytes_per_second)
    return found | pairs(args.set, "config")


def _request(args: argparse.Namespace, op: LinkOp, **more: Any) -> LinkRequest:
    return LinkRequest(op=op, link=args.link, **more)


def _simple(args: argparse.Namespace, op: LinkOp, done: str) -> int:
    with open_cluster(args) as cluster:
        cluster.links(_request(args, op))
    return _say(args, done)


def _say(args: argparse.Namespace, outcome: str, **facts: Any) -> int:
    say(args, f"link {args.link} {outcome}", link=args.link, outcome=outcome, **facts)
    return 0


def _names(given: Sequence[str]) -> tuple[str, ...]:
    return tuple(name.strip() for each in given for name in each.split(",") if name.strip())


def _shown(cluster: KafkaCluster, link: str) -> ShownLink:
    (found,) = cluster.links(LinkRequest(op=LinkOp.SHOW, link=link)).links
    return found


def _linked(link: ShownLink) -> list[ShownTopic]:
    return [topic for topic in link.topics if topic.is_linked]


def _follow(cluster: KafkaCluster, name: str, link: ShownLink) -> ShownLink:
    """Show the backlog until nothing is left of it; a problem ends it, too."""
    bar = ProgressBar()
    try:
        while _is_copying(link):
            bar("records", link.source_records - link.lag, link.source_records)
            cluster.pause(LOOK_SECONDS)
            link = _shown(cluster, name)
    finally:
        bar.close()
    return link


def _is_copying(link: ShownLink) -> bool:
    """Return whether waiting may help: nothing was found yet, or some is left to copy."""
    if link.problem:
        return False
    new = any(topic.lag_ms == NEVER and not topic.problems for topic in link.topics)
    return not link.cluster_id or link.lag > 0 or new


def _wait_for(cluster: KafkaCluster, args: argparse.Namespace, topics: Sequence[str]) -> None:
    """Return when none of the topics is a copy any more. UnavailableError says what is missing after the timeout."""
    bar, wanted = ProgressBar(), set(topics)
    try:
        for _ in range(int(args.timeout / LOOK_SECONDS)):
            left = [topic for topic in _linked(_shown(cluster, args.link)) if topic.name in wanted]
            if not left:
                return
            bar("topics", len(wanted) - len(left), len(wanted))
            cluster.pause(LOOK_SECONDS)
    finally:
        bar.close()
    reasons = "; ".join(_why_waiting(topic) for topic in left[:10])
    raise UnavailableError(f"not promoted after {args.timeout} s, and the promotion continues: {reasons}")


def _why_waiting(topic: ShownTopic) -> str:
    if topic.problems:
        return f"{topic.name}: {topic.problems[0]}"
    if topic.lag:
        return f"{topic.name}: {topic.lag:,} offsets are missing"
    return f"{topic.name}: {topic.ready} of {topic.partitions} partitions are ready"


def _link_row(link: ShownLink) -> dict[str, Any]:
    return {
        "link": link.name,
        "state": link.configs.get("link.state"),
        "source": link.cluster_id or link.configs.get("bootstrap.servers"),
        "topics": link.topic_count,
        "lag": link.lag,
        "lag_bytes": link.lag_bytes,
        "lag_seconds": _seconds(link.lag_ms),
        "problems": link.problems,
        "problem": link.problem or ("no worker has reached the source yet" if not link.cluster_id else ""),
    }


def _topic_row(topic: ShownTopic) -> dict[str, Any]:
    return {
        "topic": topic.name,
        "partitions": topic.partitions,
        "records": topic.records,
        "lag": topic.lag if topic.is_linked else None,
        "lag_seconds": _seconds(topic.lag_ms) if topic.is_linked else None,
        "lost": topic.lost,
        "promotion": topic.promotion,
        "problems": "; ".join(topic.problems),
    }


def _group_row(group: ShownGroup) -> dict[str, Any]:
    return {
        "group": group.group_id,
        "kind": group.kind,
        "at_the_source": group.source_state,
        "here": "came" if group.is_here else "follows",
        "partitions": group.offsets,
        "behind": group.behind,
        "copied_seconds_ago": _seconds(group.copied_ms),
        "problem": group.problem,
    }


def _seconds(lag_ms: int) -> float | None:
    """None: it never had all that its source had."""
    return None if lag_ms == NEVER else lag_ms / 1000
