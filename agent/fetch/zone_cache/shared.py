"""Byte ranges near the high watermark: from their owner in the zone, else from the store.

Place: between read.py and the chunk cache, for ranges that are not in this agent's memory.
Invariant: there is one call per owner, for any number of ranges and files; concurrent readers of the same bytes share
it. Ranges that an agent does not deliver correctly and in time are read from the store by the chunk cache, with one
GET. A file that once delivered wrong bytes is not requested from other agents again while that is remembered.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Sequence

from headrace.agent.fetch.files.cache import ChunkCache, joined
from headrace.agent.fetch.metrics import FetchMetrics
from headrace.agent.fetch.zone_cache.asking import Peers
from headrace.agent.fetch.zone_cache.metrics import Fallback, ZoneCacheMetrics
from headrace.agent.fetch.zone_cache.owners import ChunkOwners
from headrace.metastore.log.image import AgentImage
from headrace.storage.errors import HeadraceError
from headrace.storage.segment.file_range import FileRange, RangeBytes

_Key = tuple[uuid.UUID, int, int]
_Arrival = asyncio.Future[memoryview | None]
"""A range's bytes, or None: read them from the store."""


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

    async def read(self, ranges: Sequence[FileRange]) -> list[RangeBytes | HeadraceError]:
        """One result per range, in order; a range may span chunks."""
        calls: dict[int, tuple[AgentImage, list[FileRange]]] = {}
        plans = [[(within, self._arrival(within, calls)) for within in self._by_chunk(wanted)] for wanted in ranges]
        for owner, asked in calls.values():
            call = asyncio.create_task(self._call(owner, asked))
            self._calls.add(call)
            call.add_done_callback(self._calls.discard)
        return await asyncio.gather(*(self._assemble(plan) for plan in plans))

    async def close(self) -> None:
        """Cancel the calls in progress, also for their readers."""
        calls = list(self._calls)
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        self._peers.close()

    def _by_chunk(self, wanted: FileRange) -> list[FileRange]:
        return [wanted._replace(start=start, end=end) for start, end in self._cache.split(wanted.start, wanted.end)]

    def _arrival(self, wanted: FileRange, calls: dict[int, tuple[AgentImage, list[FileRange]]]) -> _Arrival | None:
        """Return what to wait for, adding the range to its owner's call unless it is asked already; None: read it
        here.
        """
        if self._cache.peek(wanted.file_id, wanted.start, wanted.end) or self._cache.was_forgotten(wanted.file_id):
            return None
        key = wanted.file_id, wanted.start, wanted.end
        arrival = self._asked.get(key)
        if arrival is None:
            owner = self.owners.owner(wanted.file_id, self._cache.chunk_of(wanted.start))
            if owner is None:
                return None
            calls.setdefault(owner.node_id, (owner, []))[1].append(wanted)
            arrival = self._asked[key] = asyncio.get_running_loop().create_future()
        return arrival

    async def _call(self, owner: AgentImage, ranges: list[FileRange]) -> None:
        """Send one call, keep the answer, and wake all its waiters."""
        answers: list[memoryview | Fallback] = []
        try:
            answers = await self._peers.ask(owner, ranges)
        finally:
            for number, wanted in enumerate(ranges):
                arrival = self._asked.pop((wanted.file_id, wanted.start, wanted.end))
                arrival.set_result(self._take(wanted, answers[number]) if answers else None)

    def _take(self, wanted: FileRange, answer: memoryview | Fallback) -> memoryview | None:
        if isinstance(answer, Fallback):
            self._metrics.fell_back(answer)
            return None
        self._fetch_metrics.read_from_zone.inc(len(answer))
        kept = memoryview(bytes(answer))  # a view would keep the whole answer in memory
        self._cache.keep_range(wanted.file_id, wanted.start, kept)
        return kept

    async def _assemble(self, plan: Sequence[tuple[FileRange, _Arrival | None]]) -> RangeBytes | HeadraceError:
        try:
            bodies = await asyncio.gather(*(self._read(wanted, arrival) for wanted, arrival in plan))
        except HeadraceError as error:
            return error
        return bodies[0] if len(bodies) == 1 else RangeBytes(joined([body.data for body in bodies]), checked=False)

    async def _read(self, wanted: FileRange, arrival: _Arrival | None) -> RangeBytes:
        # Shielded: the call continues for the others if this reader's connection closes.
        data = None if arrival is None else await asyncio.shield(arrival)
        return RangeBytes(data, checked=False) if data is not None else await self._cache.read(wanted)
