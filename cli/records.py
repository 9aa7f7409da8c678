"""`headrace records`: produce lines, consume, delete, and show offsets.

Place: a Kafka client for a running cluster; Kafka's console producer and consumer.
Invariant: consume prints the records of a partition in offset order, each once. produce takes lines as bytes, stops
at the first line that is not a valid record or is in an unacknowledged batch, and prints how many records were
produced; the lines before an invalid line are produced. delete checks all partitions before it deletes from any.
"""

from __future__ import annotations

import argparse
import base64
import itertools
import json
import os
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from aiokafka.partitioner import murmur2

from headrace.cli.client.offsets import (
    EARLIEST,
    LATEST,
    READ_COMMITTED,
    READ_UNCOMMITTED,
    TopicPartition,
    list_offsets,
    partitions_of,
    timestamp_ms,
)
from headrace.cli.client.records import delete_records, fetch, produce
from headrace.cli.options import INT32_MAX, INT64_MAX, whole
from headrace.cli.output import ProgressBar, write_error
from headrace.cli.tables import Row, add_flags, add_yes, confirm, key_values, open_cluster, say, show
from headrace.protocol.client.cluster import KafkaCluster, WrongBrokerError
from headrace.storage.client_text import json_text, visible
from headrace.storage.clock import SystemClock
from headrace.storage.errors import HeadraceError, InvalidError
from headrace.storage.records.codec import Record
from headrace.storage.records.compression import Codec

BATCH_RECORDS = 500
HIGH_WATERMARK = -1
"""DeleteRecords' value for: up to the high watermark."""
KeyValue = tuple[bytes | None, bytes | None]
"""A record of `produce`: null is None."""
ISOLATION_LEVELS = {"read_committed": READ_COMMITTED, "read_uncommitted": READ_UNCOMMITTED}
FORMATS = ("value", "key", "json")
DESCRIPTION = """\
Records of any running Kafka cluster.

  echo 42:paid | headrace records produce orders --key-separator : -b 127.0.0.1:9092
  echo 42:NULL | headrace records produce orders --key-separator : --null-marker NULL -b 127.0.0.1:9092
  headrace records consume orders --from 2026-01-31T12:00:00+00:00 --format json -b 127.0.0.1:9092
  headrace records offsets orders -b 127.0.0.1:9092
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    commands = parser.add_subparsers(title="commands", metavar="{produce,consume,delete,offsets}", required=True)
    producing = commands.add_parser("produce", help="produce one record per line of stdin")
    producing.add_argument("--key-separator", metavar="TEXT", help="separator between key and value in a line")
    producing.add_argument(
        "--null-marker",
        metavar="TEXT",
        help="a key or value that is this text is null, as null.marker of Kafka's console producer: with a key, a"
        " tombstone",
    )
    producing.add_argument("--header", action="append", default=[], metavar="KEY=VALUE", help="header of every record")
    codecs = [codec.name.lower() for codec in Codec]
    producing.add_argument("--compression", choices=codecs, default="none", metavar="CODEC", help=", ".join(codecs))
    consuming = commands.add_parser("consume", help="print records")
    consuming.add_argument(
        "--from", dest="start", default="earliest", metavar="WHERE", help="start: earliest, latest, an offset or a time"
    )
    consuming.add_argument(
        "--isolation-level",
        choices=tuple(ISOLATION_LEVELS),
        default="read_uncommitted",
        help="read_committed leaves out records of aborted and open transactions; the default is that of Kafka's"
        " console consumer, read_uncommitted",
    )
    consuming.add_argument("--max", type=whole(1, INT64_MAX), metavar="N", help="stop after this many records")
    consuming.add_argument("--follow", "-f", action="store_true", help="wait for new records at the end")
    consuming.add_argument("--format", choices=FORMATS, default="value", help="value; key, tab and value; or JSON")
    deleting = commands.add_parser("delete", help="delete the oldest records of partitions")
    until = deleting.add_mutually_exclusive_group(required=True)
    until.add_argument(
        "--before-offset",
        type=whole(HIGH_WATERMARK, INT64_MAX),
        metavar="N",
        help="the first offset to keep; -1: keep none",
    )
    until.add_argument("--all", action="store_true", help="delete all current records")
    add_yes(deleting)
    offsets = commands.add_parser("offsets", help="show the start and end offset of each partition")
    offsets.add_argument("--at", metavar="TIME", help="also show the first offset at or after this time")
    runs = (run_produce, run_consume, run_delete, run_offsets)
    for command, run in zip((producing, consuming, deleting, offsets), runs, strict=True):
        command.add_argument("topic")
        command.add_argument("--partition", type=whole(0, INT32_MAX), metavar="N", help="only this partition")
        add_flags(command)
        command.set_defaults(run=run)


def run_produce(args: argparse.Namespace) -> int:
    """Send batches of lines; keyed records go to the partition that Kafka's default partitioner chooses."""
    headers = _headers(args.header)
    if args.key_separator == "":
        raise InvalidError("--key-separator must not be empty")
    separator, null = (None if text is None else os.fsencode(text) for text in (args.key_separator, args.null_marker))
    codec = Codec[args.compression.upper()]
    done, bar = 0, ProgressBar()
    with open_cluster(args) as cluster:
        partitions = _partitions(cluster, args)
        turns = itertools.cycle(partitions)
        try:
            for lines in _chunks(_split_lines(sys.stdin.buffer, separator, null), BATCH_RECORDS):
                unkeyed = next(turns)
                now_ms = SystemClock().wall_ms()
                batches: defaultdict[TopicPartition, list[Record]] = defaultdict(list)
                for key, value in lines:
                    place = unkeyed if key is None or args.partition is not None else _place(key, list(partitions))
                    batches[place].append(Record(len(batches[place]), now_ms, key, value, headers))
                for (topic, index), records in batches.items():
                    produce(cluster, partitions[topic, index], topic, index, records, codec)
                    done += len(records)
                    bar("records", done, 0)
        except (HeadraceError, KeyboardInterrupt):
            write_error(f"records produced before the error: {done}")
            raise
        finally:
            bar.close()
    say(args, f"records produced: {done}", records=done, topic=args.topic)
    return 0


