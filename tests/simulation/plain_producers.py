"""Producers without idempotence, which never send twice what may have been stored.

CAREFUL: one batch in flight, none is sent again. PIPELINED: several in flight on one connection; what
was refused for certain is sent again, in order, once everything in flight has its answer. FORGETFUL:
acks=0, it sends and forgets.
Without an answer a batch is given up: its outcome is unknown, and nothing else is claimed of it.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from typing import TYPE_CHECKING

from tests.simulation import protocol
from tests.simulation.idempotent_producer import BACKOFF_SECONDS, RETRIABLE
from tests.simulation.messages import OK, TIMED_OUT, Attempt, Batch
from tests.simulation.metadata import Place
from tests.simulation.network import SimulatedConnection
from tests.simulation.problems import Kind
from tests.simulation.produce_call import Identity, make_request, produce, version_of

if TYPE_CHECKING:
    from tests.simulation.world import World

FORGETFUL = 0
DEFINITE = tuple(code for code in RETRIABLE if code != TIMED_OUT)


class PlainProducer:
    """`window`: batches in flight; 1 for the careful one, or FORGETFUL."""

    def __init__(self, world: World, name: str, place: Place, window: int, count: int) -> None:
        self.name = name
        self.world = world
        self.place = place
        self._window = window
        self._count = count
        self.rng = rng = random.Random(world.client_rng.getrandbits(64))
        self._by_id = rng.random() < 0.5
        self._timeout_ms = rng.choice((300, 800, 1500))
        self._patience = rng.uniform(0.4, 1.2)
        self._connection: SimulatedConnection | None = None
        self._queue: deque[Batch] = deque()
        self._on_wire = 0
        self._is_draining = False
        self._rest = asyncio.Event()

    async def run(self) -> None:
        for _ in range(self._count):
            if self.rng.random() < 0.5:  # else right behind the one before
                await asyncio.sleep(self.rng.expovariate(1 / self.world.plan.send_interval))
            self._queue.append(self.create())
            self._pump()
        while self._queue or self._on_wire:
            self._rest.clear()
            await self._rest.wait()

    def create(self) -> Batch:
        """The next batch."""
        return self.world.create_batch(self.name, self.place, self.rng, is_idempotent=False)

    def unresolved(self) -> list[Batch]:
        return list(self._queue)

    def _pump(self) -> None:
        if not self._on_wire:
            self._is_draining = False
        while self._queue and not self._is_draining and (self._on_wire < self._window or self._window == FORGETFUL):
            connection = self._pick_connection()
            if connection.is_closed:
                self.world.later(self.rng.uniform(*BACKOFF_SECONDS), self._pump)
                break
            if self._window == FORGETFUL:
                self._send_and_forget(connection, self._queue.popleft())
            else:
                self._on_wire += 1
                self.world.spawn(self._send(connection, self._queue.popleft()))
        self._rest.set()

    def _send_and_forget(self, connection: SimulatedConnection, batch: Batch) -> None:
        sent = make_request(
            self.world, connection, {self.place: (batch, Identity())}, by_id=self._by_id, timeout_ms=1000, acks=0
        )
        connection.send(protocol.PRODUCE, version_of(sent), sent.body)

    async def _send(self, connection: SimulatedConnection, batch: Batch) -> None:
        attempts = await produce(
            self.world,
            connection,
            {self.place: (batch, Identity())},
            by_id=self._by_id,
            timeout_ms=self._timeout_ms,
            patience=self._patience,
        )
        self._on_wire -= 1
        self._take(batch, attempts[self.place])
        self._pump()

    def _take(self, batch: Batch, attempt: Attempt) -> None:
        code = attempt.code
        if code is None or code in (OK, TIMED_OUT):
            return
        if code not in DEFINITE:
            self.world.report(Kind.SPURIOUS, f"{batch} code={code}")
        elif self._window > 1:
            self._put_back(batch)
            self._is_draining = True

    def _put_back(self, batch: Batch) -> None:
        """Put batches back in order of first sending."""
        later = [other for other in self._queue if other.number < batch.number]
        self._queue.insert(len(later), batch)

    def _pick_connection(self) -> SimulatedConnection:
        """A pipelined producer keeps its connection as long as it runs: order is promised per connection."""
        connection = self._connection
        if connection is None or connection.is_closed or (self._window == 1 and self.rng.random() < 0.3):
            connection = self._connection = self.world.connect(self.rng)
        return connection
