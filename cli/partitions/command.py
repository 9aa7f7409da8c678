"""`headrace partitions check`: which offsets of a partition cannot be read, what is behind, and what to do.

Place: needs metastore and bucket, as `headrace damage`, with or without a running cluster; partition_check.py looks,
behind.py asks, remedies.py says what to do.
Invariant: reads only; refuses a Postgres that is not the metastore, and a bucket that is not its own. Exit status 1 if
something cannot be read: what is only behind does not change it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
from collections.abc import Iterator
from typing import Any, NamedTuple

from headrace.cli.damage.command import opened, require_settings
from headrace.cli.numbers import INT32_MAX, INT64_MAX, whole
from headrace.cli.options import S3, add_settings
from headrace.cli.output import write
from headrace.cli.partitions.behind import Behind, JobLook, behind, late_jobs, look_once
from headrace.cli.partitions.remedies import remedy
from headrace.cli.progress_bar import ProgressBar
from headrace.cli.record_json import plain
from headrace.cli.times import iso_time
from headrace.compactor.mending.mend import Mending
from headrace.compactor.mending.partition_check import PartitionCheck, PartitionChecker
from headrace.config.settings import Settings
from headrace.metastore.api.damage import ListedDamage
from headrace.metastore.api.reports import PartitionName
from headrace.metastore.log.image import TopicImage
from headrace.metastore.log.loading import load_image
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.storage.client_text import one_line
from headrace.storage.clock import SystemClock
from headrace.storage.errors import InvalidError, NotFoundError
from headrace.storage.file_id import born_ms, object_key

EXTENTS_MAX = 10_000
RECORDED_MAX = 100_000
DESCRIPTION = """\
Check a partition that cannot be fetched, or is behind: which object, which offsets, since when, whether a sound copy
is there, and what to do.

  headrace partitions check orders:3 --metastore-url postgresql://… --bucket s3://…
  headrace partitions check orders --json …     all partitions of the topic
  headrace partitions check orders:3 --deep …   read every byte; default: recorded damage, and each object's ends

