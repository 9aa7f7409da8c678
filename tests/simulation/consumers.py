"""Consumers: they poll from offset 0, follow the offsets they are given, and change agents at will.

Others ask for offsets: the latest, the earliest, by time; and begin to read there, through another agent.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import TYPE_CHECKING

from kio.schema.errors import ErrorCode

from tests.simulation import protocol
from tests.simulation.clocks import EPOCH_MS
from tests.simulation.fetch_session import FetchSession, without_session
from tests.simulation.idempotent_producer import UNKNOWN
from tests.simulation.messages import OK
from tests.simulation.metadata import Place, Topic
from tests.simulation.network import SimulatedConnection
from tests.simulation.problems import Kind
from tests.simulation.protocol import FetchAnswer, Position
from tests.simulation.reading import Listing, Poll, read_entries

if TYPE_CHECKING:
    from tests.simulation.world import World

OUT_OF_RANGE = int(ErrorCode.offset_out_of_range)
STORAGE_ERROR = int(ErrorCode.kafka_storage_error)
LATEST, EARLIEST = -1, -2
PATIENCE_SECONDS = 2.5
BACKOFF_SECONDS = (0.02, 0.15)
EVERYTHING = 1 << 20


def is_plain(topic: Topic) -> bool:
    """Return whether clients name it by its name, and find every record that was sent."""
    return not topic.is_mortal and not topic.is_compacted


class Reader:
    """One client that fetches. `positions`: the next offset of each partition it reads."""

    def __init__(self, world: World, name: str, rng: random.Random, *, by_id: bool) -> None:
        self.name = name
        self.positions: dict[Place, int] = {}
        self._world = world
        self._rng = rng
        self._by_id = by_id

    async def poll(
        self,
        connection: SimulatedConnection,
        places: Sequence[Place],
        *,
        max_wait_ms: int = 0,
        min_bytes: int = 1,
        max_bytes: int = EVERYTHING,
        session: FetchSession | None = None,
    ) -> bool:
        """One Fetch of `places`; False when nothing came of it, for now.

        Within a session a partition is named again only when its position moved, so its limit stays.
        """
        limits = (1, 200, max_bytes) if session is None and max_bytes != EVERYTHING else (max_bytes,)
        wanted = {place: Position(self.positions[place], self._rng.choice(limits)) for place in places}
        body = protocol.encode_fetch(
            session.ask(wanted) if session else without_session(wanted),
            by_id=self._by_id,
            max_wait_ms=max_wait_ms,
            min_bytes=min_bytes,
            max_bytes=max_bytes,
        )
        sent_at, asked_in_calm = self._world.loop.time(), self._world.is_final
        version = protocol.FETCH_BY_ID if self._by_id else protocol.FETCH_BY_NAME
        exchange = await connection.ask(protocol.FETCH, version, body, PATIENCE_SECONDS)
        frame = exchange.answer.result()
        if frame is None:
            if session:
                session.unanswered()
            return False
        error, session_id, answers = protocol.read_fetch(frame, places, by_id=self._by_id)
        if session:
            session.answered(error, session_id)
        came = True
        for place, answer in answers.items():
            if answer.code == OK:
                self._take(connection, place, sent_at, answer)
            else:
                came = self._refused(place, answer.code, is_calm=asked_in_calm) and came
        return came

    def _take(self, connection: SimulatedConnection, place: Place, sent_at: float, answer: FetchAnswer) -> None:
        position = self.positions[place]
        where = f"{self.name} at {place}:{position}"
        entries = read_entries(self._world, answer.records, where)
        now = self._world.loop.time()
        poll = Poll(
            self.name,
            connection.node_id,
            connection.owner,
            place,
            position,
            sent_at,
            now,
            answer.high_watermark,
            entries,
        )
        self._world.polls.append(poll)
        offsets = [entry.base_offset for entry in entries]
        self._world.note("poll", self.name, str(place), position, answer.high_watermark, *offsets)
        if entries:
            self.positions[place] = max(position, entries[-1].last_offset + 1)

    def _refused(self, place: Place, code: int, *, is_calm: bool) -> bool:
        """False when it should be tried again a little later. `is_calm`: whether it was asked after all faults."""
        self._world.note("refused poll", self.name, str(place), code)
        if code in UNKNOWN and place.topic.deleted_at is not None:
            del self.positions[place]
            return True
        if code == OUT_OF_RANGE and self.positions[place] < self._world.log_start_of(place):
            self.positions[place] = self._world.log_start_of(place)
            return True
        if code == OUT_OF_RANGE:
            self._world.report(Kind.REWOUND, f"{self.name} at {place}:{self.positions[place]} got out of range")
        elif code != STORAGE_ERROR:
            self._world.report(Kind.SPURIOUS, f"{self.name} at {place}: code={code}")
        elif is_calm:
            self._world.report(Kind.UNSEEN, f"{self.name} at {place}:{self.positions[place]} got a storage error")
        return False


class Consumer(Reader):
    """Reads everything from the beginning; `run` returns once it has come to the end of every partition."""

    def __init__(self, world: World, name: str) -> None:
        rng = random.Random(world.client_rng.getrandbits(64))
        super().__init__(world, name, rng, by_id=rng.random() < 0.6)
        self._keeps_sessions = rng.random() < 0.4
        self._sticks = 1.0 if self._keeps_sessions else rng.choice((0.3, 0.8, 0.97))
        self._max_bytes = rng.choice((150, 400, 2000, EVERYTHING))
        self._max_wait_ms = rng.choice((0, 100, 400))
        self._met: set[Place] = set()

    async def run(self) -> None:
        connection, session = self._connect()
        while not self._is_done():
            self._meet_new_topics()
            if connection.is_closed or self._rng.random() > self._sticks:
                connection.close()
                connection, session = self._connect()
            came = bool(self.positions) and await self.poll(
                connection,
                self._some_places(),
                max_wait_ms=self._max_wait_ms,
                min_bytes=self._rng.choice((1, 1, 300)),
                max_bytes=self._max_bytes,
                session=session,
            )
            await asyncio.sleep(self._rng.uniform(*BACKOFF_SECONDS) if not came else self._pause())

    def lagging(self) -> dict[Place, int]:
        """Its offset in partitions that have more."""
        return {place: at for place, at in self.positions.items() if at < self._world.end_of(place)}

    def _connect(self) -> tuple[SimulatedConnection, FetchSession | None]:
        return self._world.connect(self._rng), FetchSession() if self._keeps_sessions else None

    def _is_done(self) -> bool:
        return self._world.is_final and not self.lagging()

    def _pause(self) -> float:
        return self._rng.uniform(0.005, 0.08)

    def _meet_new_topics(self) -> None:
        for topic in self._world.metadata.topics:
            if (topic.is_mortal and not self._by_id) or topic.is_compacted:
                continue
            for place in topic.places():
                if place not in self._met:
                    self._met.add(place)
                    self.positions[place] = 0

    def _some_places(self) -> list[Place]:
        places = list(self.positions)
        if not self._keeps_sessions and self._rng.random() < 0.3:
            places = self._rng.sample(places, self._rng.randint(1, len(places)))
        return places


class OffsetAsker(Reader):
    """Asks for offsets until the world is calm, and starts to read at the answer."""

    def __init__(self, world: World, name: str) -> None:
        rng = random.Random(world.client_rng.getrandbits(64))
        super().__init__(world, name, rng, by_id=False)

    async def run(self) -> None:
        places = [place for topic in self._world.metadata.topics if is_plain(topic) for place in topic.places()]
        while not self._world.is_calm:
            await asyncio.sleep(self._rng.expovariate(5))
            place = self._rng.choice(places)
            offset = await self._ask(place, self._rng.choice((LATEST, LATEST, EARLIEST, self._some_time())))
            if offset >= 0:
                self.positions = {place: offset}
                await self.poll(self._world.connect(self._rng), [place])

    def _some_time(self) -> int:
        return EPOCH_MS + int(self._rng.uniform(0, 1.2) * self._world.loop.time() * 1000)

    async def _ask(self, place: Place, timestamp: int) -> int:
        """The offset, -1 if there is none or no answer."""
        connection = self._world.connect(self._rng)
        sent_at = self._world.loop.time()
        exchange = await connection.ask(
            protocol.LIST_OFFSETS,
            protocol.LIST_OFFSETS_VERSION,
            protocol.encode_list_offsets(place, timestamp),
            PATIENCE_SECONDS,
        )
        connection.close()
        frame = exchange.answer.result()
        if frame is None:
            return -1
        code, _, offset = protocol.read_list_offsets(frame)
        if code != OK:
            if code != STORAGE_ERROR:
                self._world.report(Kind.SPURIOUS, f"{self.name} lists {place}: code={code}")
            return -1
        self._world.listings.append(Listing(place, timestamp, sent_at, self._world.loop.time(), offset))
        self._world.note("listing", str(place), timestamp, offset)
        return offset
