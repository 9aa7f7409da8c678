"""A client's connection to one life of an agent, in memory: requests in order, replies in order.

Fault model: the connection is reset before a request arrived or some time after it did, and either way
is slow. A request that was sent arrives even when its client has hung up meanwhile. A killed process
takes its connections with it; some are left half open, and their clients learn of it by waiting.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.protocol.request import ClientConnection, CloseConnection, Request
from headrace.storage.errors import InvalidError
from tests.simulation.faults import Fault
from tests.simulation.problems import Kind

if TYPE_CHECKING:
    from tests.simulation.agents import Process
    from tests.simulation.world import World

LATENCY = (0.0002, 0.004)
SLOW_SECONDS = (0.1, 0.8)
MENU = (Fault.RESET_BEFORE, Fault.RESET_AFTER, Fault.SLOW_CLIENT)
DEATH_SECONDS = (0.0, 0.1)


@dataclass(eq=False, slots=True)
class Exchange:
    """One request. `answer` is the reply's frame, or None when the connection ended before it came."""

    api_key: int
    version: int
    body: bytes
    answer: asyncio.Future[bytes | None]
    arrived_at: float | None = None
    settled_at: float | None = None
    frame: bytes | None = None
    is_fatal: bool = False


class SimulatedConnection:
    """`number` is unique in a run."""

    def __init__(self, world: World, process: Process | None) -> None:
        self._world = world
        self._process = process
        self._rng = world.network_rng
        self.number = world.next_connection()
        self.node_id = process.agent.node_id if process is not None else -1
        self.owner = process.owner if process is not None else -1
        """The process, as messages know it."""
        self.is_closed = process is None or not process.serving.is_set()
        self._connection = ClientConnection(self.number, f"client:{self.number}")
        self._pending: dict[Exchange, None] = {}
        self._slots: deque[Exchange] = deque()
        self._last_arrival = 0.0
        self._last_reply = 0.0
        if process is not None and not self.is_closed:
            process.connections[self] = None

    async def ask(self, api_key: int, version: int, body: bytes, timeout: float) -> Exchange:
        """The exchange once it is answered, or over. Who waits for `timeout` seconds hangs up."""
        exchange = self.send(api_key, version, body)
        timer = self._world.later(timeout, self._time_out, exchange)
        await exchange.answer
        timer.cancel()
        return exchange

    def send(self, api_key: int, version: int, body: bytes) -> Exchange:
        """Send without waiting."""
        exchange = Exchange(api_key, version, body, self._world.loop.create_future())
        if self.is_closed or self._process is None:
            exchange.answer.set_result(None)
            return exchange
        self._pending[exchange] = None
        fault = self._world.faults.draw(MENU)
        now = self._world.loop.time()
        self._last_arrival = max(self._last_arrival, now + self._delay(fault))
        if fault is Fault.RESET_BEFORE:
            self._world.later(self._last_arrival - now, self.close)
            return exchange
        if fault is Fault.RESET_AFTER:
            self._world.later(self._last_arrival - now + self._rng.uniform(0, 0.3), self.close)
        self._world.stay_until(self._last_arrival)
        self._world.loop.call_at(self._last_arrival, self._arrive, exchange, context=self._process.context)
        return exchange

    def close(self) -> None:
        """Nothing comes back any more."""
        self.is_closed = self._connection.closed = True
        if self._connection.when_closed is not None:
            self._connection.when_closed()
        if self._process is not None:
            self._process.connections.pop(self, None)
        pending, self._pending = self._pending, {}
        for exchange in pending:
            if not exchange.answer.done():
                exchange.answer.set_result(None)

    def lose_process(self) -> None:
        """It was killed."""
        if self._world.faults.strikes(Fault.HALF_OPEN):
            return
        self._world.later(self._rng.uniform(*DEATH_SECONDS), self.close)

    def _time_out(self, exchange: Exchange) -> None:
        if not exchange.answer.done():
            self.close()

    def _delay(self, fault: Fault | None) -> float:
        return self._rng.uniform(*LATENCY) + (self._rng.uniform(*SLOW_SECONDS) if fault is Fault.SLOW_CLIENT else 0.0)

    # -- the agent's side, in its process

    def _arrive(self, exchange: Exchange) -> None:
        process = self._process
        if process is None:
            return
        exchange.arrived_at = self._world.loop.time()
        request = Request(
            self._connection,
            exchange.api_key,
            exchange.version,
            self.number,
            "simulated",
            memoryview(exchange.body),
            process.clock.monotonic(),
        )
        self._slots.append(exchange)
        self._world.loop.create_task(self._serve(process, exchange, request))

    async def _serve(self, process: Process, exchange: Exchange, request: Request) -> None:
        process.in_progress[exchange.api_key] += 1
        try:
            response = await process.dispatcher.handle(request)
            exchange.frame = None if response.buffers is None else b"".join(response.buffers)
        except (CloseConnection, InvalidError):
            exchange.is_fatal = True
        except Exception as error:
            exchange.is_fatal = True
            self._world.report(Kind.CRASHED, f"request failed: api_key={exchange.api_key} error={error!r}")
        process.in_progress[exchange.api_key] -= 1
        exchange.settled_at = self._world.loop.time()
        self._flush()

    def _flush(self) -> None:
        """Send what is next in order."""
        while self._slots and self._slots[0].settled_at is not None:
            exchange = self._slots.popleft()
            now = self._world.loop.time()
            self._last_reply = max(self._last_reply, now + self._rng.uniform(*LATENCY))
            self._world.later(self._last_reply - now, self._reply, exchange)

    def _reply(self, exchange: Exchange) -> None:
        if exchange.is_fatal:
            self.close()
        elif exchange.frame is not None and not self.is_closed and not exchange.answer.done():
            self._pending.pop(exchange, None)
            exchange.answer.set_result(exchange.frame)