Without --deep, altered bytes that no reader, merge or pass met yet are not found.
"""


class CheckedPlace(NamedTuple):
    """A partition of the command."""

    topic: TopicImage
    partition_index: int
    key: int


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    commands = parser.add_subparsers(title="commands", metavar="{check}", required=True)
    check = commands.add_parser("check", help="find what cannot be read or is behind, and say what to do")
    check.add_argument("topic", metavar="TOPIC[:PARTITION]")
    check.add_argument("--deep", action="store_true", help="read and verify all bytes")
    check.add_argument("--from-offset", type=whole(0, INT64_MAX), default=0, metavar="N", help="begin here")
    check.add_argument(
        "--max-extents",
        type=whole(1, INT32_MAX),
        default=EXTENTS_MAX,
        metavar="N",
        help=f"look at so many extents of a partition at most ({EXTENTS_MAX})",
    )
    check.add_argument("--json", action="store_true", help="JSON for scripts instead of text")
    add_settings(check, ("metastore.url", "bucket", *S3), every=False)
    check.set_defaults(run=run_check)


def run_check(args: argparse.Namespace) -> int:
    """Print what was found; 1 if something cannot be read."""
    return asyncio.run(_check(args, require_settings(args)))


async def _check(args: argparse.Namespace, settings: Settings) -> int:
    clock, rng = SystemClock(), random.Random()
    async with opened(settings) as (metastore, store):
        image = await load_image(metastore.cluster)
        places = _places(args.topic, image.topics_by_name)
        recorded, _ = await metastore.compaction.list_damage(RECORDED_MAX)
        look = await look_once(metastore, image)
        mending = Mending(metastore, store, metastore.commit_shards, clock, rng)
        checker = PartitionChecker(metastore, store, mending, clock.sleep, deep=args.deep, extents_max=args.max_extents)
        answers = [await _one(metastore, checker, place, recorded, look, args) for place in places]
        late = [_as_dict(each) for each in late_jobs(look.jobs)]
    if args.json:
        write(json.dumps(plain({"partitions": answers, "background": late})))
    else:
        for answer in answers:
            for line in _lines(answer):
                write(line)
        for each in late:
            write(_behind_line(each))
    return 1 if any(answer["problems"] for answer in answers) else 0


def _places(text: str, topics: Any) -> list[CheckedPlace]:
    """The partitions of `topic` or `topic:3`. NotFoundError for what does not exist."""
    name, colon, number = text.rpartition(":")
    if not colon:
        name = text
    elif not number.isdecimal() or len(number) > 10:
        raise InvalidError(f"not a topic or TOPIC:PARTITION: {text[:300]}")
    topic = topics.get(name)
    if topic is None:
        raise NotFoundError(f"no such topic: {name[:300]}")
    indexes = [int(number)] if colon else list(topic.indexes)
    found = [CheckedPlace(topic, index, key) for index in indexes if (key := topic.key(index)) is not None]
    if not found:
        raise NotFoundError(f"no such partition: {text[:300]}")
    return found


async def _one(
    metastore: PostgresMetastore,
    checker: PartitionChecker,
    place: CheckedPlace,
    recorded: list[ListedDamage],
    look: JobLook,
    args: argparse.Namespace,
) -> dict[str, Any]:
    name, bar = PartitionName(place.topic.topic_id, place.partition_index), ProgressBar()
    own = [one for one in recorded if one.extent.partition_key == place.key]
    found = await checker.check(name, place.key, own, args.from_offset, lambda done, total: bar("offsets", done, total))
    bar.close()
    topic = place.topic.name
    waits = await behind(metastore, look, place.key, found)
    return _answer(topic, place.partition_index, found, waits)


def _answer(topic: str, index: int, found: PartitionCheck, waits: list[Behind]) -> dict[str, Any]:
    return {
        "topic": topic,
        "partition": index,
        "log_start_offset": found.log_start_offset,
        "high_watermark": found.high_watermark,
        "last_stable_offset": found.last_stable_offset,
        "extents": found.extents,
        "checked_to": found.checked_to,
        "problems": [
            {
                "kind": str(one.kind),
                "object": object_key(one.file_id),
                "first_offset": one.first_offset,
                "last_offset": one.last_offset,
                "position": one.position,
                "length": one.length,
                "why": one.why,
                "found": None if one.found_ms is None else iso_time(one.found_ms),
                "written": iso_time(born_ms(one.file_id)),
                "copy": one.copy,
                "to_do": remedy(topic, index, one),
            }
            for one in found.problems
        ],
        "behind": [_as_dict(each) for each in waits],
    }


def _as_dict(each: Behind) -> dict[str, Any]:
    since = None if each.since_ms is None or each.since_ms < 0 else iso_time(each.since_ms)
    return {"what": each.what, "found": each.found, "since": since, "to_do": each.to_do}


def _lines(answer: dict[str, Any]) -> Iterator[str]:
    place = f"{answer['topic']}:{answer['partition']}"
    state = "cannot be read in part" if answer["problems"] else "ok"
    yield (
        f"{place} {state}: offsets={answer['log_start_offset']}-{answer['high_watermark'] - 1}"
        f" last_stable_offset={answer['last_stable_offset']} extents={answer['extents']}"
    )
    if answer["checked_to"] < answer["high_watermark"]:
        yield f"  looked at offsets below {answer['checked_to']} only: --from-offset {answer['checked_to']}"
    for one in answer["problems"]:
        since = f"since {one['found']}" if one["found"] else "not recorded before"
        copy = f"sound copy: {one['copy']}" if one["copy"] else "no sound copy"
        yield f"  {one['kind']}: offsets={one['first_offset']}-{one['last_offset']} object={one['object']}"
        yield f"    {since}; written {one['written']}; {one_line(one['why'])}"
        yield f"    {copy if one['kind'] in ('altered', 'missing') else 'the bytes may be sound'}: {one['to_do']}"
    for each in answer["behind"]:
        yield f"  {_behind_line(each)}"


def _behind_line(each: dict[str, Any]) -> str:
    since = f" since {each['since']}" if each["since"] else ""
    return f"behind: {one_line(each['what'])}: {each['found']}{since}; {each['to_do']}"
