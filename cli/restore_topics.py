"""`headrace topics restore`: bring back deleted topics, or records that a log start has removed.

Place: under `headrace topics`; works on the metastore, while agents run or not.
Invariant: what comes back is whole, or nothing does; with --dry-run and --list nothing is changed. An interrupted command
can be repeated.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import uuid
from collections.abc import Sequence
from typing import Any

from headrace.agent.topics.topic_names import why_illegal
from headrace.cli.current_metastore import open_current
from headrace.cli.numbers import INT32_MAX, INT64_MAX, whole
from headrace.cli.options import S3, add_settings, settings_from
from headrace.cli.output import write
from headrace.cli.progress_bar import ProgressBar
from headrace.cli.record_json import plain
from headrace.cli.tables import show
from headrace.cli.times import iso_time
from headrace.compactor.retention import UNLIMITED, RetentionRule, topic_rule
from headrace.config.errors import ConfigError
from headrace.config.settings import Settings
from headrace.metastore.api.restoring import RemovedRecords, RestorableTopic, RestoreOutcome
from headrace.metastore.api.retention import OldestQuery
from headrace.metastore.keys import split_partition_key
from headrace.metastore.log.image import MetadataImage
from headrace.metastore.log.loading import load_image
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.metastore.topic_restore import WHY_NOT, newest_of, restore_deleted, restore_removed
from headrace.storage.client_text import one_line
from headrace.storage.errors import InvalidError, NotFoundError

DESCRIPTION = """\
Bring back a topic that was deleted by mistake, with its records, offsets, configs and groups; or, with --records, the
records of a topic that retention or DeleteRecords has removed. Possible for file.delete.delay.ms, while the files are
still in the bucket.

  headrace topics restore --list --metastore-url postgresql://headrace@db/headrace
  headrace topics restore orders --metastore-url postgresql://headrace@db/headrace
  headrace topics restore orders --as orders-before --metastore-url postgresql://headrace@db/headrace
  headrace topics restore orders --records --dry-run --metastore-url postgresql://headrace@db/headrace
