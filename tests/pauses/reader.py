"""Consumers without a group, one per partition: each batch once, in order, until everything acknowledged was read.

Place: with the clients of clients.py, in the same schedules. A consumer asks the agents in turn, as through a load
balancer, so that a resumed agent answers too: from an index and a feed position of before its pause. A batch that it
repeats or leaves out is a problem.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from kio.schema.errors import ErrorCode

from headrace.protocol.request import ClientConnection, Request
from headrace.storage.records.header import read_header
from tests.pauses.clients import PAUSE_SECONDS, ask
from tests.pauses.process import Process
from tests.simulation import protocol
from tests.simulation.fetch_session import without_session
from tests.simulation.metadata import Place
from tests.simulation.protocol import Position

if TYPE_CHECKING:
    from tests.pauses.world import World

MAX_WAIT_MS = 100
LATEST = -1
MAX_BYTES = 1 << 20
AGAIN = (ErrorCode.not_leader_or_follower, ErrorCode.kafka_storage_error, ErrorCode.unknown_server_error)


class Reader:
    """`read`: (producer id, sequence) of every batch, in order of its offset, from the start of the last pass."""

    def __init__(self, world: World, place: Place, *, rereads: bool) -> None:
        """`rereads`: at the end of the log it begins again, so that resumed agents are asked for old offsets too."""
        self._world = world
        self.place = place
        self._rereads = rereads
        self._offset = 0
        self._process = world.processes[0]
        self.read: list[tuple[int, int]] = []
        self._last_pass: list[tuple[int, int]] = []

    async def run(self) -> None:
        while not self._world.is_over:
            answer = await ask(self._world, self._process, self._fetch(self._process))
            self._process = self._world.another(self._process)
            if answer is None or answer.code in AGAIN:
                await asyncio.sleep(PAUSE_SECONDS)
            elif answer.code != ErrorCode.none:
                self._world.problems.append(f"consumer refused: place={self.place.key} code={answer.code}")
                return
            elif self._rereads and not answer.records:
                self._last_pass, self.read, self._offset = self.read, [], 0
                await self._ask_for_the_end()
            else:
                self._take(answer.records)

    def knows(self, acknowledged: list[tuple[int, int]]) -> bool:
        """Return whether it has read exactly these batches; one that is read twice is a separate problem."""
        return acknowledged == (self._last_pass if self._rereads else self.read)

    def _take(self, records: memoryview) -> None:
        """Batches from the one that has the position: a fetch may return it whole."""
        at = 0
        while at + 12 < len(records):
            header = read_header(records, at)
            if header.base_offset != self._offset:
                self._world.problems.append(
                    f"consumer: partition={self.place.key} expected={self._offset} read={header.base_offset}"
                )
            self._offset = header.base_offset + header.record_count
            self.read.append((header.producer_id, header.base_sequence))
            at += 12 + header.batch_length

    async def _ask_for_the_end(self) -> None:
        """An agent may know less than others, but not more than there is."""
        process = self._process
        body = protocol.encode_list_offsets(self.place, LATEST)
        connection = ClientConnection(self._world.next_number(), "client")
        version = protocol.LIST_OFFSETS_VERSION
        now = process.clock.monotonic()
        request = Request(connection, protocol.LIST_OFFSETS, version, 1, "test", memoryview(body), now)
        response = await ask(self._world, process, process.fetch.handle_list_offsets(request))
        if response is None or response.buffers is None:
            return
        answer = protocol.read_list_offsets(b"".join(response.buffers))
        end = self._world.servers.model.partitions[self.place.key].high_watermark
        if answer.code == ErrorCode.none and answer.offset > end:
            self._world.problems.append(f"consumer: partition={self.place.key} told_end={answer.offset} end={end}")

    async def _fetch(self, process: Process) -> protocol.FetchAnswer | None:
        wanted = without_session({self.place: Position(self._offset, MAX_BYTES)})
        wait_ms = MAX_WAIT_MS * (self._world.next_number() % 2)  # every other one does not wait
        body = protocol.encode_fetch(wanted, by_id=True, max_wait_ms=wait_ms, min_bytes=1, max_bytes=MAX_BYTES)
        connection = ClientConnection(self._world.next_number(), "client")
        now = process.clock.monotonic()
        request = Request(connection, protocol.FETCH, protocol.FETCH_BY_ID, 1, "test", memoryview(body), now)
        response = await process.fetch.handle_fetch(request)
        if response.buffers is None:
            return None
        _, _, answers = protocol.read_fetch(b"".join(response.buffers), [self.place], by_id=True)
        return answers.get(self.place)
