"""Forwarding composed: this agent's links, and what it serves for others.

Place: created by agent/serve/paths.py.
Invariant: an agent serves what others forward in every mode, so that each of them may begin to forward at any time.
Nothing is sent after `close`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Mapping
from functools import partial

from prometheus_client import CollectorRegistry

from headrace.agent.cluster.shared_address import SharedAddress
from headrace.agent.cluster.view import ClusterView
from headrace.agent.peers.channel import ENVELOPE_KEY, OPEN_KEY
from headrace.agent.peers.connection import Connect, open_connection
from headrace.agent.peers.forwarding.forwarding import Forwarding
from headrace.agent.peers.forwarding.link import ForwardLink
from headrace.agent.peers.forwarding.links import Links
from headrace.agent.peers.forwarding.metrics import ForwardMetrics
from headrace.agent.peers.forwarding.routes import Route
from headrace.agent.peers.forwarding.serving import ForwardServer
from headrace.metastore.api.agents import PROVEN_LINKS, SHARED_ADDRESS, Listener
from headrace.protocol.request import RequestHandler
from headrace.storage.clock import Clock


class ForwardService:
    """`wrap` handlers, then `serve`; finally `drain` and `close`."""

    def __init__(
        self,
        secret: bytes,
        view: ClusterView,
        shared: SharedAddress,
        unavailable: Mapping[int, RequestHandler],
        handle: RequestHandler,
        now_ms: Callable[[], int],
        clock: Clock,
        rng: random.Random,
        registry: CollectorRegistry,
        *,
        inter_broker: str | None,
        connect: Connect = open_connection,
    ) -> None:
        """`unavailable`: handlers that answer as if no coordinator was known. `handle` serves any request of a client;
        `now_ms`: the database's clock."""
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
        self._forwarding = Forwarding(view, shared, self.links, unavailable)
        self._server = ForwardServer(
            secret,
            own_node_id=lambda: view.node_id,
            now_ms=now_ms,
            handle=handle,
            rng=rng,
            metrics=metrics,
            proves=partial(_proves_links, view),
        )

    def wrap(self, route: Route | None, handler: RequestHandler) -> RequestHandler:
        """Return the handler of any API; those with a route are forwarded to its agent."""
        return handler if route is None else self._forwarding.wrap(route, handler)

    def serve(self, served: Collection[int]) -> dict[int, RequestHandler]:
        """Return what serves the APIs `served` for other agents: handlers of the private APIs, by their keys."""
        self._server.served = frozenset(served)
        return {OPEN_KEY: self._server.open, ENVELOPE_KEY: self._server.serve}

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
