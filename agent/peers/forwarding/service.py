"""Forwarding composed: this agent's links, and what it serves for others.

Place: created by agent/serve/paths.py.
Invariant: an agent serves what others forward in every mode, so that each of them may begin to forward at any time.
Nothing is sent after `close`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import partial

from headrace.agent.cluster.shared_address import SharedAddress
from headrace.agent.cluster.view import ClusterView
from headrace.agent.peers.channel import ENVELOPE_KEY, OPEN_KEY
from headrace.agent.peers.forwarding.forwarding import Forwarding
from headrace.agent.peers.forwarding.link import ForwardLink
from headrace.agent.peers.forwarding.links import Links
from headrace.agent.peers.forwarding.metrics import ForwardMetrics
from headrace.agent.peers.forwarding.routes import Route
from headrace.agent.peers.forwarding.serving import ForwardServer
from headrace.agent.peers.terms import PeerTerms
from headrace.metastore.api.agents import PROVEN_LINKS, SHARED_ADDRESS, Listener
from headrace.metastore.process_context import ProcessContext
from headrace.protocol.request import RequestHandler


class ForwardService:
    """`wrap` handlers, then `serve`; finally `drain` and `close`."""

    def __init__(
        self,
        context: ProcessContext,
        terms: PeerTerms,
        view: ClusterView,
        shared: SharedAddress,
        unavailable: Mapping[int, RequestHandler],
        handle: RequestHandler,
    ) -> None:
        """`unavailable`: handlers that answer as if no coordinator was known. `handle` serves any client's request."""
        clock, rng, metrics = context.clock, context.rng, ForwardMetrics(context.registry)

        def make_link(node_id: int, address: Listener) -> ForwardLink:
            return ForwardLink(node_id, address, terms, clock, rng, metrics)

        self.links = Links(make_link, terms.listener)
        self._forwarding = Forwarding(view, shared, self.links, unavailable)
        self._server = ForwardServer(terms, handle, rng, metrics, proves=partial(_proves_links, view))

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
