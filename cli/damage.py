"""`headrace damage`: list damaged extents, repair them from files that are still there, or skip what is lost.

Place: needs metastore and bucket, as `headrace audit` does, with or without a running cluster.
Invariant of the work: each extent is read again before it is replaced. One that is sound by now is only forgotten;
if reads differ, it is left alone, with an error. Nothing is replaced without confirmation.
Invariant: reads only, until the user confirms a replacement (--yes); refuses a Postgres that is not the metastore.
Each extent is replaced by one swap: an interrupted run can be repeated. Exit status 0 only if nothing of what was
named stays damaged.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, NamedTuple

from headrace.cli.doctor.findings import ways_past
from headrace.cli.options import INT32_MAX, INT64_MAX, STORE, add_settings, settings_from, whole
from headrace.cli.output import ProgressBar, write
from headrace.cli.record_json import plain
from headrace.cli.tables import Row, add_yes, confirm, iso_time, show
from headrace.compactor.mending.mend import ExtentLook, Mending, lost_ranges, skipped, write_skipped
from headrace.config.errors import ConfigError
from headrace.config.settings import Settings
from headrace.metastore.api.compaction import CompactionApi, SwapOutcome
from headrace.metastore.api.reports import PartitionName
from headrace.metastore.inline_store import InlineStore
from headrace.metastore.life.own_bucket import require_bucket
from headrace.metastore.life.watch import FollowedLife
from headrace.metastore.log.snapshot import load_image
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.storage.clock import Clock, SystemClock
from headrace.storage.errors import NotFoundError
from headrace.storage.objects.open import StoreOptions, open_store
from headrace.storage.objects.store import ObjectStore

LISTED_MAX = 1_000


class Damaged(NamedTuple):
    """What the command names: one extent, or with `offset` None all recorded ones of the partition."""

    topic: str
    partition_index: int
    offset: int | None


async def listed(metastore: CompactionApi) -> tuple[list[Row], int]:
    """The rows of `headrace damage list`, and the number of damaged extents."""
    found, total = await metastore.list_damage(LISTED_MAX)
    rows: list[Row] = [
        {
            "topic": one.topic,
            "partition": one.partition_index,
            "first_offset": one.first_offset,
            "last_offset": one.last_offset,
            "file": one.extent.file_id,
            "position": one.extent.position,
            "kind": one.kind.name.lower(),
            "found": iso_time(one.found_ms),
            "checked": iso_time(one.checked_ms),
            "why": one.why,
        }
        for one in found
    ]
    return rows, total


async def mend_all(
    metastore: PostgresMetastore,
    store: ObjectStore,
    damaged: Damaged,
    args: argparse.Namespace,
    clock: Clock,
    rng: random.Random,
) -> int:
    """The exit status: 1 if something stays damaged. NotFoundError for a partition that does not exist."""
    image = await load_image(metastore.cluster)
    topic = image.topics_by_name.get(damaged.topic)
    key = None if topic is None else topic.key(damaged.partition_index)
    if topic is None or key is None:
        raise NotFoundError(f"no such partition: {damaged.topic}:{damaged.partition_index}")
    name = PartitionName(topic.topic_id, damaged.partition_index)
    mending = Mending(metastore, store, metastore.commit_shards, clock, rng)
    mender = _Mender(metastore, store, mending, args, clock)
    answers: list[dict[str, Any]] = []
    status = 0
    for offset in await _offsets(metastore.compaction, key, damaged):
        bar = ProgressBar()
        look = await mending.look(name, key, offset, partial(bar, "files searched"))
        bar.close()
        answer = _describe(damaged, look)
        if not args.json:
            for line in _lines(answer):
                write(line)
        answer["outcome"] = await mender.mend(name, damaged, look)
        status |= answer["outcome"] not in ("sound", "replaced")
        answers.append(answer)
        if not args.json:
            write(f"{answer['outcome']}: {damaged.topic}:{damaged.partition_index} offset={offset}")
    if args.json:
        write(json.dumps(plain(answers)))
    elif not answers:
        write("no damage is recorded here: --offset names an extent; headrace audit --deep finds damage")
    return status


async def _offsets(metastore: CompactionApi, key: int, damaged: Damaged) -> list[int]:
    if damaged.offset is not None:
        return [damaged.offset]
    found, _ = await metastore.list_damage(LISTED_MAX)
    return [one.first_offset for one in found if one.extent.partition_key == key]


class _Mender(NamedTuple):
    """What one command repairs with."""

    metastore: PostgresMetastore
    store: ObjectStore
    mending: Mending
    args: argparse.Namespace
    clock: Clock

    async def mend(self, name: PartitionName, damaged: Damaged, look: ExtentLook) -> str:
        """Return what was done."""
        if not look.found:
            await self.metastore.compaction.clear_damage(look.extent.file_id, look.extent.position)
            return "sound"
        if look.lost and not self.args.skips:
            return "not repaired"
        if self.args.dry_run:
            return "not done: --dry-run"
        what = f"skip {_records(look)}, which are lost" if look.lost else "replace the extent by a sound copy"
        confirm(self.args, f"{what}? {damaged.topic}:{damaged.partition_index}")
        entry = skipped(damaged.topic, name.topic_id, damaged.partition_index, look, self.clock.wall_ms())
        if look.lost:
            await write_skipped(self.store, entry)
        outcome = await self.mending.replace(look, name, skips=self.args.skips)
        entry.outcome = "done" if outcome is SwapOutcome.DONE else "lost"
        if look.lost:
            await write_skipped(self.store, entry)
        return "replaced" if outcome is SwapOutcome.DONE else "not done: the extent was replaced or removed meanwhile"


def _describe(damaged: Damaged, look: ExtentLook) -> dict[str, Any]:
    extent = look.extent
    return {
        "topic": damaged.topic,
        "partition": damaged.partition_index,
        "file": extent.file_id,
        "position": extent.position,
        "length": extent.length,
        "extent_offsets": [extent.base_offset, extent.last_offset],
        "damaged": [
            {
                "first_offset": lost.first_offset,
                "last_offset": lost.last_offset,
                "records": lost.records,
                "why": lost.why,
                "found_in": one.source or None,
            }
            for one, lost in zip(look.found, lost_ranges([one.piece for one in look.found]), strict=True)
        ],
    }


def _lines(answer: dict[str, Any]) -> Sequence[str]:
    place = f"{answer['topic']}:{answer['partition']}"
    first, last = answer["extent_offsets"]
    lines = [f"{place} offsets={first}-{last} file={answer['file']} position={answer['position']}"]
    for one in answer["damaged"]:
        count = "unknown" if one["records"] is None else one["records"]
        found = f"found in {one['found_in']}" if one["found_in"] else "no sound copy was found"
        lines.append(
            f"  damaged: offsets={one['first_offset']}-{one['last_offset']} records={count} {one['why']}; {found}"
        )
    lost = [one for one in answer["damaged"] if not one["found_in"]]
    if lost:
        lines.append(f"  {ways_past(answer['topic'], answer['partition'], lost[0]['first_offset'])}")
    return lines


def _records(look: ExtentLook) -> str:
    ranges = ", ".join(f"{one.piece.base_offset}-{one.piece.last_offset}" for one in look.lost)
    return f"the records at offsets {ranges}"


COLUMNS = ("topic", "partition", "first_offset", "last_offset", "file", "position", "kind", "found", "checked", "why")
DESCRIPTION = """\
Records that cannot be read because the bucket has damaged bytes: consumers get CORRUPT_MESSAGE there.

  headrace damage list --metastore-url postgresql://… --bucket s3://…
  headrace damage repair orders --partition 3 …   a sound copy, from files that it was made of and that are still there
  headrace damage skip orders --partition 3 …     what cannot be repaired is lost: readers go past it

