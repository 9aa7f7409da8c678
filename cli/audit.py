"""`headrace audit`: check that the bucket holds what the metastore says, and show what can be reclaimed.

Place: reads only and can run while the cluster runs; with --resume-janitor it allows deletion again after a restore,
with --rebuild-index it fills an empty metastore from the bucket.
Invariant: exit status 0 only if nothing is wrong. An interrupted run can be repeated.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import Any

from headrace.cli.doctor.findings import ways_past
from headrace.cli.lost import confirm_loss, deletion_state, lost_share_lines, lost_shares_as_dict, put_back
from headrace.cli.options import STORE, add_settings, settings_from
from headrace.cli.output import ProgressBar, write
from headrace.cli.record_json import plain
from headrace.cli.tables import add_yes, iso_time
from headrace.compactor.audit import Audit, audit
from headrace.compactor.lost import Lost, LostEnd, export, find_lost, find_lost_ends
from headrace.compactor.rebuild import LOST, Rebuilt, rebuild_index
from headrace.compactor.share_record import find_lost_shares
from headrace.config.errors import ConfigError
from headrace.config.settings import Settings
from headrace.metastore.inline_store import InlineStore
from headrace.metastore.keys import split_partition_key
from headrace.metastore.life.bucket import newest_life
from headrace.metastore.life.forgotten import OffsetRange
from headrace.metastore.life.keeper import LifeKeeper
from headrace.metastore.life.own_bucket import require_bucket
from headrace.metastore.life.watch import FollowedLife, require_unused
from headrace.metastore.log.effective_configs import read_settings
from headrace.metastore.log.image import MetadataImage
from headrace.metastore.log.snapshot import load_image
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.storage.clock import SystemClock
from headrace.storage.objects.open import StoreOptions, open_store
from headrace.storage.segment.rereading import VerifiedReads

DESCRIPTION = """\
Compare the bucket with the metastore: the bytes of every extent must exist, as the file's footer says,
and every object must be known to the metastore or be recent. Exit status 1 if something is wrong.

  headrace audit --metastore-url postgresql://… --bucket s3://…
  headrace audit --deep …            read every byte and verify every checksum
  headrace audit --lost …            after a promotion or restore of Postgres: what it lost at most, and which
                                     acknowledgements of share groups
  headrace audit --lost --put-back 127.0.0.1:9092 …   produce it again: other offsets, at the end;
                                     --command-config FILE if clients have to log in
  headrace audit --resume-janitor …  after a restore of the metastore: allow deletion of objects again
  headrace audit --rebuild-index …   the metastore is lost and has no backup: see docs/operate/BACKUPS.md
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("--json", action="store_true", help="print the findings as one JSON object")
    parser.add_argument("--deep", action="store_true", help="read and verify all bytes of the files")
    does = parser.add_mutually_exclusive_group()
    does.add_argument(
        "--resume-janitor",
        action="store_true",
        help="after the audit, allow deletion of objects again; asks first if that deletes lost records",
    )
    does.add_argument(
        "--lost",
        action="store_true",
        help="list the records that the last promotion or restore may have lost, and acknowledgements of share groups",
    )
    does.add_argument("--rebuild-index", action="store_true", help="fill an empty metastore from the segment files")
    parser.add_argument("--export", metavar="DIRECTORY", type=Path, help="with --lost: copy the files there")
    parser.add_argument(
        "--put-back",
        metavar="HOST:PORT",
        help="with --lost: produce the records that were lost for certain again, through this cluster's agents",
    )
    parser.add_argument(
        "--command-config", type=Path, metavar="FILE", help="with --put-back: properties file of the admin client"
    )
    add_yes(parser)
    add_settings(parser, ("metastore.url", "bucket", *STORE), every=False)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the findings; 1 if something is wrong."""
    settings = settings_from(args)
    if args.command_config is not None and args.put_back is None:
        raise ConfigError("--command-config needs --put-back: nothing else asks an agent")
    for name, value in (("metastore.url", settings.metastore_url), ("bucket", settings.bucket)):
        if not value:
            raise ConfigError(f"{name} is not set (--{name.replace('.', '-')} or --config)")
    return asyncio.run(_run(settings, args))


async def _run(settings: Settings, args: argparse.Namespace) -> int:
    bucket = open_store(settings.bucket, StoreOptions.of(settings), clock=SystemClock(), rng=random.Random())
    metastore = await PostgresMetastore.open(settings.metastore_url, settings)
    store = InlineStore(bucket, metastore.inline)
    bar, reads = ProgressBar(), VerifiedReads(store, SystemClock(), random.Random())
    try:
        await require_bucket(metastore.life, store, settings.bucket)
        if args.lost or args.resume_janitor:  # an old primary that stays up knows every file that was lost
            await FollowedLife(metastore.life, store, SystemClock(), random.Random()).require_current()
        if args.rebuild_index:
            await require_unused(store, SystemClock())
            keeper = LifeKeeper(metastore.life, store, SystemClock(), random.Random())
            rebuilt = await rebuild_index(metastore, reads, keeper, bar)
            bar.close()
            _print(_as_dict(rebuilt) | {"lost": LOST} if args.json else _rebuilt_lines(rebuilt))
            return 1 if rebuilt.unsound or rebuilt.homeless else 0
        if args.lost:
            return await _lost(metastore, reads, args, bar)
        if args.resume_janitor:
            await confirm_loss(metastore, reads, SystemClock(), args, bar)
        found = await audit(
            metastore,
            reads,
            deep=args.deep,
            delete_delay_ms=(await read_settings(metastore.cluster, settings)).file_delete_delay_ms,
            on_progress=bar,
        )
        bar.close()
        stopped = await deletion_state(metastore.files, store, resume=args.resume_janitor)
        ways = await _ways_past(metastore, found)
        as_dict = _as_dict(found) | {"janitor_stopped": stopped, "commands": ways}
        _print(as_dict if args.json else chain(_audit_lines(found, stopped), ways))
        return 1 if found.violation_count else 0
    finally:
        await metastore.close()
        await store.close()


async def _ways_past(metastore: PostgresMetastore, found: Audit) -> list[str]:
    """A line for each place that is damaged, with the commands that go past it."""
    if not found.damaged:
        return []
    names = {topic_id: topic.name for topic_id, topic in (await load_image(metastore.cluster)).topics_by_id.items()}
    return [
        f"damaged: {names[one.name.topic_id]}:{one.name.partition_index} offsets={one.first_offset}-{one.last_offset}"
        f" file={one.file_id}\n  {ways_past(names[one.name.topic_id], one.name.partition_index, one.first_offset)}"
        for one in found.damaged
        if one.name is not None and one.name.topic_id in names
    ]


async def _lost(metastore: PostgresMetastore, reads: VerifiedReads, args: argparse.Namespace, bar: ProgressBar) -> int:
    """1 if records may be lost."""
    store = reads.store
    life = await newest_life(store, None)
    if life is None or not life.life:
        write("no promotion or restore of the metastore was recorded: nothing is lost")
        return 0
    found = await find_lost(metastore, reads, life.begun_ms, SystemClock().wall_ms(), bar)
    if args.export is not None:
        await export(reads, [*found.file_ids, *found.moved], args.export)
    bar.close()
    image = await load_image(metastore.cluster)
    if args.put_back is not None:
        return await put_back(metastore.index, reads, image, life.life, found, args)
    names = {topic_id: topic.name for topic_id, topic in image.topics_by_id.items()}
    ends = await find_lost_ends(metastore.index, store)
    shares = await find_lost_shares(metastore, store, life.life)
    as_dict = _lost_as_dict(found, names) | {"transaction_ends": [end._asdict() for end in ends]}
    as_dict["share_groups"] = lost_shares_as_dict(shares, image)
    as_dict["nowhere"] = [place._asdict() for place in found.nowhere]
    gone = (_nowhere_line(place, image) for place in found.nowhere)
    lines = chain(_lost_lines(found, names), gone, map(_lost_end_line, ends), lost_share_lines(shares, image))
    _print(as_dict if args.json else lines)
    return 1 if found.partitions or found.unreadable or found.nowhere or ends or shares.lost else 0


def _nowhere_line(place: OffsetRange, image: MetadataImage) -> str:
    number, index = split_partition_key(place.partition_key)
    topic = image.topics_by_number.get(number)
    name = f"(topic number {number} is not in the metastore)" if topic is None else topic.name
    return (
        f"{name} partition={index} offsets={place.base_offset}-{place.last_offset}: acknowledged, not moved into the"
        " bucket yet, and in no agent's memory: they cannot be put back"
    )


def _lost_end_line(end: LostEnd) -> str:
    outcome = "commit" if end.marker.commits else "abort"
    return (
        f"end of a transaction: partition_key={end.partition_key} offset={end.offset} {outcome}"
        f" producer_id={end.marker.producer_id} epoch={end.marker.epoch}"
    )


def _lost_as_dict(found: Lost, names: Mapping[uuid.UUID, str]) -> dict[str, Any]:
    partitions = [asdict(lost) | {"topic": names.get(lost.topic_id)} for lost in found.in_order()]
    moved = {str(merged): sorted({place.source for place in places}) for merged, places in found.moved.items()}
    return {"files": found.file_ids, "moved": moved, "unreadable": found.unreadable, "partitions": partitions}


def _lost_lines(found: Lost, names: Mapping[uuid.UUID, str]) -> Iterator[str]:
    for lost in found.in_order():
        first, last = iso_time(lost.min_timestamp), iso_time(lost.max_timestamp)
        name = names.get(lost.topic_id, f"(topic {plain(lost.topic_id)} is not in the metastore)")
        yield (
            f"{name} partition={lost.partition_index} records={lost.records} batches={lost.batches}"
            f" files={lost.files} bytes={lost.size} timestamps={first}..{last}"
            f" certain={lost.certain_records} offsets={','.join(f'{low}-{high}' for low, high in lost.offsets) or '?'}"
        )
    for file_id, error in found.unreadable:
        yield f"not readable: file={file_id} error={error}"
    yield (
        f"files that the metastore does not name: {len(found.file_ids)}, committed for certain: {found.certain};"
        " the others were committed, or their agent crashed before"
    )
    if found.moved:
        sources = {place.source for places in found.moved.values() for place in places}
        yield (
            f"inline files that were moved: {len(sources)}, all of them committed, in {len(found.moved)} merged files"
            " that the metastore does not name"
        )


def _print(what: dict[str, Any] | Iterator[str]) -> None:
    if isinstance(what, dict):
        write(json.dumps(what, default=str))
    else:
        for line in what:
            write(line)


def _as_dict(found: Audit | Rebuilt) -> dict[str, Any]:
    """Every field, and the values derived from them."""
    values = {name: getattr(found, name) for name in found.__dataclass_fields__}
    if isinstance(found, Audit):
        values |= {"amplification": found.amplification, "reclaimable_bytes": found.reclaimable_bytes}
        values["violations"] = [violation._asdict() for violation in found.violations]
    return values


def _audit_lines(found: Audit, stopped: str) -> Iterator[str]:
    yield f"files         {found.files:>14,}   extents {found.extents:,}"
    yield f"live bytes    {found.live_bytes:>14,}"
    yield f"dead bytes    {found.dead_bytes:>14,}   dead batches in live files: compaction reclaims them"
    yield f"overhead      {found.overhead_bytes:>14,}   headers and footers of live files"
    yield f"dead files    {found.dead_files:>14,}   {found.dead_file_bytes:,} bytes, deleted after file.delete.delay.ms"
    yield f"objects       {found.objects:>14,}   {found.object_bytes:,} bytes"
    yield f"unnamed       {found.unnamed:>14,}   {found.unnamed_bytes:,} bytes, swept once they are old enough"
    yield f"condemned     {found.condemned:>14,}   reserved {found.reserved:,}   foreign keys {found.foreign:,}"
    yield f"amplification {found.amplification:>14.2f}   reclaimable {found.reclaimable_bytes:,} bytes"
    if stopped:
        yield f"deletion is stopped: {stopped} (--resume-janitor allows it again)"
    for violation in found.violations:
        yield f"violation: {violation.kind} file={violation.file_id} {violation.detail}"
    if found.violation_count > len(found.violations):
        yield f"… and {found.violation_count - len(found.violations):,} more"
    yield f"violations    {found.violation_count:>14,}"


def _rebuilt_lines(rebuilt: Rebuilt) -> Iterator[str]:
    yield f"restored: files={rebuilt.files} extents={rebuilt.extents} bytes={rebuilt.live_bytes}"
    yield f"records: {rebuilt.records}, with estimated offsets: {rebuilt.guessed_records}"
    yield (
        f"records left out: {rebuilt.aborted_records} aborted, {rebuilt.unknown_records} of unknown transactions,"
        f" {rebuilt.undecided_records} of Spark writes that are not known to be decided"
    )
    if rebuilt.unsure_records:
        yield f"records of attempts of Spark writes that the bucket does not tell apart: {rebuilt.unsure_records}"
    yield f"batches skipped because another file has their records: {rebuilt.repeated_batches}"
    for topic, index, first, last in rebuilt.unmoved:
        yield f"acknowledged, not moved into the bucket yet, lost: {topic} partition={index} offsets={first}-{last}"
    for name in rebuilt.topics:
        yield f"topic created: {name}"
    for file_id, error in rebuilt.unsound:
        yield f"not readable: file={file_id} error={error}"
    if rebuilt.homeless:
        yield f"partitions that do not exist in their topic here: {rebuilt.homeless}"
    yield "not recorded in the bucket, and therefore lost or approximate:"
    for what in LOST:
        yield f"  - {what}"
    yield "no object is deleted until you run `headrace audit --resume-janitor`"
