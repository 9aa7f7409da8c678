"""The records browser: a partition's records from an offset, a time, the start or the end, or one record whole.

Place: /records and /record.
Invariant of text: at most `bytes_max` bytes are looked at, and what was cut off is said. Characters that are not
visible, or that change the order of others, are shown by their numbers, so a record cannot look like another one.
JSON is indented only if that loses nothing.
Invariant of reads: at most READ_BYTES are fetched, or one larger batch; a batch is opened up to OPENED_BYTES, and
READERS pages are read at a time. A batch that cannot be opened is named, and the records after it follow.
Invariant: a page shows at most LIMIT_MAX records, and of each field FIELD_BYTES; one record alone RECORD_BYTES.
"""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from fastapi import FastAPI
from fastapi.responses import HTMLResponse

from headrace.cli.client.offsets import (
    EARLIEST,
    LATEST,
    READ_COMMITTED,
    READ_UNCOMMITTED,
    TopicPartition,
    list_offsets,
    partitions_of,
)
from headrace.cli.client.records import AbortedBatches, fetch_batches
from headrace.cli.console.cluster_link import BoundedCluster
from headrace.cli.console.parts import ConsoleParts, time_ms, whole_number
from headrace.cli.options import INT32_MAX
from headrace.storage.client_text import visible
from headrace.storage.errors import CorruptError, InvalidError, NotFoundError, UnavailableError
from headrace.storage.records.check import split_batches
from headrace.storage.records.codec import Record, open_batch
from headrace.storage.records.errors import BatchTooLargeError
from headrace.storage.records.header import read_header

PRETTY_BYTES_MAX = 256 * 1024
"""JSON beyond it is shown as it was sent."""
HEX_BYTES_MAX = 4096
_ROW_BYTES = 16


class ShownBytes(NamedTuple):
    """`kind` is null, empty, json, text or hex; `size` the length of all bytes; `cut` whether some are not shown."""

    kind: str
    text: str
    size: int
    cut: bool = False


class _LossyError(Exception):
    """The text would not be the same after decoding and encoding."""


def show_bytes(data: bytes | None, bytes_max: int) -> ShownBytes:
    """One field of a record."""
    if data is None:
        return ShownBytes("null", "", 0)
    if not data:
        return ShownBytes("empty", "", 0)
    part = data[:bytes_max]
    cut = len(part) < len(data)
    try:
        text = _decode(part, cut)
    except UnicodeDecodeError:
        return _hex(data, bytes_max)
    if any(character < " " and character not in "\t\n\r" for character in text):
        return _hex(data, bytes_max)
    if not cut and (pretty := _pretty(text)) is not None:
        return ShownBytes("json", visible(pretty), len(data))
    return ShownBytes("text", visible(text), len(data), cut)


def _decode(part: bytes, cut: bool) -> str:
    """A character at the end may be cut in two."""
    for shorter in range(4 if cut else 1):
        try:
            return part[: len(part) - shorter].decode()
        except UnicodeDecodeError as error:
            if error.start < len(part) - 3:
                raise
    return part.decode()


def _pretty(text: str) -> str | None:
    """Return None if it is no JSON object or array, or if decoding it loses something."""
    if not text.lstrip().startswith(("{", "[")) or len(text) > PRETTY_BYTES_MAX:
        return None
    try:
        value = json.loads(text, object_pairs_hook=_object, parse_float=_number, parse_constant=_number)
        return json.dumps(value, indent=2, ensure_ascii=False)
    except (ValueError, RecursionError, _LossyError):
        return None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise _LossyError
    return found


def _number(text: str) -> float:
    value = float(text)
    if repr(value) != text:
        raise _LossyError
    return value


def _hex(data: bytes, bytes_max: int) -> ShownBytes:
    part = data[: min(bytes_max, HEX_BYTES_MAX)]
    rows = []
    for at in range(0, len(part), _ROW_BYTES):
        row = part[at : at + _ROW_BYTES]
        letters = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
        padded = row.hex(" ").ljust(3 * min(_ROW_BYTES, len(part)) - 1)
        rows.append(f"{at:08x}  {padded}  {letters}")
    return ShownBytes("hex", "\n".join(rows), len(data), len(part) < len(data))


