"""`headrace segments migrate`: give a legacy topic of lifecycle records its keys, then let it be compacted.

Place: a Kafka client for any Kafka-compatible cluster, or for log files of such a topic.
Invariant: without --rekey and --compact nothing is written. --rekey is refused while the topic keeps its records
without end, and fails unless the logical state is the same before and after. --compact is refused while a record
without a key is left. Each step can be repeated; a repeated --rekey writes only what is still missing.
Source: KAFKA-20033, "Existing clusters".
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

from headrace.cli.client.cluster import KafkaCluster
from headrace.cli.client.offsets import EARLIEST, LATEST, list_offsets, partitions_of
from headrace.cli.client.records import fetch, produce
from headrace.cli.configs import SET, TOPIC, change_configs, describe_configs
from headrace.cli.tables import Row, add_flags, open_cluster, say, show
from headrace.metastore.segment_logs.migration import MigrationState, RekeyedRecord, rekey, replay, require_compactable
from headrace.metastore.segment_logs.projection import StreamRecord
from headrace.metastore.segment_logs.topics import REMOTE_LOG_TOPIC, lifecycle_configs
from headrace.storage.clock import SystemClock
from headrace.storage.errors import InvalidError
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
