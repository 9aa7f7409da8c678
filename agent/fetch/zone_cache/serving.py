"""The zone cache composed: the client side for the read path, with the server side for other agents.

Place: created by agent/fetch/service.py if the agent has the cluster's secret. ZoneCacheServer is the handler of the
private API key on the Kafka listener: it serves ranges of chunks from memory or with one GET.
Invariant: client and server share only the chunk cache; a server never asks other agents, so calls cannot form a
loop. Nothing is read for a caller without the cluster's secret: its connection is closed. The ranges being served
are limited; above the limit a range is answered BUSY and the caller reads from the store. Nothing runs after
`close`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from headrace.agent.cluster.view import ClusterView
from headrace.agent.cluster.zone import Path, ZoneTraffic
from headrace.agent.fetch.files.cache import ChunkCache
from headrace.agent.fetch.metrics import FetchMetrics
from headrace.agent.fetch.zone_cache.shared import ChunkOwners, Peers, SharedCache, ZoneCacheMetrics
from headrace.agent.peers.channel import ZONE_CACHE
from headrace.agent.peers.connection import PeerTerms
from headrace.agent.peers.zone_cache_wire import BUSY, FAILED, VERSION, decode_ask, encode_answer
from headrace.metastore.api.cluster import opened_with
from headrace.metastore.process_context import ProcessContext
from headrace.protocol.request import CloseConnection, Request, Response
from headrace.storage.errors import HeadraceError, InvalidError
from headrace.storage.segment.file_range import FileRange

log = logging.getLogger(__name__)

SERVED_BYTES_MAX = 128 * 1024 * 1024
"""Ranges over all calls in progress."""


class ZoneCacheServer:
    """A Handler. `on_served` is called with (caller's node id, bytes) for each call."""

    def __init__(
        self,
        terms: PeerTerms,
        cache: ChunkCache,
        metrics: ZoneCacheMetrics,
        on_served: Callable[[int, int], None],
    ) -> None:
        self._terms = terms
        self._cache = cache
        self._metrics = metrics
        self._on_served = on_served
        self._serving_bytes = 0

    async def __call__(self, request: Request) -> Response:
        """One answer per range. CloseConnection for an unauthorized, stale or misdirected request."""
        ZONE_CACHE.check_version(request.api_version, VERSION)
        try:
            (ask, mac), secret = opened_with(self._terms.secret, lambda secret: decode_ask(request.body, secret))
            ZONE_CACHE.check_addressee(ask.owner, self._terms.own_node_id(), ask.sent_ms, self._terms.now_ms())
        except (InvalidError, CloseConnection):
            self._metrics.refused.inc()
            raise
        request.connection.is_agent = True
        self._metrics.rpcs_served.inc()
        self._metrics.ranges_served.inc(len(ask.ranges))
        size = ask.size_bytes
        if self._serving_bytes and self._serving_bytes + size > SERVED_BYTES_MAX:
            return Response(encode_answer(request.correlation_id, secret, mac, [BUSY] * len(ask.ranges)))
        self._serving_bytes += size
        try:
            answers = await asyncio.gather(*(self._read(wanted) for wanted in ask.ranges))
        finally:
            self._serving_bytes -= size
        served = sum(len(answer) for answer in answers if not isinstance(answer, int))
        self._on_served(ask.asker, served)
        request.connection.replies.charge(served)  # as records: else agents that do not read would use the reserve
        return Response(encode_answer(request.correlation_id, secret, mac, answers), served)

    async def _read(self, wanted: FileRange) -> memoryview | int:
        try:
            return (await self._cache.read(wanted)).data
        except HeadraceError as error:
            log.warning("zone cache: cannot read range: file=%s start=%d error=%s", wanted.file_id, wanted.start, error)
            return FAILED


class ZoneCache:
    """`shared` reads for this agent, `handle` for the others."""

    def __init__(
        self,
        context: ProcessContext,
        terms: PeerTerms,
        cache: ChunkCache,
        view: ClusterView,
        traffic: ZoneTraffic,
        fetch_metrics: FetchMetrics,
    ) -> None:
        self._view = view
        self._traffic = traffic
        metrics = ZoneCacheMetrics(context.registry)
        peers = Peers(terms, context.clock, metrics, timeout_ms=context.settings.zone_cache_timeout_ms)
        owners = ChunkOwners(view, on_members=peers.forget_gone)
        self.shared = SharedCache(cache, owners, peers, metrics, fetch_metrics)
        self.handle = ZoneCacheServer(terms, cache, metrics, self._on_served)

    async def close(self) -> None:
        """Stop requesting; close the connections."""
        await self.shared.close()

    def _on_served(self, asker: int, size_bytes: int) -> None:
        agent = self._view.image.agents.get(asker)
        self._traffic.count(Path.ZONE_CACHE, agent.rack if agent is not None else None, size_bytes)
