"""`headrace segments`: a partition's remote segments, which of them has an offset, and what happened to them.

Place: reads the lifecycle tables of the metastore, with or without a running cluster; `history` also reads the bucket
if an object has the older part of the audit trail, and fails if it is not told which one.
Invariant: reads only. Rows are the records of __remote_log_metadata (list, show) and of its audit trail (history), in
the order of their offsets there.
"""

from __future__ import annotations

import argparse
import asyncio
import uuid
from collections.abc import AsyncIterator, Sequence
from typing import Any

from headrace.cli.migrate_segments import add_migrate_arguments
from headrace.cli.numbers import INT32_MAX, INT64_MAX, whole
from headrace.cli.options import S3, add_settings, settings_from
from headrace.cli.output import write
from headrace.cli.tables import Row, show
from headrace.cli.times import iso_time
from headrace.cli.trail import trail_reader
from headrace.config.errors import ConfigError
from headrace.config.settings import Settings
from headrace.metastore.api.segment_keys import RemotePartitionKey, parse_key
from headrace.metastore.api.segment_logs import SegmentLogApi
from headrace.metastore.api.segment_states import RemoteLogSegmentState, RemotePartitionDeleteState
from headrace.metastore.api.segments import RemoteSegment, SegmentEvent
from headrace.metastore.log.loading import load_image
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.metastore.segment_logs.partitioner import metadata_partition
from headrace.metastore.segment_logs.projection import Projection, StreamRecord
from headrace.metastore.segment_logs.rendering import log_record
from headrace.storage.errors import InvalidError, NotFoundError