Offsets never change. Repair first: those files are deleted after file.delete.delay.ms, or a week after the damage was
found if that is later.
"""


class Opened(NamedTuple):
    """What the commands work on."""

    metastore: PostgresMetastore
    store: ObjectStore


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    commands = parser.add_subparsers(title="commands", metavar="{list,repair,skip}", required=True)
    listing = commands.add_parser("list", help="list the damaged extents that agents, merges and cleaning found")
    listing.set_defaults(run=run_list)
    repair = commands.add_parser("repair", help="replace damaged extents by sound copies, if their batches are found")
    skip = commands.add_parser("skip", help="the same, and leave out the batches that are not found: they are lost")
    for command, skips in ((repair, False), (skip, True)):
        command.add_argument("topic", metavar="TOPIC")
        command.add_argument("--partition", type=whole(0, INT32_MAX), default=0, metavar="N", help="default: 0")
        command.add_argument(
            "--offset",
            type=whole(0, INT64_MAX),
            metavar="N",
            help="the extent with this offset, also if its damage is not recorded; default: all recorded damage",
        )
        command.add_argument("--dry-run", action="store_true", help="show what would be done")
        add_yes(command)
        command.set_defaults(run=run_mend, skips=skips)
    for command in (listing, repair, skip):
        command.add_argument("--json", action="store_true", help="JSON for scripts instead of text")
        add_settings(command, ("metastore.url", "bucket", *STORE), every=False)


def run_list(args: argparse.Namespace) -> int:
    """Print the damaged extents; 1 if there are any."""

    async def work(settings: Settings) -> int:
        async with opened(settings) as (metastore, _):
            rows, total = await listed(metastore.compaction)
            show(args, rows, COLUMNS)
            if not args.json:
                write(f"damaged extents: {total}")
            return 1 if total else 0

    return asyncio.run(work(require_settings(args)))


def run_mend(args: argparse.Namespace) -> int:
    """Repair or skip; 1 if something stays damaged."""

    async def work(settings: Settings) -> int:
        async with opened(settings) as (metastore, store):
            damaged = Damaged(args.topic, args.partition, args.offset)
            return await mend_all(metastore, store, damaged, args, SystemClock(), random.Random())

    return asyncio.run(work(require_settings(args)))


def require_settings(args: argparse.Namespace) -> Settings:
    """The settings. ConfigError without metastore or bucket."""
    settings = settings_from(args)
    for name, value in (("metastore.url", settings.metastore_url), ("bucket", settings.bucket)):
        if not value:
            raise ConfigError(f"{name} is not set (--{name.replace('.', '-')} or --config)")
    return settings


@asynccontextmanager
async def opened(settings: Settings) -> AsyncIterator[Opened]:
    """Errors as of opening either; UnavailableError if the bucket names another server as the metastore."""
    clock, rng = SystemClock(), random.Random()
    store = open_store(settings.bucket, StoreOptions.of(settings), clock=clock, rng=rng)
    try:
        metastore = await PostgresMetastore.open(settings.metastore_url, settings)
        try:
            await require_bucket(metastore.life, store, settings.bucket)
            await FollowedLife(metastore.life, store, clock, rng).require_current()
            yield Opened(metastore, InlineStore(store, metastore.inline))
        finally:
            await metastore.close()
    finally:
        await store.close()
