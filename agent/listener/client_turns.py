"""A lock that the addresses of clients get in turn, for work that is large for the event loop or for memory.

Place: receive.py reads the records of large batches one batch at a time, because what a batch unpacks to is not in the
memory budget; the consumer groups' coordinator changes one group in one turn of the event loop.
Invariant: one holder at a time. An address with many requests delays another by one of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from headrace.agent.listener.memory import MemoryBudget
from headrace.protocol.request import Request


class ClientTurns:
    """The lock."""

    def __init__(self) -> None:
        self._turn = MemoryBudget(1)

    @asynccontextmanager
    async def turn(self, client: str) -> AsyncIterator[None]:
        """Wait for this client's turn, and have it until exit."""
        has_turn = asyncio.Event()
        if not self._turn.reserve(1, has_turn.set, (client,)):
            try:
                await has_turn.wait()
            except BaseException:
                self._give_up(has_turn)
                raise
        try:
            yield
        finally:
            self._turn.release(1)

    def _give_up(self, has_turn: asyncio.Event) -> None:
        if has_turn.is_set():
            self._turn.release(1)
        else:
            self._turn.withdraw(has_turn.set)


def client_of(request: Request) -> str:
    """The address of the request's client."""
    return request.connection.peer.rpartition(":")[0]