PAGE_ROWS = 1_000
LIST_COLUMNS = ("start", "end", "epoch", "state", "cause", "size", "job", "node", "time", "file")
HISTORY_COLUMNS = ("offset", "time", "start", "end", "epoch", "state", "cause", "job", "node", "file")
DESCRIPTION = """\
Remote segments: the runs of a partition's records in merged files, and their lifecycle.

  headrace segments list --topic orders --partition 0 --metastore-url postgresql://…
  headrace segments show --topic orders --partition 0 --offset 1234 …
  headrace segments history --topic orders --partition 0 --from 1000 --to 1999 --bucket s3://… …
  headrace segments migrate --rekey -b kafka:9092
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    commands = parser.add_subparsers(title="commands", metavar="{list,show,history,migrate}", required=True)
    listing = commands.add_parser(
        "list", help="list the partition's keys, their states, and the highest remote offset per leader epoch"
    )
    listing.add_argument("--all", action="store_true", help="also tombstones")
    showing = commands.add_parser("show", help="show which segment has an offset, and the other keys that have it")
    showing.add_argument("--offset", type=whole(0, INT64_MAX), metavar="N", required=True)
    history = commands.add_parser("history", help="what happened to the partition, or to a range of its offsets")
    history.add_argument("--from", dest="first", type=whole(0, INT64_MAX), default=0, metavar="N", help="first offset")
    history.add_argument("--to", dest="last", type=whole(0, INT64_MAX), default=INT64_MAX, metavar="N", help="last one")
    add_migrate_arguments(commands.add_parser("migrate", help="give a legacy topic of lifecycle records its keys"))
    for command, work in ((listing, _list), (showing, _show), (history, _history)):
        command.add_argument(
            "--topic", required=True, metavar="TOPIC", help="name, or id as segments have it: also of a deleted topic"
        )
        command.add_argument("--partition", type=whole(0, INT32_MAX), default=0, metavar="N", help="default: 0")
        command.add_argument("--json", action="store_true", help="JSON for scripts instead of a table")
        add_settings(command, ("metastore.url", *(("bucket", *S3) if command is history else ())), every=False)
        command.set_defaults(run=run, work=work)


def run(args: argparse.Namespace) -> int:
    """Print the rows; 1 if `show` finds no readable segment."""
    settings = settings_from(args)
    if not settings.metastore_url:
        raise ConfigError("metastore.url is not set (--metastore-url or --config)")

    async def work() -> int:
        metastore = await PostgresMetastore.open(settings.metastore_url, settings)
        try:
            status: int = await args.work(
                args, metastore.segment_logs, await _partition(metastore, args.topic, args.partition)
            )
            return status
        finally:
            await metastore.close()

    return asyncio.run(work())


async def _partition(metastore: PostgresMetastore, topic: str, index: int) -> RemotePartitionKey:
    """Return the partition by name, else by id. NotFoundError for a name that no topic has."""
    found = (await load_image(metastore.cluster)).topics_by_name.get(topic)
    if found is not None:
        return RemotePartitionKey(found.topic_id, index)
    try:
        key = parse_key(f"{topic}:{index}")
    except InvalidError as error:
        raise NotFoundError(f"topic does not exist: {topic}") from error
    assert isinstance(key, RemotePartitionKey)
    return key


async def _list(args: argparse.Namespace, metastore: SegmentLogApi, partition: RemotePartitionKey) -> int:
    segments = [segment async for segment in _segments(metastore, partition)]
    shown = [segment for segment in segments if args.all or segment.tombstoned_ms is None]
    highest = highest_offsets(partition, segments)
    rows = [_segment_row(each) | {"highest_remote_offset": highest.get(each.leader_epoch)} for each in shown]
    show(args, rows, LIST_COLUMNS)
    if not args.json:
        for leader_epoch, offset in sorted(highest.items()):
            write(f"leader epoch {leader_epoch}: highest remote offset {offset}")
    marker = await metastore.find_marker(*partition)
    if marker is not None and not args.json:
        write(f"deleted: {marker.state.name} epoch={marker.epoch} end_offset={marker.end_offset}")
    return 0


async def _show(args: argparse.Namespace, metastore: SegmentLogApi, partition: RemotePartitionKey) -> int:
    """The readable segment first: of several, that of the highest epoch."""
    found = [
        segment
        async for segment in _segments(metastore, partition, after=args.offset - 1)
        if segment.start_offset <= args.offset
    ]
    found.sort(key=lambda segment: (segment.live_extents > 0, segment.key.epoch), reverse=True)
    show(args, [_segment_row(segment) for segment in found], ("readable", *LIST_COLUMNS))
    return 0 if found and found[0].live_extents else 1


async def _history(args: argparse.Namespace, metastore: SegmentLogApi, partition: RemotePartitionKey) -> int:
    starts: dict[tuple[int, int], int] = {}
    rows: list[Row] = []
    async for event in _events(metastore, partition, settings_from(args)):
        place = event.key[2:]
        if event.facts is not None:
            starts[place] = event.facts.start_offset
        start = starts.get(place)
        if event.segment_id is None or (event.key.end_offset >= args.first and (start or 0) <= args.last):
            rows.append(_event_row(event, start))
    show(args, rows, HISTORY_COLUMNS)
    return 0


def highest_offsets(partition: RemotePartitionKey, segments: Sequence[RemoteSegment]) -> dict[int, int]:
    """Return the highest offset of each leader epoch, of the segments that are readable."""
    readable = [segment for segment in segments if segment.live_extents]
    projection = Projection()
    for segment in readable:
        projection.apply(StreamRecord(*log_record(segment, "")[:4]), is_compacted=True)
    return {epoch: projection.highest_offset(partition, epoch) for epoch in {each.leader_epoch for each in readable}}


async def _segments(
    metastore: SegmentLogApi, partition: RemotePartitionKey, after: int = -1
) -> AsyncIterator[RemoteSegment]:
    """All keys with end offsets above `after`; a page ends between two end offsets."""
    while page := await metastore.list_segments(*partition, after, PAGE_ROWS):
        is_last = len(page) < PAGE_ROWS
        whole_ones = page if is_last else [s for s in page if s.key.end_offset < page[-1].key.end_offset] or page
        for segment in whole_ones:
            yield segment
        if is_last:
            return
        after = whole_ones[-1].key.end_offset


async def _events(
    metastore: SegmentLogApi, partition: RemotePartitionKey, settings: Settings
) -> AsyncIterator[SegmentEvent]:
    """Yield the events of this partition; other partitions share its part of the audit trail."""
    async with trail_reader(metastore, settings) as reader:
        async for event in reader.events(metadata_partition(*partition), PAGE_ROWS):
            if event.key.of_partition == partition:
                yield event


def _segment_row(segment: RemoteSegment) -> dict[str, Any]:
    state = segment.state.name if segment.tombstoned_ms is None else "TOMBSTONE"
    time_ms = segment.event_ms if segment.tombstoned_ms is None else segment.tombstoned_ms
    return {
        "key": str(segment.key),
        "start": segment.start_offset,
        "end": segment.key.end_offset,
        "epoch": segment.key.epoch,
        "state": state,
        "readable": segment.live_extents > 0,
        "cause": segment.cause.name,
        "size": segment.size,
        "job": segment.job_id,
        "node": _node(segment.broker_id),
        "time": iso_time(time_ms),
        "uuid": str(segment.segment_id),
        "file": str(segment.file_id),
        "leader_epoch": segment.leader_epoch,
        "max_timestamp": segment.max_timestamp,
        "metadata_partition": segment.metadata_partition,
        "offset": segment.log_offset,
    }


def _event_row(event: SegmentEvent, start: int | None) -> Row:
    is_segment = event.segment_id is not None
    states: Any = RemoteLogSegmentState if is_segment else RemotePartitionDeleteState
    return {
        "key": str(event.key if is_segment else event.key.of_partition),
        "offset": event.audit_offset,
        "time": iso_time(event.event_ms),
        "start": start,
        "end": event.key.end_offset,
        "epoch": event.key.epoch,
        "state": states(event.state).name,
        "cause": event.cause.name,
        "job": event.job_id,
        "node": _node(event.broker_id),
        "uuid": _text(event.segment_id),
        "file": _text(event.file_id),
        "metadata_partition": event.metadata_partition,
    }


def _node(broker_id: int) -> int | None:
    return None if broker_id < 0 else broker_id


def _text(value: uuid.UUID | None) -> str | None:
    return None if value is None else str(value)
