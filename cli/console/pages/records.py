"""The records browser: a partition's records from an offset, a time, the start or the end; and one record whole.

Place: /records and /record; record_reads.py reads, shown_bytes.py makes text.
Invariant: a page shows at most LIMIT_MAX records, and of each field FIELD_BYTES; one record alone RECORD_BYTES.
"""

from __future__ import annotations

from typing import NamedTuple

from fastapi import FastAPI
from fastapi.responses import HTMLResponse

from headrace.cli.client.offsets import READ_COMMITTED, READ_UNCOMMITTED, list_offsets, partitions_of
from headrace.cli.console.cluster_link import BoundedCluster
from headrace.cli.console.parts import ConsoleParts, time_ms, whole_number
from headrace.cli.console.record_reads import LogRange, log_range, read_records
from headrace.cli.console.shown_bytes import ShownBytes, show_bytes
from headrace.cli.numbers import INT32_MAX
from headrace.storage.errors import InvalidError, NotFoundError
from headrace.storage.records.codec import Record

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
