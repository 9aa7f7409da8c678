"""Clients of the compacted topic: producers of keyed records, and readers that begin at any offset.

A reader's run goes from an offset to the high watermark that it is shown, through any agents. It gets every last value
from there on, and the batches that it is sent leave out no offset.
"""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

from headrace.storage.records.codec import Record, decode_records
from headrace.storage.records.header import batch_crc
from headrace.storage.segment.reader import walk_batches
from tests.simulation.consumers import BACKOFF_SECONDS, Reader
from tests.simulation.messages import Batch
from tests.simulation.metadata import Place
from tests.simulation.network import SimulatedConnection
from tests.simulation.plain_producers import PlainProducer
from tests.simulation.problems import Kind
from tests.simulation.protocol import FetchAnswer

if TYPE_CHECKING:
    from tests.simulation.world import World

WINDOW = 3
FINAL_POLLS_MAX = 60


class KeyedProducer(PlainProducer):
    """Several batches in flight."""

    def __init__(self, world: World, name: str, place: Place, count: int) -> None:
        super().__init__(world, name, place, WINDOW, count)

    def create(self) -> Batch:
        return self.world.keyed.create(self.name, self.place, self.rng)


class KeyedReader(Reader):
    """Run after run, until the end is final; `run` returns after one more for each partition."""

    def __init__(self, world: World, name: str, rng: random.Random) -> None:
        super().__init__(world, name, random.Random(rng.getrandbits(64)), by_id=rng.random() < 0.5)
        self._seen: dict[int, Record] = {}
        self._end = 0

    async def run(self) -> None:
        places = self._world.keyed.places
        while not self._world.is_final:
            await self._run(self._rng.choice(places))
            await asyncio.sleep(self._rng.uniform(0.01, 0.2))
        for place in places:
            await self._run(place)

    def lagging(self) -> dict[Place, int]:
        """Its offset in the partition that it did not come to the end of."""
        return {place: at for place, at in self.positions.items() if at < self._world.end_of(place)}

    async def read_all(self, connection: SimulatedConnection, place: Place) -> None:
        """One agent alone must serve what is stored, from the log start and from any offset."""
        for first in (0, self._any_offset(place)):
            self._begin(place, max(first, self._world.log_start_of(place)))
            start = self.positions[place]
            for _ in range(FINAL_POLLS_MAX):
                if self.positions[place] >= self._world.end_of(place):
                    break
                await self.poll(connection, [place], max_wait_ms=200)
            else:
                at, end = self.positions[place], self._world.end_of(place)
                self._world.report(Kind.UNSEEN, f"{self.name} is at {place}:{at} of {end}")
            stored = {r.offset: r for r in self._world.keyed.stored(place) if r.offset >= start}
            if self._seen != stored:
                self._world.report(
                    Kind.INCONSISTENT, f"{self.name} from {place}:{start} read {list(self._seen)}, not {list(stored)}"
                )

    async def _run(self, place: Place) -> None:
        self._begin(place, self._any_offset(place))
        start = self.positions[place]
        while True:
            connection = self._world.connect(self._rng)
            came = await self.poll(connection, [place], max_bytes=self._rng.choice((150, 1 << 20)))
            connection.close()
            if came and self.positions[place] >= self._end:
                break
            await asyncio.sleep(self._rng.uniform(*BACKOFF_SECONDS))
        self._check(place, start)

    def _begin(self, place: Place, offset: int) -> None:
        self.positions, self._seen, self._end = {place: offset}, {}, 0

    def _any_offset(self, place: Place) -> int:
        return self._rng.randint(self._world.log_start_of(place), self._world.end_of(place))

    def _check(self, place: Place, start: int) -> None:
        first = max(start, self._world.log_start_of(place))
        for record in self._world.keyed.last_of_keys(place).values():
            is_due = first <= record.offset < self.positions[place] and record.value is not None
            if is_due and record.offset not in self._seen:
                self._world.report(Kind.UNSEEN, f"{self.name} from {place}:{start} missed a last value: {record}")

    def _take(self, connection: SimulatedConnection, place: Place, sent_at: float, answer: FetchAnswer) -> None:
        position = self.positions[place]
        where = f"{self.name} at {place}:{position}"
        written = self._world.keyed.written(place)
        for at, header in walk_batches(answer.records):
            data = answer.records[at : at + header.size]
            last_offset = header.base_offset + header.last_offset_delta
            if batch_crc(data) != header.crc:
                self._world.report(Kind.CORRUPT, f"{where}: wrong checksum: offset={header.base_offset}")
                break
            if not header.base_offset <= self.positions[place] <= last_offset:
                self._world.report(Kind.SKIPPED, f"{where}: {header.base_offset}-{last_offset} comes next")
            for record in decode_records(data):
                if record != written.get(record.offset):
                    self._world.report(Kind.INCONSISTENT, f"{where}: {record}, sent {written.get(record.offset)}")
                if record.offset >= position:
                    self._seen[record.offset] = record
            self.positions[place] = last_offset + 1
        self._end = answer.high_watermark
        self._world.note("keyed poll", self.name, str(place), position, answer.high_watermark, self.positions[place])
