"""The composed zone cache: the client side for the read path, and the server side for other agents.

Place: created by agent/fetch/service.py if the agent has the cluster's secret.
Invariant: client and server share only the chunk cache; a server never asks other agents. Nothing
runs after `close`.
"""

from __future__ import annotations

from headrace.agent.cluster.view import ClusterView
from headrace.agent.cluster.zone_traffic import Path, ZoneTraffic
from headrace.agent.fetch.files.cache import ChunkCache
from headrace.agent.fetch.metrics import FetchMetrics
from headrace.agent.fetch.zone_cache.asking import Peers
from headrace.agent.fetch.zone_cache.metrics import ZoneCacheMetrics
from headrace.agent.fetch.zone_cache.owners import ChunkOwners
from headrace.agent.fetch.zone_cache.serving import ZoneCacheServer
from headrace.agent.fetch.zone_cache.shared import SharedCache
from headrace.agent.peers.terms import PeerTerms
from headrace.metastore.process_context import ProcessContext


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
