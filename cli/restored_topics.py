"""What `headrace topics restore` does: shows what can be restored, and restores it.

Place: under topics.py; works on the metastore, while agents run or not.
Invariant: what comes back is whole, or nothing does; with --dry-run and --list nothing is changed. An interrupted
command can be repeated.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

from headrace.agent.topics.topic_rules import why_illegal
from headrace.cli.metastore_changes import open_current
from headrace.cli.output import ProgressBar, write
from headrace.cli.record_json import plain
from headrace.cli.tables import iso_time, show
from headrace.compactor.retention import UNLIMITED, RetentionRule, topic_rule
from headrace.config.settings import Settings
from headrace.metastore.api.restoring import RemovedRecords, RestorableTopic, RestoreOutcome
from headrace.metastore.keys import split_partition_key
from headrace.metastore.log.image import MetadataImage
from headrace.metastore.log.snapshot import load_image
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.metastore.topic_restore import WHY_NOT, newest_of, restore_deleted, restore_removed
from headrace.storage.errors import InvalidError, NotFoundError

DELETED_COLUMNS = ("topic", "id", "deleted", "until", "partitions", "records", "bytes")
RECORD_COLUMNS = ("partition", "log_start", "whole_from", "restored_from", "extents", "bytes", "removed", "why_not")
EXTENTS_SHOWN = 1_000_000
"""Looked at per partition, to say what can be restored."""


async def restore(args: argparse.Namespace, settings: Settings) -> int:
    """Do what the arguments say; the exit status. Errors as metastore/topic_restore.py."""
    if args.new_name is not None and (reason := why_illegal(args.new_name)):
        raise InvalidError(f"{reason}: {args.new_name}")
    async with open_current(settings) as metastore:
        if args.list:
            show(args, [_deleted_row(topic) for topic in await metastore.topics.restorable_topics()], DELETED_COLUMNS)
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
    image = await load_image(metastore.cluster)
    try:
        topic = newest_of(await metastore.topics.restorable_topics(), args.topic, args.id)
    except NotFoundError as error:
        if args.topic in image.topics_by_name:
            raise InvalidError(
                f"topic {args.topic} is not deleted: with --records its records below the log starts come back"
            ) from error
        raise
    name = args.new_name or topic.name
    if name in image.topics_by_name:
        raise InvalidError(
            f"topic {name} exists; a producer may have created it again (auto.create.topics.enable): restore the"
            " deleted one under another name (--as NAME), or delete the one that is there, then restore with"
            f" --id {topic.topic_id}"
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
        f"restored: topic {name}, {topic.partition_count:,} partitions, {topic.record_count:,} records,"
        f" {topic.size_bytes:,} bytes",
        {**_deleted_row(topic), "topic": name, "outcome": "restored"},
    )
    return 0


async def _restore_records(metastore: PostgresMetastore, args: argparse.Namespace) -> int:
    image = await load_image(metastore.cluster)
    if link := image.link_of(args.topic):
        raise InvalidError(f"topic {args.topic} is a copy that link {link} keeps: its log start is that of its source")
    rule = topic_rule(image, args.topic, set())
    found = await _removed(metastore, _keys(image, args.topic), rule)
    if args.dry_run:
        show(args, [_removed_row(one) for one in found], RECORD_COLUMNS)
    back = {one.partition_key: one.kept_from for one in found if one.kept_from < one.log_start_offset}
    if not back or any(one.outcome is not RestoreOutcome.DONE for one in found):
        raise NotFoundError(f"topic {args.topic}: {_why_none(rule, found)}; nothing was changed")
    if args.dry_run:
        return 0
    bar = ProgressBar()
    try:
        done = await restore_removed(metastore.topics, back, bar)
    finally:
        bar.close()
    extents, size = sum(one.extents for one in done), sum(one.size_bytes for one in done)
    left = sum(one.lowest < one.kept_from for one in found)
    more = f"; earlier records of {left:,} stay removed, because retention would remove them again" if left else ""
    _say(
        args,
        f"restored: topic {args.topic}, {len(done):,} partitions, {extents:,} extents, {size:,} bytes{more}",
        {"topic": args.topic, "outcome": "restored", "partitions": [one._asdict() for one in done]},
    )
    return 0


def _why_none(rule: RetentionRule, found: list[RemovedRecords]) -> str:
    refusals = {WHY_NOT[one.outcome] for one in found if one.outcome is not RestoreOutcome.DONE}
    if refusals:
        return "; ".join(sorted(refusals))
    if all(one.lowest >= one.log_start_offset for one in found):
        return "no removed records are kept, or none is whole"
    limits = [
        f"{name} (now {value})"
        for name, value in (("retention.ms", rule.retention_ms), ("retention.bytes", rule.retention_bytes))
        if value != UNLIMITED
    ]
    return f"retention would remove these records again: raise {' or '.join(limits)} first"


def _keys(image: MetadataImage, name: str) -> list[int]:
    topic = image.topics_by_name.get(name)
    if topic is None:
        raise NotFoundError(f"topic does not exist: {name}: if it was deleted, restore it without --records first")
    return [key for index in topic.indexes if (key := topic.key(index)) is not None]


async def _removed(metastore: PostgresMetastore, keys: list[int], rule: RetentionRule) -> list[RemovedRecords]:
    """A call for each partition: one may have a million extents."""
    return [
        one
        for key in keys
        for one in await metastore.topics.removed_records(
            [key], extents_max=EXTENTS_SHOWN, retention_ms=rule.retention_ms, retention_bytes=rule.retention_bytes
        )
    ]


def _removed_row(one: RemovedRecords) -> dict[str, Any]:
    return {
        "partition": split_partition_key(one.partition_key)[1],
        "log_start": one.log_start_offset,
        "whole_from": one.lowest,
        "restored_from": one.kept_from,
        "extents": one.extents,
        "bytes": one.size_bytes,
        "removed": None if one.removed_ms < 0 else iso_time(one.removed_ms),
        "why_not": WHY_NOT.get(one.outcome),
    }


def _say(args: argparse.Namespace, text: str, facts: dict[str, Any]) -> None:
    write(json.dumps(plain(facts)) if args.json else text)
