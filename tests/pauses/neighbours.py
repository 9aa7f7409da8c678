"""Connections between the two agents, in memory: calls of the zone cache and forwarded requests, as bytes, with the
real code at both ends.

Fault model: none. A call to a paused agent waits, and its answer arrives after the agent has gone on; an
agent that does not serve refuses connections.
"""

from __future__ import annotations

import asyncio
import contextvars
import struct
from typing import TYPE_CHECKING

from headrace.agent.peers.channel import ENVELOPE_KEY, OPEN_KEY
from headrace.protocol.frames import read_request_header
from headrace.protocol.request import ClientConnection, CloseConnection, Request
from tests.simulation.neighbours import deliver

if TYPE_CHECKING:
    from tests.pauses.process import Process
    from tests.pauses.world import World

PORTS_FROM = 9_000
"""The port of an agent is this much above its node id."""
WAY_SECONDS = 0.001
PREFIX = struct.Struct(">i")


async def dial(world: World, protocol: asyncio.BufferedProtocol, port: int) -> asyncio.Transport:
    """A connection to the agent at that port. ConnectionRefusedError if it does not serve."""
    await asyncio.sleep(WAY_SECONDS)
    process = next((process for process in world.processes if process.node_id + PORTS_FROM == port), None)
    if process is None or not process.is_serving:
        raise ConnectionRefusedError(f"port={port}")
    return NeighbourConnection(world, protocol, process)


class NeighbourConnection(asyncio.Transport):
    """The asker's transport, and the other agent's end of it."""

    def __init__(self, world: World, protocol: asyncio.BufferedProtocol, process: Process) -> None:
        super().__init__()
        self._world, self._protocol, self._process = world, protocol, process
        self._asker = contextvars.copy_context()
        self._connection = ClientConnection(world.next_number(), "neighbour")
        self._is_over = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        frame = bytes(data[PREFIX.size :])
        self._world.loop.call_later(WAY_SECONDS, self._arrive, frame, context=self._process.context)

    def abort(self) -> None:
        self.close()

    def close(self) -> None:
        """The asker learns of it."""
        if not self._is_over:
            self._is_over = self._connection.closed = True
            if self._connection.when_closed is not None:
                self._world.loop.call_soon(self._connection.when_closed, context=self._process.context)
            self._world.loop.call_soon(self._protocol.connection_lost, None, context=self._asker)

    def _arrive(self, frame: bytes) -> None:
        if not self._is_over:
            self._world.loop.create_task(self._serve(memoryview(frame)), context=self._process.context)

    async def _serve(self, frame: memoryview) -> None:
        header = read_request_header(frame)
        now = self._process.clock.monotonic()
        body = frame[header.body_start :]
        request = Request(self._connection, header.api_key, header.api_version, header.correlation_id, None, body, now)
        cache = self._process.fetch.zone_cache
        assert cache is not None
        handle = self._process.dispatcher.handle if header.api_key in (OPEN_KEY, ENVELOPE_KEY) else cache.handle
        try:
            response = await handle(request)
        except CloseConnection:
            self.close()
            return
        if response.buffers is not None:
            answer = b"".join(response.buffers)
            data = PREFIX.pack(len(answer)) + answer
            self._world.loop.call_later(WAY_SECONDS, self._deliver, data, context=self._asker)

    def _deliver(self, data: bytes) -> None:
        deliver(data, self._protocol, lambda: self._is_over)