"""
DELETED_COLUMNS = ("topic", "id", "deleted", "until", "partitions", "records", "bytes")
RECORD_COLUMNS = ("partition", "log_start", "restorable_from", "extents", "bytes", "removed", "why_not")
EXTENTS_SHOWN = 1_000_000
"""Looked at per partition, to say what can be restored."""


def add_restore(commands: Any) -> None:
    """Add the command and its arguments."""
    restoring = commands.add_parser(
        "restore",
        help="bring back deleted topics, or records below the log start",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    restoring.add_argument("topic", nargs="?", metavar="TOPIC")
    what = restoring.add_mutually_exclusive_group()
    what.add_argument("--list", action="store_true", help="show the deleted topics that can be restored")
    what.add_argument("--records", action="store_true", help="the records below the log starts of a topic that is there")
    what.add_argument("--as", dest="new_name", metavar="NAME", help="bring the deleted topic back under another name")
    restoring.add_argument(
        "--id", type=uuid.UUID, metavar="UUID", help="of several deleted topics of the name; default: the newest deletion"
    )
    restoring.add_argument(
        "--partition", type=whole(0, INT32_MAX), metavar="N", help="with --records; default: all partitions"
    )
    restoring.add_argument(
        "--offset", type=whole(0, INT64_MAX), default=0, metavar="N", help="with --records: not below this offset"
    )
    restoring.add_argument("--dry-run", action="store_true", help="show what would come back")
    restoring.add_argument("--json", action="store_true", help="JSON for scripts instead of text")
    add_settings(restoring, ("metastore.url", "bucket", *S3), every=False)
    restoring.set_defaults(run=run_restore, refuse=restoring.error)


def run_restore(args: argparse.Namespace) -> int:
    """Restore, or show what can be."""
    if args.list == (args.topic is not None):
        args.refuse("name a topic, or set --list")
    if args.new_name is not None and (reason := why_illegal(args.new_name)):
        raise InvalidError(f"{reason}: {args.new_name}")
    settings = settings_from(args)
    if not settings.metastore_url:
        raise ConfigError("metastore.url is not set (--metastore-url or --config)")
    return asyncio.run(_restore(args, settings))


async def _restore(args: argparse.Namespace, settings: Settings) -> int:
    async with open_current(settings) as metastore:
        if args.list:
            show(args, [_deleted_row(topic) for topic in await metastore.restorable_topics()], DELETED_COLUMNS)
            return 0
        if args.records:
            return await _restore_records(metastore, args)
        return await _restore_topic(metastore, args)


def _deleted_row(topic: RestorableTopic) -> dict[str, Any]:
    return {
        "topic": topic.name,
        "id": topic.topic_id,
        "deleted": iso_time(topic.deleted_ms),
        "until": None if topic.until_ms is None else iso_time(topic.until_ms),
        "partitions": topic.partition_count,
        "records": topic.record_count,
        "bytes": topic.size_bytes,
    }


async def _restore_topic(metastore: PostgresMetastore, args: argparse.Namespace) -> int:
    image = await load_image(metastore)
    try:
        topic = newest_of(await metastore.restorable_topics(), args.topic, args.id)
    except NotFoundError as error:
        if args.topic in image.topics_by_name:
            raise InvalidError(
                f"topic {args.topic} is not deleted: with --records its records below the log starts come back"
            ) from error
        raise
    name = args.new_name or topic.name
    if name in image.topics_by_name:
        raise InvalidError(
            f"topic {name} exists; a producer may have created it again (auto.create.topics.enable): restore the deleted"
            f" one under another name (--as NAME), or delete the one that is there, and then restore with --id {topic.topic_id}"
        )
    if args.dry_run:
        show(args, [_deleted_row(topic)], DELETED_COLUMNS)
        return 0
    bar = ProgressBar()
    try:
        await restore_deleted(metastore, topic, name, bar)
    finally:
        bar.close()
    _say(
        args,
        f"restored: topic {one_line(name)}, {topic.partition_count:,} partitions, {topic.record_count:,} records,"
        f" {topic.size_bytes:,} bytes",
        {**_deleted_row(topic), "topic": name, "outcome": "restored"},
    )
    return 0


async def _restore_records(metastore: PostgresMetastore, args: argparse.Namespace) -> int:
    image = await load_image(metastore)
    keys = _keys(image, args.topic, args.partition)
    found = await _removed(metastore, keys)
    possible = [one for one in found if one.outcome is RestoreOutcome.DONE and one.offset < one.log_start_offset]
    if args.dry_run:
        show(args, [_removed_row(one) for one in found], RECORD_COLUMNS)
    refusals = {WHY_NOT[one.outcome] for one in found if one.outcome is not RestoreOutcome.DONE}
    if not possible:
        raise NotFoundError(
            f"topic {args.topic}: {'; '.join(sorted(refusals)) or 'no removed records are kept, or none is whole'}"
        )
    now_ms, _ = await metastore.oldest_extents([OldestQuery(possible[0].partition_key, 1)])
    rule = topic_rule(image, args.topic, set())
    if args.offset == 0 and (reason := why_retention_would_remove(rule, now_ms, possible)):
        raise InvalidError(f"topic {args.topic}: {reason}; nothing was changed")
    if args.dry_run:
        return 0
    bar = ProgressBar()
    try:
        done = await restore_removed(metastore, [one.partition_key for one in possible], args.offset, bar)
    finally:
        bar.close()
    extents, size = sum(one.extents for one in done), sum(one.size_bytes for one in done)
    _say(
        args,
        f"restored: topic {one_line(args.topic)}, {len(done):,} partitions, {extents:,} extents, {size:,} bytes; log"
        f" starts: {', '.join(f'{one.partition}={one.log_start_offset}' for one in done)}",
        {"topic": args.topic, "outcome": "restored", "partitions": [one._asdict() for one in done]},
    )
    return 0


def why_retention_would_remove(rule: RetentionRule, now_ms: int, found: Sequence[RemovedRecords]) -> str | None:
    """Return which config has to be raised first, because retention would remove what comes back at its next check.

    `found`: what would come back. None if retention would leave it.
    """
    oldest = min((one.oldest_ms for one in found if one.oldest_ms >= 0), default=now_ms)
    if rule.retention_ms != UNLIMITED and oldest < now_ms - rule.retention_ms:
        return (
            f"retention would remove these records again: raise retention.ms first (now {rule.retention_ms}; the oldest"
            f" are {now_ms - oldest} ms old)"
        )
    largest = max((one.log_bytes + one.size_bytes for one in found), default=0)
    if rule.retention_bytes != UNLIMITED and largest > rule.retention_bytes:
        return (
            f"retention would remove these records again: raise retention.bytes first (now {rule.retention_bytes}; a"
            f" partition would have {largest})"
        )
    return None


def _keys(image: MetadataImage, name: str, partition: int | None) -> list[int]:
    topic = image.topics_by_name.get(name)
    if topic is None:
        raise NotFoundError(f"topic does not exist: {name}: if it was deleted, restore it without --records first")
    if partition is not None and not topic.has(partition):
        raise NotFoundError(f"partition does not exist: {name}-{partition}")
    indexes = topic.indexes if partition is None else [partition]
    return [key for index in indexes if (key := topic.key(index)) is not None]


async def _removed(metastore: PostgresMetastore, keys: Sequence[int]) -> list[RemovedRecords]:
    """A call for each partition: one may have a million extents."""
    return [
        one for key in keys for one in await metastore.removed_records([key], extents_max=EXTENTS_SHOWN)
    ]


def _removed_row(one: RemovedRecords) -> dict[str, Any]:
    return {
        "partition": split_partition_key(one.partition_key)[1],
        "log_start": one.log_start_offset,
        "restorable_from": one.offset,
        "extents": one.extents,
        "bytes": one.size_bytes,
        "removed": None if one.removed_ms < 0 else iso_time(one.removed_ms),
        "why_not": WHY_NOT.get(one.outcome),
    }


def _say(args: argparse.Namespace, text: str, facts: dict[str, Any]) -> None:
    write(json.dumps(plain(facts)) if args.json else text)
