"""One attempt of a task: rows become batches, batches become segment files in the bucket.

Place: on executors, between Spark's rows and the commit message. The driver commits what the task returns
(commit.py). Rows without a partition get one of partitioner.py.
Invariant: every attempt has its own file ids, and a file is reported only after the bucket confirmed it. The rows of
a partition keep their order. A row that does not fit its topic ends the task. Files of an attempt that is not
committed are orphans for the sweeper, once their term has ended.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import NamedTuple

from headrace.metastore.api.commit import BulkFile, BulkRun
from headrace.scan.background_loop import BackgroundLoop
from headrace.scan.bulk.commit import WritableTopic
from headrace.scan.bulk.partitioner import partitions_of
from headrace.scan.errors import BulkWriteError
from headrace.storage.clock import Clock
from headrace.storage.errors import CorruptError, InvalidError
from headrace.storage.file_id import new_bulk_file_id, object_key
from headrace.storage.objects.store import ObjectStore
from headrace.storage.records.codec import Record, encode_batch
from headrace.storage.records.compression import Codec
from headrace.storage.records.header import read_header
from headrace.storage.segment.writer import SegmentWriter

BATCH_BYTES = 1024 * 1024
"""Bytes of a batch before compression; less if max.message.bytes is."""
RUN_BYTES = 8 * 1024 * 1024
"""Bytes of an extent: a reader that starts in its middle begins at its first batch."""
RECORD_OVERHEAD_BYTES = 32
HEADER_OVERHEAD_BYTES = 10


class Rows(NamedTuple):
    """Rows as columns of one length; a missing column is None. Timestamps in ms; None: now."""

    values: Sequence[bytes | None]
    keys: Sequence[bytes | None] | None = None
    headers: Sequence[list[tuple[str, bytes | None]]] | None = None
    topics: Sequence[str | None] | None = None
    partitions: Sequence[int | None] | None = None
    timestamps: Sequence[int | None] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskPlan:
    """What the driver tells each task. Without `topic` each row names its own."""

    topics: Mapping[str, WritableTopic]
    topic: str | None
    codec: Codec
    file_bytes: int
    term_hours: int
    driver_ahead_ms: int
    """The database's clock minus the driver's wall clock."""


@dataclass(slots=True)
class _Pile:
    """What waits for the next file, of one partition."""

    topic: WritableTopic
    partition: int
    limit: int
    records: list[Record] = field(default_factory=list)
    size_bytes: int = 0
    batches: list[bytes] = field(default_factory=list)


class BulkTask:
    """Call `add` for all rows, then `finish`; `close` in any case."""

    def __init__(self, store: ObjectStore, plan: TaskPlan, clock: Clock, rng: random.Random) -> None:
        self._store, self._plan, self._clock, self._rng = store, plan, clock, rng
        self._loop = BackgroundLoop()
        self._piles: dict[int, _Pile] = {}
        self._waiting_bytes = 0
        self._keyless = {name: rng.randrange(10**6) for name in plan.topics}
        self._files: list[BulkFile] = []
        self._put: Future[None] | None = None

    def add(self, rows: Rows) -> None:
        """BulkWriteError for a row that does not fit; CorruptError if the bucket stored other bytes; as the store."""
        count = len(rows.values)
        names = [self._plan.topic] * count if self._plan.topic is not None else rows.topics or [None] * count
        places: dict[str | None, list[int]] = {}
        for row, name in enumerate(names):
            places.setdefault(name, []).append(row)
        keys: Sequence[bytes | None] = rows.keys or [None] * count
        for name, numbers in places.items():
            topic = self._topic(name)
            partitions = self._partitions(topic, [keys[row] for row in numbers], rows.partitions, numbers)
            for row, partition in zip(numbers, partitions, strict=True):
                self._add(topic, partition, rows, keys[row], row)

    def finish(self) -> list[BulkFile]:
        """The stored files."""
        self._store_file()
        self._wait()
        return self._files

    def close(self) -> None:
        """Close the connection and end the thread; uploads in progress are given up."""
        self._loop.run(self._store.close())
        self._loop.close()

    def _topic(self, name: str | None) -> WritableTopic:
        if name is None:
            raise BulkWriteError("a row has no topic: give the option topic, or a column topic without nulls")
        topic = self._plan.topics.get(name)
        if topic is None:
            raise BulkWriteError(f"topic does not exist: topic={name}. One that was created later needs a new query")
        return topic

    def _partitions(
        self, topic: WritableTopic, keys: list[bytes | None], given: Sequence[int | None] | None, rows: list[int]
    ) -> list[int]:
        if topic.needs_keys and None in keys:
            raise BulkWriteError(f"compacted topics take no record without a key: topic={topic.name}")
        chosen, self._keyless[topic.name] = partitions_of(
            keys, topic.initial_partitions, topic.partitions, self._keyless[topic.name]
        )
        if given is None:
            return chosen
        wanted = [given[row] if given[row] is not None else one for row, one in zip(rows, chosen, strict=True)]
        for partition in wanted:
            if partition is None or not 0 <= partition < topic.partitions:
                raise BulkWriteError(
                    f"partition does not exist: topic={topic.name} partition={partition} partitions={topic.partitions}"
                )
        return [partition for partition in wanted if partition is not None]

    def _add(self, topic: WritableTopic, partition: int, rows: Rows, key: bytes | None, row: int) -> None:
        """Add row number `row` to the pile of its partition. A full pile becomes a batch, enough bytes a file."""
        value = rows.values[row]
        headers = [] if rows.headers is None else rows.headers[row]
        timestamp = None if rows.timestamps is None else rows.timestamps[row]
        size = _estimated_size(key, value, headers)
        pile = self._pile_of(topic, partition)
        if pile.records and pile.size_bytes + size > pile.limit:
            self._seal(pile)
        offset_in_batch = len(pile.records)
        pile.records.append(Record(offset_in_batch, self._time(topic, partition, timestamp), key, value, headers))
        pile.size_bytes += size
        self._waiting_bytes += size
        if self._waiting_bytes >= self._plan.file_bytes:
            self._store_file()

    def _pile_of(self, topic: WritableTopic, partition: int) -> _Pile:
        """Return the partition's pile, a new one if it has none."""
        partition_key = topic.key(partition)
        pile = self._piles.get(partition_key)
        if pile is None:
            limit = min(BATCH_BYTES, topic.max_message_bytes * 9 // 10)
            pile = self._piles[partition_key] = _Pile(topic, partition, limit)
        return pile

    def _time(self, topic: WritableTopic, partition: int, timestamp: int | None) -> int:
        now_ms = self._clock.wall_ms() + self._plan.driver_ahead_ms
        if timestamp is None or topic.stamps_append_time:
            return now_ms
        if timestamp < 0 or not -topic.ahead_max_ms <= now_ms - timestamp <= topic.behind_max_ms:
            raise BulkWriteError(
                f"timestamp out of range: topic={topic.name} partition={partition} timestamp={timestamp} now={now_ms}"
                f" before.max.ms={topic.behind_max_ms} after.max.ms={topic.ahead_max_ms}"
            )
        return timestamp

    def _seal(self, pile: _Pile) -> None:
        """The records that wait become a batch."""
        topic, codec = pile.topic, pile.topic.codec
        where = f"topic={topic.name} partition={pile.partition} records={len(pile.records)}"
        try:
            batch = encode_batch(
                pile.records,
                codec=self._plan.codec if codec is None else codec,
                base_offset=0,
                log_append_time=topic.stamps_append_time,
            )
        except InvalidError as error:
            raise BulkWriteError(f"record does not fit: {where}: {error}") from error
        if len(batch) > topic.max_message_bytes:
            raise BulkWriteError(
                f"record is too large: {where} batch_bytes={len(batch)} max.message.bytes={topic.max_message_bytes}"
            )
        pile.batches.append(batch)
        self._waiting_bytes += len(batch) - pile.size_bytes
        pile.records, pile.size_bytes = [], 0

    def _store_file(self) -> None:
        """Begin to store what waits, when the file before is stored."""
        writer, runs = SegmentWriter(), []
        for pile in sorted(self._piles.values(), key=lambda pile: (pile.topic.topic_id.int, pile.partition)):
            if pile.records:
                self._seal(pile)
            runs += _lay_out(writer, pile)
        self._piles, self._waiting_bytes = {}, 0
        if not runs:
            return
        body = writer.finish()
        born_ms = self._clock.wall_ms() + self._plan.driver_ahead_ms
        file = BulkFile(new_bulk_file_id(born_ms, self._plan.term_hours, self._rng), len(body), tuple(runs))
        self._wait()
        self._put = self._loop.begin(self._upload(file, body))

    def _wait(self) -> None:
        if self._put is not None:
            self._put.result()
            self._put = None

    async def _upload(self, file: BulkFile, body: bytes) -> None:
        stored = await self._store.put(object_key(file.file_id), body)
        if stored.size != file.size:
            raise CorruptError(f"stored length differs: key={stored.key} sent={file.size} stored={stored.size}")
        self._files.append(file)


def _lay_out(writer: SegmentWriter, pile: _Pile) -> list[BulkRun]:
    """The pile's batches in the file, as runs."""
    topic, key = pile.topic, pile.topic.key(pile.partition)
    runs: list[BulkRun] = []
    for batch in pile.batches:
        header = read_header(batch)
        position = writer.add(topic.topic_id, pile.partition, key, memoryview(batch), header)
        records, time = header.last_offset_delta + 1, header.highest_timestamp
        last = runs[-1] if runs else None
        if last is None or last.length + len(batch) > RUN_BYTES:
            runs.append(BulkRun(key, position, len(batch), records, time))
        else:
            runs[-1] = BulkRun(
                key, last.position, last.length + len(batch), last.records + records, max(last.max_timestamp, time)
            )
    return runs


def _estimated_size(key: bytes | None, value: bytes | None, headers: Sequence[tuple[str, bytes | None]]) -> int:
    """Estimate the bytes of a record in a batch. A character of a header's name counts four, the most in UTF-8."""
    size = RECORD_OVERHEAD_BYTES + len(key or b"") + len(value or b"")
    for name, content in headers:
        size += HEADER_OVERHEAD_BYTES + 4 * len(name) + len(content or b"")
    return size
