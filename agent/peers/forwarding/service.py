"""Forwarding composed: this agent's links, with what it serves for others as if their clients were connected to it.

Place: created by agent/serve/paths.py. ForwardServer has the handlers of the two private API keys on the Kafka
listener; it calls the handler of the request's API.
Invariant: an agent serves what others forward in every mode, so that each of them may begin to forward at any time.
Nothing is sent after `close`.
Nothing is done for a connection that was not opened with the cluster's secret: it is closed. A copied opening, sent
again, opens nothing: the connection is a link from the first envelope on, which proves the key that the nonce of
this agent made. Requests start in the order of their envelopes. A request does not start after its deadline, or once
its client's connection or its link has ended. It is never forwarded again: a request that needs a third agent gets
NOT_COORDINATOR from its handler. An error in a request ends its client's connection, not the link.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import partial

from headrace.agent.cluster.shared_address import SharedAddress
from headrace.agent.cluster.view import ClusterView
from headrace.agent.limits.work_slices import WorkSlices
from headrace.agent.peers.channel import ENVELOPE_KEY, FORWARDING, OPEN_KEY
from headrace.agent.peers.connection import PeerTerms
from headrace.agent.peers.forwarding.forwarding import Forwarding, Route
from headrace.agent.peers.forwarding.links import ForwardLink, ForwardMetrics, Links
from headrace.agent.peers.forwarding.wire import (
    NEWEST_ENVELOPE,
    NONCE_BYTES,
    OPEN_VERSION,
    PROVEN,
    Envelope,
    EnvelopeKind,
    ForwardOutcome,
    decode_envelope,
    decode_opening,
    encode_answer,
    encode_opened,
    link_key,
)
from headrace.metastore.api.agents import PROVEN_LINKS, SHARED_ADDRESS, Listener
from headrace.metastore.api.cluster import opened_with
from headrace.metastore.process_context import ProcessContext
from headrace.protocol.api_versions import WIDE
from headrace.protocol.request import ClientConnection, CloseConnection, Promise, Request, RequestHandler, Response
from headrace.storage.errors import InvalidError, TooManyElementsError

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class ServedLink:
    """What this agent knows of a link that another one opened."""

    asker: int
    key: bytes
    version: int
    last_number: int
    clients: dict[int, ClientConnection] = field(default_factory=dict)
    """The clients by their ids at the other agent."""


class ForwardServer:
    """`open` and `serve` are Handlers. `handle` serves a client's request."""

    def __init__(
        self,
        terms: PeerTerms,
        handle: RequestHandler,
        rng: random.Random,
        metrics: ForwardMetrics,
        proves: Callable[[int], bool],
    ) -> None:
        """`proves`: whether the agent with this node id proves its links."""
        self.served: frozenset[int] = frozenset()
        """The APIs that other agents may forward."""
        self._terms, self._handle, self._rng, self._metrics = terms, handle, rng, metrics
        self._proves = proves
        self._links: dict[ClientConnection, ServedLink] = {}

    def open(self, request: Request) -> Awaitable[Response]:
        """Make the connection a link. CloseConnection or InvalidError for an opening that is not for this agent."""
        try:
            FORWARDING.check_version(request.api_version, OPEN_VERSION)
            (opening, mac), secret = opened_with(
                self._terms.secret, lambda secret: decode_opening(request.body, secret)
            )
            FORWARDING.check_addressee(opening.asked, self._terms.own_node_id(), opening.sent_ms, self._terms.now_ms())
            if opening.newest_envelope < 1 or request.connection in self._links:
                raise _refusal("unsupported version, or opened already")
            if opening.newest_envelope < PROVEN and self._proves(opening.asker):
                raise _refusal(f"an opening from before the agent's upgrade: asker={opening.asker}")
        except (CloseConnection, InvalidError):
            self._metrics.refused.inc()
            raise
        version = min(opening.newest_envelope, NEWEST_ENVELOPE)
        nonce = self._rng.randbytes(NONCE_BYTES)
        connection = request.connection
        self._links[connection] = ServedLink(
            opening.asker, link_key(secret, mac, nonce), version, request.correlation_id
        )
        connection.is_link = version < PROVEN
        connection.call_when_closed(partial(self._lost, connection))
        return _Ready([encode_opened(request.correlation_id, secret, mac, version, nonce)])

    def serve(self, request: Request) -> Awaitable[Response]:
        """Serve one envelope. CloseConnection or InvalidError for one that does not belong to an open link."""
        link = self._links.get(request.connection)
        try:
            if link is None or request.api_version != link.version:
                raise _refusal("an envelope without an open link, or of another version")
            if request.correlation_id <= link.last_number:
                raise _refusal(f"a repeated envelope: number={request.correlation_id}")
            envelope = decode_envelope(request.body, link.key, request.correlation_id)
            if envelope.kind is EnvelopeKind.REQUEST and envelope.api_key not in self.served:
                raise _refusal(f"an api that is not forwarded: api_key={envelope.api_key}")
        except (CloseConnection, InvalidError):
            self._metrics.refused.inc()
            raise
        link.last_number = request.correlation_id
        request.connection.is_link = True
        if envelope.kind is EnvelopeKind.PING:
            return _Ready(encode_answer(request.correlation_id, link.key, ForwardOutcome.NO_ANSWER))
        if envelope.kind is EnvelopeKind.ENDED:
            if (gone := link.clients.pop(envelope.connection_id, None)) is not None:
                _end(gone)
            return _Ready(None)
        client = link.clients.get(envelope.connection_id)
        if client is None:
            client = link.clients[envelope.connection_id] = _client(request.connection, envelope)
        return self._serve(request, link, client, envelope)

    async def _serve(
        self, request: Request, link: ServedLink, client: ClientConnection, envelope: Envelope
    ) -> Response:
        outcome, buffers, reserved_bytes = ForwardOutcome.DROPPED, list[bytes | memoryview](), 0
        if client.closed or self._terms.now_ms() > envelope.deadline_ms:
            self._metrics.dropped.inc()
        else:
            self._metrics.served.inc()
            outcome, buffers, reserved_bytes = await self._outcome(request, client, envelope)
        return Response(encode_answer(request.correlation_id, link.key, outcome, buffers), reserved_bytes)

    async def _outcome(
        self, request: Request, client: ClientConnection, envelope: Envelope
    ) -> tuple[ForwardOutcome, list[bytes | memoryview], int]:
        inner = Request(
            client,
            envelope.api_key,
            envelope.api_version,
            envelope.correlation_id,
            envelope.client_id,
            memoryview(envelope.body),
            request.received_at,
        )
        try:
            if envelope.api_key in WIDE:
                await client.replies.reserve(0)
            response = await self._handle(inner)
            buffers = await response.encoded(WorkSlices().did)
        except TooManyElementsError as error:
            return ForwardOutcome.TOO_MANY_ELEMENTS, [str(error).encode()], 0
        except (CloseConnection, InvalidError) as error:
            return ForwardOutcome.CLOSE, [str(error).encode()], 0
        except Exception as error:
            logger.error(
                "forwarding: request failed: api_key=%d peer=%s", envelope.api_key, client.peer, exc_info=error
            )
            return ForwardOutcome.CLOSE, [b"the request failed at another agent"], 0
        if buffers is None:
            return ForwardOutcome.NO_ANSWER, [], response.reserved_bytes
        return ForwardOutcome.ANSWERED, buffers, response.reserved_bytes

    def _lost(self, connection: ClientConnection) -> None:
        link = self._links.pop(connection, None)
        for client in () if link is None else link.clients.values():
            _end(client)


class _Ready(Promise):
    """An answer that needs no task."""

    __slots__ = ("_buffers",)

    def __init__(self, buffers: list[bytes | memoryview] | None) -> None:
        super().__init__()
        self._buffers = buffers
        self.answer()

    def response(self) -> Response:
        return Response(self._buffers)


def _client(link: ClientConnection, envelope: Envelope) -> ClientConnection:
    """The client's connection as handlers see it."""
    return ClientConnection(
        envelope.connection_id,
        envelope.peer,
        envelope.principal,
        request_elements_max=link.request_elements_max,
        replies=link.replies,
        listener=envelope.listener,
        is_forwarded=True,
    )


def _refusal(event: str) -> CloseConnection:
    return FORWARDING.error(CloseConnection, event)


def _end(client: ClientConnection) -> None:
    client.closed = True
    if client.when_closed is not None:
        client.when_closed()


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
