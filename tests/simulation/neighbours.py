"""Connections between agents, in memory: the zone cache's calls, as bytes, between the real ends of them.

Place: under VirtualLoop.create_connection; the asker's end is agent/peers/connection.py, at the
other end the agent's dispatcher serves what arrives, in its process.
Fault model: there is no agent, or the connection is cut, or the other end stops answering without a
signal; requests and answers are slow, or altered on the way; an agent is killed, paused or stopped
between a question and its answer. An owner with wrong memory read it wrongly (bucket.py).
"""

from __future__ import annotations

import asyncio
import contextvars
import struct
from collections.abc import Callable
from typing import TYPE_CHECKING

from headrace.protocol.frames import read_request_header
from headrace.protocol.request import ClientConnection, CloseConnection, Request
from headrace.storage.errors import InvalidError
from tests.simulation.bucket import flipped
from tests.simulation.faults import Fault
from tests.simulation.problems import Kind

if TYPE_CHECKING:
    from tests.simulation.agents import Process
    from tests.simulation.world import World

LATENCY = (0.0002, 0.004)
SLOW_SECONDS = (0.02, 0.8)
DEATH_SECONDS = (0.0, 0.1)
MENU = (Fault.NEIGHBOUR_CUT, Fault.NEIGHBOUR_SILENT, Fault.NEIGHBOUR_SLOW, Fault.NEIGHBOUR_ALTERED)
PREFIX = struct.Struct(">i")


async def dial(world: World, protocol: asyncio.BufferedProtocol, node_id: int) -> NeighbourConnection:
    """The transport of a new connection to that agent. ConnectionRefusedError if there is no agent."""
    fault = world.faults.draw(MENU)
    if fault is Fault.NEIGHBOUR_SILENT:
        await world.loop.create_future()
    await asyncio.sleep(world.network_rng.uniform(*LATENCY))
    process = world.agents[node_id - 1].process
    if process is None or not process.serving.is_set() or fault is Fault.NEIGHBOUR_CUT:
        raise ConnectionRefusedError(f"simulated: no process at agent {node_id}")
    return NeighbourConnection(world, protocol, process)


class NeighbourConnection(asyncio.Transport):
    """The asker's transport, and the other agent's end of it."""

    def __init__(self, world: World, protocol: asyncio.BufferedProtocol, process: Process) -> None:
        super().__init__()
        self._world = world
        self._protocol = protocol
        self._process = process
        self._asker = contextvars.copy_context()
        self._connection = ClientConnection(world.next_connection(), f"agent:{process.agent.node_id}")
        self._is_over = self._is_silent = False
        self._last_question = self._last_answer = 0.0
        process.connections[self] = None

    # -- the asker's end

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._is_over:
            return
        fault = self._world.faults.draw(MENU)
        if fault is Fault.NEIGHBOUR_CUT:
            self._world.later(self._world.network_rng.uniform(*SLOW_SECONDS), self.close)
        self._is_silent = self._is_silent or fault is Fault.NEIGHBOUR_SILENT
        frame = bytes(data[PREFIX.size :])
        self._last_question = max(self._last_question, self._world.loop.time() + self._delay(fault))
        context = self._process.context
        self._world.loop.call_at(self._last_question, self._arrive, self._altered(frame, fault), context=context)

    def abort(self) -> None:
        self.close()

    def close(self) -> None:
        """Both ends learn of it."""
        if not self._is_over:
            self._is_over = self._connection.closed = True
            self._process.connections.pop(self, None)
            self._world.loop.call_soon(self._protocol.connection_lost, None, context=self._asker)

    # -- the other agent's end, in its process

    def lose_process(self) -> None:
        """It was killed."""
        if self._world.faults.strikes(Fault.HALF_OPEN):
            self._is_silent = True
        else:
            self._world.later(self._world.network_rng.uniform(*DEATH_SECONDS), self.close)

    def _arrive(self, frame: bytes) -> None:
        if not self._is_over:
            self._world.loop.create_task(self._serve(memoryview(frame)))

    async def _serve(self, frame: memoryview) -> None:
        process = self._process
        try:
            header = read_request_header(frame)
            key, version, body = header.api_key, header.api_version, frame[header.body_start :]
            now = process.clock.monotonic()
            response = await process.dispatcher.handle(
                Request(self._connection, key, version, header.correlation_id, None, body, now)
            )
        except (CloseConnection, InvalidError):
            self.close()
            return
        except Exception as error:
            self._world.report(Kind.CRASHED, f"call of a neighbour failed: {error!r}")
            self.close()
            return
        if response.buffers is not None:
            self._answer(b"".join(response.buffers))

    def _answer(self, frame: bytes) -> None:
        if self._is_silent:
            return
        fault = self._world.faults.draw(MENU)
        if fault is Fault.NEIGHBOUR_SILENT:
            self._is_silent = True
            return
        if fault is Fault.NEIGHBOUR_CUT:
            self.close()
            return
        self._world.neighbour_answers += 1
        self._last_answer = max(self._last_answer, self._world.loop.time() + self._delay(fault))
        data = PREFIX.pack(len(frame)) + self._altered(frame, fault)
        self._world.loop.call_at(self._last_answer, self._deliver, data, context=self._asker)

    def _deliver(self, data: bytes) -> None:
        deliver(data, self._protocol, lambda: self._is_over)

    # -- the way between

    def _delay(self, fault: Fault | None) -> float:
        rng = self._world.network_rng
        return rng.uniform(*LATENCY) + (rng.uniform(*SLOW_SECONDS) if fault is Fault.NEIGHBOUR_SLOW else 0.0)

    def _altered(self, frame: bytes, fault: Fault | None) -> bytes:
        """One bit is another. Lengths stay: a broken frame length is broken framing (zone_cache/test_hostile.py)."""
        return flipped(frame, self._world.network_rng) if fault is Fault.NEIGHBOUR_ALTERED else frame


def deliver(data: bytes, protocol: asyncio.BufferedProtocol, is_over: Callable[[], bool]) -> None:
    """Give the bytes to the asker, as its loop would, until the connection is over."""
    left = memoryview(data)
    while left and not is_over():
        buffer = memoryview(protocol.get_buffer(-1))
        size = min(len(buffer), len(left))
        buffer[:size] = left[:size]
        protocol.buffer_updated(size)
        left = left[size:]
