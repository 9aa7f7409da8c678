"""Reads a page of records of one partition, with bounds on bytes, records and time.

Place: under pages/records.py.
Invariant: at most READ_BYTES are fetched, or one larger batch; a batch is opened up to OPENED_BYTES, and READERS pages
are read at a time. A batch that cannot be opened is named, and the records after it follow.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from headrace.cli.client.aborted_batches import AbortedBatches
from headrace.cli.client.offsets import (
    EARLIEST,
    LATEST,
    READ_COMMITTED,
    READ_UNCOMMITTED,
    TopicPartition,
    list_offsets,
    partitions_of,
)
from headrace.cli.client.records import fetch_batches
from headrace.cli.console.cluster_link import BoundedCluster
from headrace.storage.errors import CorruptError, NotFoundError, UnavailableError
from headrace.storage.records.check import split_batches
from headrace.storage.records.codec import Record, open_batch
from headrace.storage.records.errors import BatchTooLargeError
from headrace.storage.records.header import read_header

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
