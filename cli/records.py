"""`headrace records`: produce lines, consume, delete, and see where offsets lie.

Place: a client like any other, beside a running cluster; Kafka's console producer and consumer.
Invariant: consume prints a partition's records in the order of their offsets, each once. produce stops at the first
batch that is not acknowledged and says how many records were. If the process dies here, what it had printed as
produced is stored.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

from aiokafka.partitioner import murmur2

from cli.client.cluster import KafkaCluster, WrongBrokerError
from cli.client.offsets import EARLIEST, LATEST, TopicPartition, list_offsets, partitions_of, timestamp_ms
from cli.client.records import delete_records, fetch, produce
from cli.tables import add_flags, add_yes, confirm, open_cluster, pairs, say, show
from storage.clock import SystemClock
from storage.errors import InvalidError
from storage.records.codec import Record
from storage.records.compression import Codec

BATCH_RECORDS = 500
FORMATS = ("value", "key", "json")
DESCRIPTION = """\
Records of a running cluster, ours or any other that speaks Kafka.

  echo 42:paid | headrace records produce orders --key-separator : -b 127.0.0.1:9092
  headrace records consume orders --from 2026-01-31T12:00:00+00:00 --format json -b 127.0.0.1:9092
  headrace records offsets orders -b 127.0.0.1:9092
"""


def add(subparsers: Any) -> None:
    """Register the command."""
    parser = subparsers.add_parser(
        "records",
        help="produce, consume and delete records; offsets",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(title="commands", metavar="{produce,consume,delete,offsets}", required=True)
    producing = commands.add_parser("produce", help="one record per line of stdin")
    producing.add_argument("--key-separator", metavar="TEXT", help="what stands between key and value in a line")
    producing.add_argument("--header", action="append", default=[], metavar="KEY=VALUE", help="for every record")
    codecs = [codec.name.lower() for codec in Codec]
    producing.add_argument("--compression", choices=codecs, default="none", metavar="CODEC", help=", ".join(codecs))
    consuming = commands.add_parser("consume", help="print records")
    consuming.add_argument(
        "--from", dest="start", default="earliest", metavar="WHERE", help="earliest, latest, an offset or a time"
    )
    consuming.add_argument("--max", type=int, metavar="N", help="stop after so many records")
    consuming.add_argument("--follow", "-f", action="store_true", help="wait for more at the end")
    consuming.add_argument("--format", choices=FORMATS, default="value", help="value; key, tab and value; or json")
    deleting = commands.add_parser("delete", help="the oldest records of partitions")
    until = deleting.add_mutually_exclusive_group(required=True)
    until.add_argument("--before-offset", type=int, metavar="N", help="the first offset that stays")
    until.add_argument("--all", action="store_true", help="everything there is now")
    add_yes(deleting)
    offsets = commands.add_parser("offsets", help="first and next offset of each partition")
    offsets.add_argument("--at", metavar="TIME", help="and that of the first record from then on")
    runs = (run_produce, run_consume, run_delete, run_offsets)
    for command, run in zip((producing, consuming, deleting, offsets), runs, strict=True):
        command.add_argument("topic")
        command.add_argument("--partition", type=int, metavar="N", help="this one only")
        add_flags(command)
        command.set_defaults(run=run)


def run_produce(args: argparse.Namespace) -> int:
    """Batches of lines; keyed records go where every client with Kafka's partitioner sends them."""
    headers: list[tuple[str, bytes | None]] = [
        (name, value.encode()) for name, value in pairs(args.header, "header").items()
    ]
    done = 0
    with open_cluster(args) as cluster:
        partitions = _partitions(cluster, args)
        turns = itertools.cycle(partitions)
        for lines in _chunks(sys.stdin, BATCH_RECORDS):
            unkeyed = next(turns)
            now_ms = SystemClock().wall_ms()
            batches: defaultdict[TopicPartition, list[Record]] = defaultdict(list)
            for line in lines:
                key, value = _split(line, args.key_separator)
                place = unkeyed if key is None or args.partition is not None else _place(key, list(partitions))
                batches[place].append(Record(len(batches[place]), now_ms, key, value, headers))
            for (topic, index), records in batches.items():
                produce(cluster, partitions[topic, index], topic, index, records, Codec[args.compression.upper()])
                done += len(records)
                if not args.json:
                    print(f"produced: records={done}", file=sys.stderr)
    say(args, f"records produced: {done}", records=done, topic=args.topic)
    return 0


def run_consume(args: argparse.Namespace) -> int:
    """Up to the end that each partition had at the start, or for ever."""
    with open_cluster(args) as cluster:
        partitions = _partitions(cluster, args)
        latest = list_offsets(cluster, dict.fromkeys(partitions, LATEST))
        positions = {tp[1]: offset for tp, offset in _starts(cluster, args.start, partitions, latest).items()}
        ends = None if args.follow else {tp[1]: offset for tp, offset in latest.items()}
        records = _read(cluster, args.topic, partitions, positions, ends)
        for index, record in itertools.islice(records, args.max):
            print(_shown(args.topic, index, record, "json" if args.json else args.format), flush=args.follow)
    return 0