def run_consume(args: argparse.Namespace) -> int:
    """Print up to the end that each partition had at the start, or without end."""
    with open_cluster(args) as cluster:
        partitions = _partitions(cluster, args)
        latest = list_offsets(cluster, dict.fromkeys(partitions, LATEST))
        positions = {tp[1]: offset for tp, offset in _starts(cluster, args.start, partitions, latest).items()}
        isolation = ISOLATION_LEVELS[args.isolation_level]
        if isolation == READ_COMMITTED:
            latest = list_offsets(cluster, dict.fromkeys(partitions, LATEST), isolation)
        ends = None if args.follow else {tp[1]: offset for tp, offset in latest.items()}
        records = _read(cluster, args.topic, partitions, positions, ends, isolation)
        total = 0 if ends is None else min(args.max or INT64_MAX, sum(max(0, ends[i] - positions[i]) for i in ends))
        bar = ProgressBar(beside_output=True)
        form, shown = "json" if args.json else args.format, _for_terminal if sys.stdout.isatty() else _as_it_is
        for done, (index, record) in enumerate(itertools.islice(records, args.max), 1):
            sys.stdout.buffer.write(shown(_shown(args.topic, index, record, form)) + b"\n")
            if args.follow:
                sys.stdout.buffer.flush()
            if done % BATCH_RECORDS == 0:
                bar("records", done, total)
        bar.close()
    return 0


def run_delete(args: argparse.Namespace) -> int:
    """Delete, after confirmation and after every partition is known to have the offset; 1 if a partition refused."""
    until = HIGH_WATERMARK if args.all else args.before_offset
    what = "all records" if until == HIGH_WATERMARK else f"all records before offset {until}"
    with open_cluster(args) as cluster:
        partitions = _partitions(cluster, args)
        latest = list_offsets(cluster, dict.fromkeys(partitions, LATEST))
        beyond = [f"{topic}:{index} ends at {end}" for (topic, index), end in latest.items() if end < until]
        if beyond:
            raise InvalidError(f"offset out of range, nothing was deleted: before_offset={until}: {', '.join(beyond)}")
        confirm(args, f"delete {what} of {args.topic}?")
        rows = [_delete(cluster, leader, topic, index, until) for (topic, index), leader in partitions.items()]
    failed = any(row["error"] for row in rows)
    show(args, rows, ("topic", "partition", "earliest", *(("error",) if failed else ())))
    return 1 if failed else 0


def _delete(cluster: KafkaCluster, leader: int, topic: str, index: int, until: int) -> Row:
    """The result for one partition."""
    row = {"topic": topic, "partition": index, "earliest": None, "error": None}
    try:
        return {**row, "earliest": delete_records(cluster, leader, topic, {index: until})[index]}
    except HeadraceError as error:
        return {**row, "error": str(error)}


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
    """(topic, partition) -> leader, of the whole topic or of the one partition that was named."""
    found = partitions_of(cluster, [args.topic])
    if args.partition is None:
        return found
    if (args.topic, args.partition) not in found:
        raise InvalidError(f"partition does not exist: {args.topic}:{args.partition}")
    return {(args.topic, args.partition): found[args.topic, args.partition]}


def _headers(given: Sequence[str]) -> list[tuple[str, bytes | None]]:
    try:
        return [(os.fsencode(name).decode(), os.fsencode(value)) for name, value in key_values(given, "header")]
    except UnicodeDecodeError as error:
        raise InvalidError("a header key is not UTF-8") from error


