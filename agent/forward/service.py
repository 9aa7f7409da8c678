"""Forwarding composed: this agent's links, and what it serves for others.

Place: created by agent/broker.py.
Invariant: an agent serves what others forward in every mode, so that each of them may begin to forward at any time.
Nothing is sent after `close`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection
from functools import partial

from prometheus_client import CollectorRegistry

from headrace.agent.cluster.shared_address import SharedAddress
from headrace.agent.cluster.view import ClusterView
from headrace.agent.dispatch import Dispatcher
from headrace.agent.fetch.zone_cache.connection import open_connection
from headrace.agent.forward.forwarding import Forwarding
from headrace.agent.forward.link import Connect, ForwardLink
from headrace.agent.forward.links import Links
from headrace.agent.forward.metrics import ForwardMetrics
from headrace.agent.forward.routes import Route
from headrace.agent.forward.serving import ForwardServer
from headrace.agent.groups.handlers import GroupHandlers
from headrace.agent.groups.offsets.group_offsets import GroupOffsetApi
from headrace.agent.peer_apis import ENVELOPE_KEY, OPEN_KEY
from headrace.config.settings import Settings
from headrace.metastore.api.agents import PROVEN_LINKS, SHARED_ADDRESS, Listener
from headrace.metastore.log.image import AgentImage, MetadataImage
from headrace.protocol.request import RequestHandler
from headrace.storage.clock import Clock


class ForwardService:
    """`wrap` handlers, then `register`; finally `drain` and `close`."""

    def __init__(
        self,
        secret: bytes,
        view: ClusterView,
        shared: SharedAddress,
        api: GroupOffsetApi,
        dispatcher: Dispatcher,
        settings: Settings,
        now_ms: Callable[[], int],
        clock: Clock,
        rng: random.Random,
        registry: CollectorRegistry,
        *,
        inter_broker: str | None,
        connect: Connect = open_connection,
    ) -> None:
        """`now_ms`: the database's clock."""
        metrics = ForwardMetrics(registry)

        def make_link(node_id: int, address: Listener) -> ForwardLink:
            return ForwardLink(
                node_id,
                address,
                secret=secret,
                own_node_id=lambda: view.node_id,
                now_ms=now_ms,
                clock=clock,
                rng=rng,
                metrics=metrics,
                connect=connect,
            )

        self.links = Links(make_link, inter_broker)
        nowhere = GroupHandlers(api, _NoCoordinator(view), settings, clock, rng, CollectorRegistry())
        self._forwarding = Forwarding(view, shared, self.links, nowhere.handlers)
        self._server = ForwardServer(
            *(secret, lambda: view.node_id, now_ms, dispatcher.handle, rng, metrics),
            proves=partial(_proves_links, view),
        )

    def wrap(self, route: Route | None, handler: RequestHandler) -> RequestHandler:
        """The handler of any API; those with a route are forwarded to its agent."""
        return handler if route is None else self._forwarding.wrap(route, handler)

    def register(self, dispatcher: Dispatcher, served: Collection[int]) -> None:
        """Serve the APIs `served` for other agents."""
        self._server.served = frozenset(served)
        dispatcher.register_unadvertised(OPEN_KEY, self._server.open)
        dispatcher.register_unadvertised(ENVELOPE_KEY, self._server.serve)

    def drain(self) -> None:
        """Clients that wait for other members continue at other agents."""
        self.links.drain()

    async def close(self) -> None:
        """Close the links."""
        await self.links.close()


def _proves_links(view: ClusterView, node_id: int) -> bool:
    agent = view.image.agents.get(node_id)
    forwards = None if agent is None else agent.features.get(SHARED_ADDRESS)
    return forwards is not None and forwards.max_level >= PROVEN_LINKS


class _NoCoordinator:
    """A ClusterView in which no group has a coordinator: handlers answer COORDINATOR_NOT_AVAILABLE."""

    def __init__(self, view: ClusterView) -> None:
        self._view = view

    @property
    def cluster_id(self) -> str:
        return self._view.cluster_id

    @property
    def commit_shards(self) -> int:
        return self._view.commit_shards

    @property
    def node_id(self) -> int:
        return self._view.node_id

    @property
    def broker_epoch(self) -> int:
        return self._view.broker_epoch

    @property
    def image(self) -> MetadataImage:
        return self._view.image

    async def catch_up(self) -> MetadataImage:
        return await self._view.catch_up()

    def leader(self, partition_key: int, zone: str | None = None) -> AgentImage | None:
        return self._view.leader(partition_key, zone)

    def coordinator(self, group_id: str) -> AgentImage | None:
        return None