def run_delete(args: argparse.Namespace) -> int:
    """Delete, once confirmed; a partition that ends before the offset is emptied."""
    what = "all records" if args.all else f"all records before offset {args.before_offset}"
    confirm(args, f"delete {what} of {args.topic}?")
    with open_cluster(args) as cluster:
        partitions = _partitions(cluster, args)
        latest = list_offsets(cluster, dict.fromkeys(partitions, LATEST))
        rows = []
        for (topic, index), leader in partitions.items():
            until = latest[topic, index] if args.all else min(args.before_offset, latest[topic, index])
            first = delete_records(cluster, leader, topic, {index: until})[index]
            rows.append({"topic": topic, "partition": index, "earliest": first})
    show(args, rows, ("topic", "partition", "earliest"))
    return 0


def run_offsets(args: argparse.Namespace) -> int:
    """One line per partition."""
    with open_cluster(args) as cluster:
        partitions = list(_partitions(cluster, args))
        times = {"earliest": EARLIEST, "latest": LATEST} | ({"at": timestamp_ms(args.at)} if args.at else {})
        found = {name: list_offsets(cluster, dict.fromkeys(partitions, at)) for name, at in times.items()}
    rows = [
        {"topic": topic, "partition": index}
        | {name: None if offsets[topic, index] < 0 else offsets[topic, index] for name, offsets in found.items()}
        for topic, index in partitions
    ]
    show(args, rows, ("topic", "partition", *times))
    return 0


def _partitions(cluster: KafkaCluster, args: argparse.Namespace) -> dict[TopicPartition, int]:
    """(topic, partition) -> leader, of the topic or of the one partition that was asked for."""
    found = partitions_of(cluster, [args.topic])
    if args.partition is None:
        return found
    if (args.topic, args.partition) not in found:
        raise InvalidError(f"there is no such partition: {args.topic}:{args.partition}")
    return {(args.topic, args.partition): found[args.topic, args.partition]}


def _split(line: str, separator: str | None) -> tuple[bytes | None, bytes]:
    if separator is None:
        return None, line.encode()
    key, found, value = line.partition(separator)
    if not found:
        raise InvalidError(f"no {separator!r} between key and value in the line: {line}")
    return key.encode(), value.encode()


def _place(key: bytes, partitions: list[TopicPartition]) -> TopicPartition:
    """Kafka's default partitioner."""
    hashed: int = murmur2(key) & 0x7FFFFFFF
    return partitions[hashed % len(partitions)]


def _chunks(lines: Iterable[str], size: int) -> Iterator[list[str]]:
    stripped = (line.rstrip("\n") for line in lines)
    while chunk := list(itertools.islice(stripped, size)):
        yield chunk


def _starts(
    cluster: KafkaCluster, start: str, partitions: dict[TopicPartition, int], latest: dict[TopicPartition, int]
) -> dict[TopicPartition, int]:
    """Where to begin in each partition; an offset outside the log is moved to its nearest end."""
    if start == "latest":
        return latest
    earliest = list_offsets(cluster, dict.fromkeys(partitions, EARLIEST))
    if start == "earliest":
        return earliest
    if start.isdecimal():
        return {tp: min(max(int(start), earliest[tp]), latest[tp]) for tp in partitions}
    found = list_offsets(cluster, dict.fromkeys(partitions, timestamp_ms(start)))
    return {tp: latest[tp] if offset < 0 else offset for tp, offset in found.items()}


def _read(
    cluster: KafkaCluster,
    topic: str,
    leaders: dict[TopicPartition, int],
    positions: dict[int, int],
    ends: dict[int, int] | None,
) -> Iterator[tuple[int, Record]]:
    """(partition, record) as they come, until `ends` are reached."""
    while True:
        open_now = {i: at for i, at in positions.items() if ends is None or at < ends[i]}
        if not open_now:
            return
        by_leader: defaultdict[int, dict[int, int]] = defaultdict(dict)
        for index, at in open_now.items():
            by_leader[leaders[topic, index]][index] = at
        for leader, wanted in by_leader.items():
            try:
                for index, records, position in fetch(cluster, leader, topic, wanted):
                    positions[index] = position
                    yield from ((index, record) for record in records if ends is None or record.offset < ends[index])
            except WrongBrokerError:
                leaders.update(partitions_of(cluster, [topic]))


def _shown(topic: str, index: int, record: Record, form: str) -> str:
    value = None if record.value is None else record.value.decode(errors="replace")
    key = None if record.key is None else record.key.decode(errors="replace")
    if form == "value":
        return value or ""
    if form == "key":
        return f"{'' if key is None else key}\t{'' if value is None else value}"
    headers = {name: None if data is None else data.decode(errors="replace") for name, data in record.headers}
    facts = {"topic": topic, "partition": index, "offset": record.offset, "timestamp": record.timestamp}
    return json.dumps({**facts, "key": key, "value": value, "headers": headers}, ensure_ascii=False)
