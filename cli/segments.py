"""`headrace segments`: a partition's remote segments, which of them has an offset, what happened to them.

Place: reads the lifecycle tables of the metastore, with or without a running cluster; `history` also reads the
bucket if an object has the older part of the audit trail, and fails if no setting names the bucket. `migrate` is a
Kafka client for any Kafka-compatible cluster, or reads log files: it gives a legacy topic of lifecycle records its
keys, then lets it be compacted.
Invariant of migrate: without --rekey and --compact nothing is written. --rekey is refused while the topic keeps its
records without end, and fails unless the logical state is the same before and after. --compact is refused while a
record without a key is left. Each step can be repeated; a repeated --rekey writes only what is still missing.
Source: KAFKA-20033, "Existing clusters".
Invariant: reads only. Rows are the records of __remote_log_metadata (list, show) and of its audit trail (history),
in the order of their offsets there.
"""

from __future__ import annotations

import argparse
import asyncio
import uuid
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any

from headrace.cli.client.offsets import EARLIEST, LATEST, list_offsets, partitions_of
from headrace.cli.client.records import fetch, produce
from headrace.cli.configs import SET, TOPIC, change_configs, describe_configs
from headrace.cli.dump_log import trail_reader
from headrace.cli.options import INT32_MAX, INT64_MAX, STORE, add_settings, settings_from, whole
from headrace.cli.output import write
from headrace.cli.tables import Row, add_flags, iso_time, open_cluster, say, show
from headrace.config.errors import ConfigError
from headrace.config.settings import Settings
from headrace.metastore.api.segment_logs import SegmentLogApi
from headrace.metastore.api.segment_states import (
    RemoteLogSegmentState,
    RemotePartitionDeleteState,
    RemotePartitionKey,
    parse_key,
)
from headrace.metastore.api.segments import RemoteSegment, SegmentEvent
from headrace.metastore.log.snapshot import load_image
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.metastore.segment_logs.migration import MigrationState, RekeyedRecord, rekey, replay, require_compactable
from headrace.metastore.segment_logs.projection import Projection, StreamRecord
from headrace.metastore.segment_logs.records import metadata_partition
from headrace.metastore.segment_logs.rendering import log_record
from headrace.metastore.segment_logs.topics import REMOTE_LOG_TOPIC, lifecycle_configs
from headrace.protocol.client.cluster import KafkaCluster
from headrace.storage.clock import SystemClock
from headrace.storage.errors import InvalidError, NotFoundError
from headrace.storage.records.codec import Record, decode_records
from headrace.storage.records.compression import Codec
from headrace.storage.segment.reader import walk_batches

COLUMNS = ("partition", "records", "unkeyed", "live", "live_unkeyed", "lost")
RECORDS_PER_BATCH = 500


def add_migrate_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("--topic", default=REMOTE_LOG_TOPIC, metavar="TOPIC", help=f"default: {REMOTE_LOG_TOPIC}")
    parser.add_argument("--files", metavar="FILES", help="comma-separated log files instead: only their state is shown")
    steps = parser.add_mutually_exclusive_group()
    steps.add_argument("--rekey", action="store_true", help="write the records of live segments again, with keys")
    steps.add_argument("--compact", action="store_true", help="switch the topic to compaction")
    add_flags(parser)
    parser.set_defaults(run=run_migrate)


def run_migrate(args: argparse.Namespace) -> int:
    """Show the state of each partition after the step."""
    if args.files:
        if args.rekey or args.compact:
            raise InvalidError("files are only read: use --rekey and --compact with -b")
        states = {name: replay(_file_records(Path(name))) for name in args.files.split(",")}
        show(args, [_row(name, state) for name, state in states.items()], COLUMNS)
        return 0
    with open_cluster(args) as cluster:
        states = _states(cluster, args.topic)
        if args.rekey:
            _rekey(args, cluster, states)
        elif args.compact:
            _compact(args, cluster, states)
        else:
            show(args, [_row(index, state) for index, state in sorted(states.items()) if state.records], COLUMNS)
    return 0


def _rekey(args: argparse.Namespace, cluster: KafkaCluster, states: dict[int, MigrationState]) -> None:
    configs = {config.name: config.value for config in describe_configs(cluster, (TOPIC, args.topic))}
    if configs.get("retention.ms") == "-1" and "compact" not in configs.get("cleanup.policy", ""):
        raise InvalidError(f"the topic keeps its records without end: set a finite retention.ms: topic={args.topic}")
    plans = {index: rekey(state) for index, state in states.items()}  # a refusal comes before anything is written
    for index, plan in plans.items():
        _produce(cluster, args.topic, index, plan)
    after = _states(cluster, args.topic)
    for index, state in states.items():
        if after[index].live() != state.live() or after[index].without_key():
            raise InvalidError(f"the logical state changed meanwhile: repeat --rekey: topic={args.topic}:{index}")
    written = sum(map(len, plans.values()))
    say(args, f"rekeyed: records={written}", records=written, topic=args.topic)


def _compact(args: argparse.Namespace, cluster: KafkaCluster, states: dict[int, MigrationState]) -> None:
    for state in states.values():
        require_compactable(state)
    changes = [(name, SET, value) for name, value in lifecycle_configs(REMOTE_LOG_TOPIC).items()]
    change_configs(cluster, (TOPIC, args.topic), changes)
    say(args, f"compacted from now on: {args.topic}", topic=args.topic, configs=[name for name, *_ in changes])


def _states(cluster: KafkaCluster, topic: str) -> dict[int, MigrationState]:
    """Return the state of each partition, from its start to its end as of now."""
    leaders = partitions_of(cluster, [topic])
    starts = list_offsets(cluster, dict.fromkeys(leaders, EARLIEST))
    ends = list_offsets(cluster, dict.fromkeys(leaders, LATEST))
    found: dict[int, list[StreamRecord]] = defaultdict(list)
    for place, leader in leaders.items():
        position = starts[place]
        while position < ends[place]:
            for index, records, next_position in fetch(cluster, leader, topic, {place[1]: position}):
                found[index] += map(_stream_record, records)
                position = next_position
    return {index: replay(found[index]) for _, index in sorted(leaders)}


def _produce(cluster: KafkaCluster, topic: str, index: int, plan: Sequence[RekeyedRecord]) -> None:
    now_ms = SystemClock().wall_ms()
    for begin in range(0, len(plan), RECORDS_PER_BATCH):
        some = plan[begin : begin + RECORDS_PER_BATCH]
        records = [Record(n, now_ms, each.key, each.value) for n, each in enumerate(some)]
        leader = partitions_of(cluster, [topic])[topic, index]
        produce(cluster, leader, topic, index, records, Codec.NONE)


def _file_records(path: Path) -> Iterator[StreamRecord]:
    """The records of a Kafka log file."""
    try:
        data = memoryview(path.read_bytes())
    except OSError as error:
        raise InvalidError(f"cannot read: {path}: {error.strerror}") from error
    for position, header in walk_batches(data):
        yield from map(_stream_record, decode_records(data[position : position + header.size]))


def _stream_record(record: Record) -> StreamRecord:
    return StreamRecord(record.offset, record.timestamp, record.key, record.value)


def _row(name: int | str, state: MigrationState) -> Row:
    return {
        "partition": name,
        "records": state.records,
        "unkeyed": state.unkeyed,
        "live": len(state.live()),
        "live_unkeyed": len(state.without_key()),
        "lost": len(state.lost()),
    }


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
        add_settings(command, ("metastore.url", *(("bucket", *STORE) if command is history else ())), every=False)
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
