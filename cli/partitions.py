"""`headrace partitions check`: which offsets of a partition cannot be read, what is behind, what to do.

Place: needs metastore and bucket, as `headrace damage`, with or without a running cluster.
compactor/mending/partition_check.py reads the extents; what is behind is asked of the metastore only, so the answer
is the same while no agent runs.
Invariant of remedies: a command that is printed runs as it is, but for the addresses of metastore, bucket and
agents. Nothing here says to skip records before a copy was looked for.
Invariant of what is behind: reads only. A group is behind if it has a lag; who is behind is not judged, only how far
and since when.
Invariant: reads only; refuses a Postgres that is not the metastore, and a bucket that is not its own. Exit status 1
if something cannot be read: what is only behind does not change it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import shlex
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from headrace.cli.damage import opened, require_settings
from headrace.cli.options import INT32_MAX, INT64_MAX, STORE, add_settings, whole
from headrace.cli.output import ProgressBar, write
from headrace.cli.record_json import plain
from headrace.cli.tables import iso_time
from headrace.compactor.cleaning.planner import compacted_partitions
from headrace.compactor.mending.mend import Mending
from headrace.compactor.mending.partition_check import PartitionCheck, PartitionChecker, Problem, ProblemKind
from headrace.config.settings import Settings
from headrace.metastore.api.cleaning import CleaningQuery, CleaningState
from headrace.metastore.api.compaction import ListedDamage
from headrace.metastore.api.jobs import JobState
from headrace.metastore.api.metastore import Metastore
from headrace.metastore.api.reports import ConsumerLag, JobCount, PartitionName, ProducerStatus
from headrace.metastore.log.image import MetadataImage, TopicImage
from headrace.metastore.log.snapshot import load_image
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.storage.client_text import one_line
from headrace.storage.clock import SystemClock
from headrace.storage.errors import InvalidError, NotFoundError
from headrace.storage.file_id import born_ms, object_key


def remedy(topic: str, partition_index: int, problem: Problem) -> str:
    """Return what to do, as a sentence with commands."""
    place = f"{shlex.quote(topic)} --partition {partition_index} --offset {problem.first_offset}"
    key = object_key(problem.file_id)
    if problem.kind is ProblemKind.REFUSED:
        return f"let Headrace read {key}: its rights, the bucket's policy, the key of its encryption; skip nothing"
    if problem.kind is ProblemKind.UNSTEADY:
        return "look again; then look for what alters bytes on the way: a proxy, a gateway, a disk of the store"
    if problem.copy is not None:
        return f"headrace damage repair {place}"
    restore = f"restore {key} from a version or a copy of the bucket"
    return f"{restore}; if there is none, the records are lost: headrace damage skip {place}"


LAGS_MAX = 100_000
"""Pairs of group and partition that are asked for: the largest ones of the cluster."""
GROUPS_SHOWN = 10
OVERDUE_MS = 60_000
JOBS = {
    "plan": "merging of files", "compact": "merging of files", "plan-cleaning": "cleaning by key",
    "clean": "cleaning by key", "retention": "retention", "delete": "deletion of files",
    "table-upkeep": "upkeep of tables",
}  # fmt: skip
"""Kinds of jobs that partitions wait for, and what they do."""


class Behind(NamedTuple):
    """One thing that is behind. `since_ms` on the database's clock; None: not known."""

    what: str
    found: str
    since_ms: int | None
    to_do: str


class JobLook(NamedTuple):
    """What is asked once for all partitions of a command."""

    jobs: list[JobCount]
    lags: list[ConsumerLag]
    compacted: dict[int, int]
    """min.compaction.lag.ms of the partitions of compacted topics, by partition key."""


async def look_once(api: Metastore, image: MetadataImage) -> JobLook:
    """Ask what is the same for all partitions."""
    compacted = {key: rule.min_lag_ms for key, rule in compacted_partitions(image).items()}
    return JobLook(await api.reports.count_jobs(), await api.reports.consumer_lags(LAGS_MAX), compacted)


