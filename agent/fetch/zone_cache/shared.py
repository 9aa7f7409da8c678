"""Slices near the high watermark: from the zone's agent that keeps them, else from the store.

Place: between read.py and the chunk cache, for what is not in this agent's own memory.
Invariant: per agent that is asked there is one call, however many slices of however many files; who
wants the same bytes at the same time shares it. What an agent does not deliver rightly and in time is
read from the store by the chunk cache, with one GET. A file whose bytes turned out wrong once is never
asked of another agent again while that is remembered.
If the process dies here clients repeat their fetch.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Sequence

from headrace.agent.fetch.cache import ChunkCache, Piece, joined
from headrace.agent.fetch.metrics import FetchMetrics
from headrace.agent.fetch.zone_cache.asking import Peers
from headrace.agent.fetch.zone_cache.metrics import Fallback, ZoneCacheMetrics
from headrace.agent.fetch.zone_cache.owners import ChunkOwners
from headrace.agent.fetch.zone_cache.wire import Part
from headrace.metastore.log.image import AgentImage
from headrace.storage.errors import HeadraceError

_Key = tuple[uuid.UUID, int, int]
_Arrival = asyncio.Future[memoryview | None]
"""A part's bytes, or None: read them from the store."""


class SharedCache:
    """Reads as the chunk cache does, asking the zone first."""

    def __init__(
        self, cache: ChunkCache, owners: ChunkOwners, peers: Peers, metrics: ZoneCacheMetrics, fetch: FetchMetrics
    ) -> None:
        self._cache = cache
        self.owners = owners
        self._peers = peers
        self._metrics = metrics
        self._fetch_metrics = fetch
        self._asked: dict[_Key, _Arrival] = {}
        self._calls: set[asyncio.Task[None]] = set()

    async def read(self, slices: Sequence[Part]) -> list[Piece | HeadraceError]:
        """One result per slice, in order; a slice may span chunks."""
        calls: dict[int, tuple[AgentImage, list[Part]]] = {}
        plans = [[(part, self._arrival(part, calls)) for part in self._parts(wanted)] for wanted in slices]
        for owner, parts in calls.values():
            call = asyncio.create_task(self._call(owner, parts))
            self._calls.add(call)
            call.add_done_callback(self._calls.discard)
        return await asyncio.gather(*(self._assemble(plan) for plan in plans))

    async def close(self) -> None:
        """End the calls in progress; their readers see them cancelled."""
        calls = list(self._calls)
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        self._peers.close()

    def _parts(self, wanted: Part) -> list[Part]:
        return [wanted._replace(start=start, end=end) for start, end in self._cache.split(wanted.start, wanted.end)]

    def _arrival(self, part: Part, calls: dict[int, tuple[AgentImage, list[Part]]]) -> _Arrival | None:
        """What to wait for, adding the part to its owner's call unless it is asked already; None: read it here."""
        if self._cache.peek(part.file_id, part.start, part.end) or self._cache.was_forgotten(part.file_id):
            return None
        key = part.file_id, part.start, part.end
        arrival = self._asked.get(key)
        if arrival is None:
            owner = self.owners.owner(part.file_id, self._cache.chunk_of(part.start))
            if owner is None:
                return None
            calls.setdefault(owner.node_id, (owner, []))[1].append(part)
            arrival = self._asked[key] = asyncio.get_running_loop().create_future()
        return arrival

    async def _call(self, owner: AgentImage, parts: list[Part]) -> None:
        """Ask once, keep what came, and tell everybody who waits."""
        answers: list[memoryview | Fallback] = []
        try:
            answers = await self._peers.ask(owner, parts)
        finally:
            for number, part in enumerate(parts):
                arrival = self._asked.pop((part.file_id, part.start, part.end))
                arrival.set_result(self._take(part, answers[number]) if answers else None)

    def _take(self, part: Part, answer: memoryview | Fallback) -> memoryview | None:
        if isinstance(answer, Fallback):
            self._metrics.fell_back(answer)
            return None
        self._fetch_metrics.read_from_zone.inc(len(answer))
        kept = memoryview(bytes(answer))  # a window would keep the whole answer in memory
        self._cache.keep_slice(part.file_id, part.start, kept)
        return kept

    async def _assemble(self, plan: Sequence[tuple[Part, _Arrival | None]]) -> Piece | HeadraceError:
        try:
            pieces = await asyncio.gather(*(self._part(part, arrival) for part, arrival in plan))
        except HeadraceError as error:
            return error
        return pieces[0] if len(pieces) == 1 else Piece(joined([piece.data for piece in pieces]), checked=False)

    async def _part(self, part: Part, arrival: _Arrival | None) -> Piece:
        # Shielded: the call goes on for the others when this reader's connection closes.
        data = None if arrival is None else await asyncio.shield(arrival)
        return Piece(data, checked=False) if data is not None else await self._cache.read(*part)