FETCH_BYTES = 1024 * 1024
READ_BYTES = 4 * 1024 * 1024
OPENED_BYTES = 32 * 1024 * 1024
SECONDS_KEPT = 2.0
"""Left for the rest of the page."""
READERS = 2
_reading = threading.BoundedSemaphore(READERS)


@dataclass(slots=True)
class RecordPage:
    """Records in order, the offset to continue from, and what could not be shown."""

    next_offset: int
    records: list[Record] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class LogRange:
    """Range of the log of one partition: its leader, log start, last stable offset and high watermark."""

    leader: int
    earliest: int
    stable: int
    latest: int

    def end(self, isolation: int) -> int:
        """Return the offset up to which a reader gets records."""
        return self.stable if isolation == READ_COMMITTED else self.latest


def log_range(cluster: BoundedCluster, place: TopicPartition) -> LogRange:
    """NotFoundError if there is no such partition."""
    leaders = partitions_of(cluster, [place[0]])
    if place not in leaders:
        raise NotFoundError(f"partition does not exist: {place[0]}:{place[1]}")
    earliest, latest = (list_offsets(cluster, {place: at})[place] for at in (EARLIEST, LATEST))
    return LogRange(leaders[place], earliest, list_offsets(cluster, {place: LATEST}, READ_COMMITTED)[place], latest)


def read_records(
    cluster: BoundedCluster,
    place: TopicPartition,
    log: LogRange,
    start: int,
    limit: int,
    isolation: int = READ_UNCOMMITTED,
) -> RecordPage:
    """Read the records from `start` on. UnavailableError if other pages are being read and none of them ends in
    time.
    """
    if not _reading.acquire(timeout=max(0.0, cluster.seconds_left - SECONDS_KEPT)):
        raise UnavailableError("too many pages of records are being read: try again")
    try:
        return _read(cluster, place, log, start, limit, isolation)
    finally:
        _reading.release()


def _read(
    cluster: BoundedCluster, place: TopicPartition, log: LogRange, start: int, limit: int, isolation: int
) -> RecordPage:
    page, fetched = RecordPage(start), 0
    while page.next_offset < log.end(isolation) and len(page.records) < limit:
        if fetched >= READ_BYTES or cluster.seconds_left < SECONDS_KEPT:
            page.problems.append("the page ends early: its records are large, or the cluster is slow")
            break
        before = page.next_offset
        for found in fetch_batches(cluster, log.leader, place[0], {place[1]: before}, FETCH_BYTES, isolation):
            fetched += len(found.data)
            aborted = AbortedBatches(found.aborted)
            for batch in split_batches(found.data):
                if len(page.records) < limit:
                    _add(page, batch, limit, aborted)
        if page.next_offset == before:
            break
    return page


def _add(page: RecordPage, batch: memoryview, limit: int, aborted: AbortedBatches) -> None:
    header = read_header(batch)
    end = header.base_offset + header.last_offset_delta + 1
    left_out = aborted.has(header, batch)
    if end <= page.next_offset:
        return
    if not left_out and not header.is_control:
        try:
            for record in open_batch(batch, max_opened_bytes=OPENED_BYTES):
                if record.offset < page.next_offset:
                    continue
                page.records.append(record)
                if len(page.records) == limit:
                    page.next_offset = record.offset + 1
                    return
        except (BatchTooLargeError, CorruptError) as error:
            page.problems.append(f"offsets {header.base_offset} to {end - 1} cannot be opened: {error}")
    page.next_offset = end


LIMITS = (25, 50, 100, 200)
LIMIT_MAX = LIMITS[-1]
FIELD_BYTES = 2 * 1024
RECORD_BYTES = 256 * 1024
HEADERS_MAX = 100
UNCOMMITTED = "read_uncommitted"
ISOLATIONS = {UNCOMMITTED: READ_UNCOMMITTED, "read_committed": READ_COMMITTED}
"""Kafka's names; the first shows records of open and aborted transactions, too."""
STARTS = ("latest", "earliest", "offset", "time")