def _split_lines(lines: Iterable[bytes], separator: bytes | None, null: bytes | None) -> Iterator[KeyValue]:
    """(key, value) of each line; None for one that is `null`. InvalidError names the first line without a key."""
    for number, line in enumerate(lines, 1):
        value = line.removesuffix(b"\n")
        if separator is None:
            yield None, None if value == null else value
            continue
        key, found, value = value.partition(separator)
        if not found:
            shown, wanted = line.decode(errors="replace").rstrip("\n"), separator.decode(errors="replace")
            raise InvalidError(f"line {number}: no {wanted!r} between key and value: {shown}")
        yield None if key == null else key, None if value == null else value


def _place(key: bytes, partitions: list[TopicPartition]) -> TopicPartition:
    """Kafka's default partitioner."""
    hashed: int = murmur2(key) & 0x7FFFFFFF
    return partitions[hashed % len(partitions)]


def _chunks(lines: Iterator[KeyValue], size: int) -> Iterator[list[KeyValue]]:
    """Chunks of `size`; if a line is refused, the lines before it are returned first, then the error is
    raised.
    """
    chunk: list[KeyValue] = []
    try:
        for line in lines:
            chunk.append(line)
            if len(chunk) == size:
                yield chunk
                chunk = []
    except InvalidError:
        if chunk:
            yield chunk
        raise
    if chunk:
        yield chunk


def _starts(
    cluster: KafkaCluster, start: str, partitions: dict[TopicPartition, int], latest: dict[TopicPartition, int]
) -> dict[TopicPartition, int]:
    """The start offset of each partition. InvalidError for an offset that is in no partition; see `_moved_inside`."""
    if start == "latest":
        return latest
    earliest = list_offsets(cluster, dict.fromkeys(partitions, EARLIEST))
    if start == "earliest":
        return earliest
    if start.isdecimal():
        return _moved_inside(int(start), earliest, latest)
    found = list_offsets(cluster, dict.fromkeys(partitions, timestamp_ms(start)))
    return {tp: latest[tp] if offset < 0 else offset for tp, offset in found.items()}


def _moved_inside(
    offset: int, earliest: Mapping[TopicPartition, int], latest: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int]:
    """The offset, or the nearest offset of the partitions that do not contain it, with a warning."""
    ranges = {tp: f"{tp[0]}:{tp[1]} {earliest[tp]}..{latest[tp]}" for tp in earliest}
    outside = [tp for tp in earliest if not earliest[tp] <= offset <= latest[tp]]
    if len(outside) == len(earliest):
        raise InvalidError(f"offset out of range: {offset} ({', '.join(ranges.values())})")
    for tp in outside:
        write_error(f"warning: offset {offset} is out of range, reading from the nearest offset: {ranges[tp]}")
    return {tp: min(max(offset, earliest[tp]), latest[tp]) for tp in earliest}


def _read(
    cluster: KafkaCluster,
    topic: str,
    leaders: dict[TopicPartition, int],
    positions: dict[int, int],
    ends: dict[int, int] | None,
    isolation: int,
) -> Iterator[tuple[int, Record]]:
    """(partition, record) as they arrive, until `ends` are reached."""
    while True:
        open_now = {i: at for i, at in positions.items() if ends is None or at < ends[i]}
        if not open_now:
            return
        by_leader: defaultdict[int, dict[int, int]] = defaultdict(dict)
        for index, at in open_now.items():
            by_leader[leaders[topic, index]][index] = at
        for leader, wanted in by_leader.items():
            try:
                for index, records, position in fetch(cluster, leader, topic, wanted, isolation):
                    positions[index] = position
                    yield from ((index, record) for record in records if ends is None or record.offset < ends[index])
            except WrongBrokerError:
                leaders.update(partitions_of(cluster, [topic]))


def _shown(topic: str, index: int, record: Record, form: str) -> bytes:
    """One line without its line end. Keys and values are raw bytes; in JSON, those that are not text are in
    base64.
    """
    if form == "value":
        return record.value or b""
    if form == "key":
        return (record.key or b"") + b"\t" + (record.value or b"")
    timestamp = record.timestamp if record.timestamp >= 0 else None
    facts: dict[str, Any] = {"topic": topic, "partition": index, "offset": record.offset, "timestamp": timestamp}
    facts |= _as_text("key", record.key) | _as_text("value", record.value)
    facts["headers"] = [{"key": name} | _as_text("value", data) for name, data in record.headers]
    return json_text(json.dumps(facts, ensure_ascii=False)).encode()


def _as_it_is(line: bytes) -> bytes:
    return line


def _for_terminal(line: bytes) -> bytes:
    """Return the line without control characters: a record may hold any bytes."""
    return visible(line.decode(errors="backslashreplace")).encode()


def _as_text(name: str, data: bytes | None) -> dict[str, str | None]:
    if data is None:
        return {name: None}
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {name: data.decode(errors="replace"), f"{name}_base64": base64.b64encode(data).decode()}
