"""The records of a compacted topic: what was sent and committed, and what cleaning by key may have left of it.

Invariant: every committed record keeps its offset, or is gone. The last value of each key stays. A delete marker stays
as long as an earlier record of its key is there, and for delete.retention.ms after the pass began that removed the
last one of these. Nothing at or above the roll offset goes. Judged on the stored log after each change of it.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.metastore.api.commit import BatchOutcome
from headrace.storage.errors import HeadraceError
from headrace.storage.records.codec import Record, decode_records, encode_batch
from headrace.storage.records.compression import Codec
from headrace.storage.segment.reader import walk_batches
from tests.simulation.clocks import EPOCH_MS
from tests.simulation.messages import Batch
from tests.simulation.metadata import Place
from tests.simulation.problems import Kind, Problem

if TYPE_CHECKING:
    from tests.simulation.world import World

KEYS = (b"a", b"a", b"b", b"c", b"d", b"e", b"f", b"g")
CODECS = (Codec.NONE, Codec.NONE, Codec.LZ4)
FIRST_NUMBER = 1_000_000
RETENTION_MS = 400
"""delete.retention.ms"""


@dataclass(eq=False, slots=True)
class KeyedBatch(Batch):
    """`contents`: with offsets from 0. A header of each record names it, because delete markers have no value."""

    contents: tuple[Record, ...] = ()
    codec: Codec = Codec.NONE

    def encode(self, producer_id: int, epoch: int, sequence: int) -> bytes:
        return encode_batch(self.contents, base_offset=0, codec=self.codec)


class KeyedLog:
    """`places`: of the compacted topic; none in a schedule without one."""

    def __init__(self, world: World) -> None:
        self.places: list[Place] = []
        self.batches: list[KeyedBatch] = []
        self._world = world
        self._sent: dict[bytes | None, Record] = {}
        """By the header that names it."""
        self._records: defaultdict[int, dict[int, Record]] = defaultdict(dict)
        """What was committed, by partition key and offset."""
        self._shadowed: set[tuple[int, int]] = set()
        """(partition key, offset) of delete markers with an earlier record of their key."""
        self._alone_since_ms: dict[tuple[int, int], int] = {}
        """Of those that have none any more: when the pass began that removed it."""

    def hold(self, places: Sequence[Place]) -> None:
        """These are the compacted topic's partitions."""
        self.places = list(places)

    def holds(self, key: int) -> bool:
        """Return whether the partition is one of them."""
        return any(place.key == key for place in self.places)

    def create(self, producer: str, place: Place, rng: random.Random) -> KeyedBatch:
        number = FIRST_NUMBER + len(self.batches)
        timestamp = EPOCH_MS + int(self._world.loop.time() * 1000) + rng.randint(-50, 50)
        count = rng.choice((1, 1, 2, 4))
        contents = tuple(
            Record(
                *(at, timestamp + at, rng.choice(KEYS), b"value" * 3 if rng.random() < 0.65 else None),
                headers=[("n", b"%d.%d" % (number, at))],
            )
            for at in range(count)
        )
        batch = KeyedBatch(
            *(number, producer, place, count, timestamp, b"", False), contents=contents, codec=rng.choice(CODECS)
        )
        self.batches.append(batch)
        self._sent.update((record.headers[0][1], record) for record in contents)
        return batch

    def committed(self, key: int, outcome: BatchOutcome, base_offset: int, data: bytes) -> None:
        """The metastore judged a stored batch, which an agent may have made of several."""
        if outcome is not BatchOutcome.APPENDED:
            return
        for at, record in enumerate(decode_records(memoryview(data))):
            if self._sent[record.headers[0][1]]._replace(offset=record.offset) != record:
                self._world.report(Kind.CORRUPT, f"committed is not what was sent: {record}")
            self._records[key][base_offset + at] = record._replace(offset=base_offset + at)

    def written(self, place: Place) -> dict[int, Record]:
        """Return what was committed, by offset."""
        return self._records[place.key]

    def last_of_keys(self, place: Place) -> dict[bytes | None, Record]:
        """Return the last records by key."""
        return {record.key: record for _, record in sorted(self._records[place.key].items())}

    def changed(self, keys: Iterable[int], begun_ms: int | None = None) -> None:
        """The stored log of these partitions is another. `begun_ms`: if a pass did it, when that began."""
        for place in self.places:
            if place.key in keys:
                self._judge(place, begun_ms)

    def find_problems(self) -> Iterator[Problem]:
        """Return problems: what was acknowledged was committed, where the answer said."""
        for batch in self.batches:
            for attempt in batch.attempts:
                if not attempt.is_ok:
                    continue
                first = self.written(batch.place).get(attempt.base_offset)
                if first is None:
                    yield Problem(Kind.LOST, f"{batch} acknowledged at offset {attempt.base_offset}")
                elif first._replace(offset=0) != batch.contents[0]:
                    yield Problem(Kind.WRONG_ANSWER, f"{batch} told {attempt.base_offset}, where {first} is")

    def stored(self, place: Place) -> list[Record]:
        """All records from the log start on, read without any agent."""
        partition = self._world.database.model.partitions[place.key]
        found: list[Record] = []
        for extent in partition.visible_extents:
            body = self._world.database.bytes_of(extent.source) or b""
            data = memoryview(body)[extent.position : extent.position + extent.length]
            offset = extent.base_offset
            try:
                for position, header in walk_batches(data):
                    records = decode_records(data[position : position + header.size])
                    found += [r._replace(offset=offset + r.offset - header.base_offset) for r in records]
                    offset += header.last_offset_delta + 1
            except HeadraceError as error:
                self._world.report(Kind.UNACCOUNTED, f"{place}: extent cannot be read: {extent} error={error}")
            if offset != extent.last_offset + 1:
                self._world.report(Kind.GAP, f"{place}: batches of an extent end at {offset}: {extent}")
        return [record for record in found if record.offset >= partition.log_start_offset]

    def _judge(self, place: Place, begun_ms: int | None) -> None:
        seen = self.stored(place)
        written, last = self.written(place), self.last_of_keys(place)
        there = {record.offset: record for record in seen}
        if [record.offset for record in seen] != sorted(there):
            self._world.report(Kind.DISORDER, f"{place}: offsets {[record.offset for record in seen]}")
        for record in seen:
            if written.get(record.offset) != record:
                self._world.report(Kind.INCONSISTENT, f"{place}: stored {record}, sent {written.get(record.offset)}")
        partition = self._world.database.model.partitions[place.key]
        roll_offset = self._world.cleaner.database.roll_offsets.get(place.key, 0)
        self._note_markers(place, seen, begun_ms)
        for offset, record in written.items():
            if offset < partition.log_start_offset or offset in there:
                continue
            if offset >= roll_offset:
                self._world.report(Kind.LOST, f"{place}: of the active part: {record}")
            elif last[record.key].offset == offset and record.value is not None:
                self._world.report(Kind.LOST, f"{place}: the last value of a key: {record}")
            elif last[record.key].offset == offset:
                self._judge_removal(place, record)

    def _note_markers(self, place: Place, seen: Sequence[Record], begun_ms: int | None) -> None:
        for key, marker in self.last_of_keys(place).items():
            name = (place.key, marker.offset)
            if marker.value is None and any(r.key == key and r.offset < marker.offset for r in seen):
                self._shadowed.add(name)
            elif name in self._shadowed:
                self._shadowed.remove(name)
                self._alone_since_ms[name] = begun_ms or 0

    def _judge_removal(self, place: Place, marker: Record) -> None:
        name, now_ms = (place.key, marker.offset), self._world.database.clock.wall_ms()
        if name in self._shadowed:
            self._world.report(Kind.LOST, f"{place}: a delete marker before earlier records of its key: {marker}")
        elif now_ms - self._alone_since_ms.get(name, 0) < RETENTION_MS - 1:  # times are rounded
            since = self._alone_since_ms[name]
            self._world.report(Kind.LOST, f"{place}: a delete marker after {now_ms - since} ms: {marker}")