class ShownRecord(NamedTuple):
    """`headers`: (name, value) pairs, at most HEADERS_MAX; `more_headers`: how many are left out."""

    offset: int
    timestamp_ms: int
    key: ShownBytes
    value: ShownBytes
    headers: list[tuple[str, ShownBytes]]
    more_headers: int


def add_pages(app: FastAPI, console: ConsoleParts) -> None:
    """/records and /record"""

    @app.get("/records")
    def records(
        topic: str,
        partition: str = "",
        start: str = "latest",
        at: str = "",
        limit: str = "",
        isolation: str = UNCOMMITTED,
    ) -> HTMLResponse:
        level = _isolation_level(isolation)
        count = whole_number(limit, "limit", 1, LIMIT_MAX) or LIMITS[0]
        index = whole_number(partition, "partition", 0, INT32_MAX) or 0
        with console.link.opened() as cluster:
            log = log_range(cluster, (topic, index))
            wanted = start_offset(cluster, (topic, index), log, (start, at), log.end(level) - count)
            first = min(max(wanted, log.earliest), log.latest)
            found = read_records(cluster, (topic, index), log, first, count, level)
            indexes = [number for _, number in partitions_of(cluster, [topic])]
        return console.pages.render(
            "records",
            topic=topic,
            partition=index,
            indexes=indexes,
            start=start,
            at=at,
            limit=count,
            limits=LIMITS,
            log=log,
            end=log.end(level),
            isolation=isolation,
            isolations=ISOLATIONS,
            first=first,
            moved_from=wanted if wanted != first and start == "offset" else None,
            found=found,
            rows=[shown_record(record, FIELD_BYTES) for record in found.records],
        )

    @app.get("/record")
    def record(topic: str, partition: str, offset: str) -> HTMLResponse:
        index, wanted = whole_number(partition, "partition", 0, INT32_MAX) or 0, whole_number(offset, "offset") or 0
        with console.link.opened() as cluster:
            log = log_range(cluster, (topic, index))
            if not log.earliest <= wanted < log.latest:
                raise NotFoundError(f"offset out of range: {wanted} ({topic}:{index} {log.earliest}..{log.latest})")
            found = read_records(cluster, (topic, index), log, wanted, 1)
        if not found.records or found.records[0].offset != wanted:
            why = found.problems[0] if found.problems else "it was removed by log compaction, or is a control record"
            raise NotFoundError(f"no record at offset {wanted} of {topic}:{index}: {why}")
        (shown,) = (shown_record(each, RECORD_BYTES) for each in found.records)
        return console.pages.render("record", topic=topic, partition=index, log=log, record=shown)


def _isolation_level(name: str) -> int:
    if name not in ISOLATIONS:
        raise InvalidError(f"isolation: not one of {', '.join(ISOLATIONS)}: {name[:40]}")
    return ISOLATIONS[name]


def start_offset(
    cluster: BoundedCluster, place: tuple[str, int], log: LogRange, start: tuple[str, str], newest: int
) -> int:
    """`start` is one of STARTS, and its offset or time; `newest`: where a page of the newest records begins.
    InvalidError for another start."""
    kind, at = start
    if kind == "earliest":
        return log.earliest
    if kind == "latest":
        return max(newest, log.earliest)
    if kind == "offset":
        return whole_number(at, "at") or 0
    if kind == "time":
        found = list_offsets(cluster, {place: time_ms(at, "at")})[place]
        return log.latest if found < 0 else found
    raise InvalidError(f"start: not one of {', '.join(STARTS)}: {kind[:40]}")


def shown_record(record: Record, bytes_max: int) -> ShownRecord:
    """Return the record as text, each field up to `bytes_max` bytes."""
    headers = [(name, show_bytes(data, bytes_max)) for name, data in record.headers[:HEADERS_MAX]]
    return ShownRecord(
        record.offset,
        record.timestamp,
        show_bytes(record.key, bytes_max),
        show_bytes(record.value, bytes_max),
        headers,
        max(len(record.headers) - HEADERS_MAX, 0),
    )