async def behind(api: Metastore, look: JobLook, key: int, found: PartitionCheck) -> list[Behind]:
    """Return what is behind in one partition, groups first."""
    (producers,) = await api.reports.describe_producers([key])
    now_ms = 0
    states: list[CleaningState] = []
    if key in look.compacted:
        now_ms, states = await api.cleaning.describe_cleaning([CleaningQuery(key, look.compacted[key])])
    return [
        *_groups([lag for lag in look.lags if lag.partition_key == key and lag.records > 0], found),
        *_transactions(producers, found),
        *(each for state in states for each in _cleaning(state, now_ms)),
    ]


def late_jobs(jobs: Sequence[JobCount]) -> Iterator[Behind]:
    """Yield the background work that is late in the whole cluster."""
    for job in jobs:
        if job.kind not in JOBS:
            continue
        if job.overdue_ms > OVERDUE_MS:
            yield Behind(
                f"{JOBS[job.kind]} (job {job.kind})",
                f"due for {job.overdue_ms / 1000:.0f} s and not taken",
                None,
                "start headrace compactor, or add the role compactor to process.roles; more of them if they are busy",
            )
        if job.state is JobState.GIVEN_UP and job.jobs:
            found = f"{job.jobs} were given up after their last attempt"
            yield Behind(f"{JOBS[job.kind]} (job {job.kind})", found, None, "look into the compactors' logs")


def _groups(lags: list[ConsumerLag], found: PartitionCheck) -> Iterator[Behind]:
    for lag in sorted(lags, key=lambda each: -each.records)[:GROUPS_SHOWN]:
        name, committed = shlex.quote(lag.group_id), found.high_watermark - lag.records
        if committed < found.log_start_offset:
            gone = f"its next offset {committed} is below the log start {found.log_start_offset}: it was deleted unread"
            reset = f"headrace groups reset-offsets {name} shows where it may go on; raise retention.ms"
            yield Behind(f"group {lag.group_id}", gone, None, reset)
            continue
        late = (
            f"{lag.records:,} records behind, at offset {committed}; that one is {lag.age_ms / 1000:.0f} s old at least"
        )
        to_do = f"headrace groups describe {name} --members: are they there, and does one fail at this offset?"
        yield Behind(f"group {lag.group_id}", late, None, to_do)
    if len(lags) > GROUPS_SHOWN:
        yield Behind("groups", f"{len(lags) - GROUPS_SHOWN} more are behind", None, "headrace groups list")


def _transactions(producers: list[ProducerStatus], found: PartitionCheck) -> Iterator[Behind]:
    stable = found.last_stable_offset
    if stable >= found.high_watermark:
        return
    for producer in producers:
        if producer.transaction_start == stable:
            waits = f"read_committed readers wait at offset {stable} for producer id {producer.producer_id}"
            to_do = "headrace transactions find-hanging shows whether it will end; headrace transactions abort ends it"
            yield Behind("open transaction", waits, producer.last_timestamp, to_do)


def _cleaning(state: CleaningState, now_ms: int) -> Iterator[Behind]:
    if state.uncleanable_ms is not None:
        found = f"a pass could not clean it: it stays at offset {state.cleaned_offset}"
        yield Behind("cleaning by key", found, state.uncleanable_ms, "headrace doctor says why; damage is above")
    elif state.dirty_bytes and state.dirty_since_ms is not None:
        waits = (now_ms - state.dirty_since_ms) / 1000
        found = f"{state.dirty_bytes:,} dirty bytes from offset {state.cleaned_offset} on, the first for {waits:,.0f} s"
        to_do = "usual until min.cleanable.dirty.ratio or max.compaction.lag.ms is reached (docs/operate/CLEANING.md)"
        yield Behind("cleaning by key", found, state.dirty_since_ms, to_do)


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
    add_settings(check, ("metastore.url", "bucket", *STORE), every=False)
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
