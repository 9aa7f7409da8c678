"""This agent's links to all others, over which clients' requests go in envelopes.

Place: under forwarding.py; the other end is service.py. A link is opened when the first request needs one, and
closed when the agent leaves.
Invariant: there is one link per registration of an agent. Envelopes are sent in the order of `forward`, also if the
link is being opened, so those of one client's connection to one agent keep their order; answers come in any order. A
request is sent at most once: when the link is lost, or was silent for SILENT_SECONDS, each request without an answer
is `LOST`, and is never sent again. It starts at the other agent within START_SECONDS of its arrival here, or not at
all; that is less than SILENT_SECONDS, so a request that was given up for silence does not start later. A request is
not sent after its client has disconnected. When a client's connection ends, every link on which it was named says
so.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge

from headrace.agent.peers.channel import FORWARDING
from headrace.agent.peers.connection import PeerConnection, PeerTerms
from headrace.agent.peers.forwarding.wire import (
    ANSWER_BYTES_MAX,
    NEWEST_ENVELOPE,
    NONCE_BYTES,
    OPENED_BYTES,
    PROVEN,
    Envelope,
    EnvelopeKind,
    ForwardOutcome,
    Opening,
    decode_answer,
    decode_opened,
    encode_envelope,
    encode_opening,
    link_key,
)
from headrace.metastore.api.agents import Listener
from headrace.metastore.log.image import AgentImage, MetadataImage
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.request import ClientConnection, Request
from headrace.storage.clock import Clock, within
from headrace.storage.errors import CorruptError, HeadraceError, UnavailableError


class ForwardMetrics:
    """One set per agent; its HTTP listener shows `registry`."""

    def __init__(self, registry: CollectorRegistry) -> None:
        requests = Counter(
            "headrace_forwarded_requests_total",
            "Clients' requests that one agent passed on to another",
            ["direction"],
            registry=registry,
        )
        self.sent = requests.labels("sent")
        self.served = requests.labels("served")
        self.lost = Counter(
            "headrace_forwarded_lost_total",
            "Forwarded requests that were answered COORDINATOR_NOT_AVAILABLE because their link was lost",
            registry=registry,
        )
        self.dropped = Counter(
            "headrace_forwarded_dropped_total",
            "Forwarded requests that did not start: too late, or their client was gone",
            registry=registry,
        )
        self.refused = Counter(
            "headrace_forwarded_refused_total",
            "Links and envelopes that were refused: without the cluster's secret, or malformed",
            registry=registry,
        )
        self.links = Gauge("headrace_forward_links", "Open links to other agents", registry=registry)


logger = logging.getLogger(__name__)

OPEN_SECONDS = 2.0
REST_SECONDS = 0.5
"""After a failure to open it, requests are lost at once for so long."""
PING_SECONDS = 1.5
START_SECONDS = 4.0
SILENT_SECONDS = 5.0

LOST: tuple[None, bytes] = (None, b"")
Answer = tuple[ForwardOutcome | None, bytes | memoryview]
"""What became of a request, and what follows; LOST if that is not known."""


class ForwardLink:
    """Link to one registration of an agent. For one event loop."""

    def __init__(
        self,
        node_id: int,
        address: Listener,
        terms: PeerTerms,
        clock: Clock,
        rng: random.Random,
        metrics: ForwardMetrics,
    ) -> None:
        self._node_id, self._address = node_id, address
        self._terms, self._clock, self._rng, self._metrics = terms, clock, rng, metrics
        self._connection: PeerConnection | None = None
        self._key = b""
        self._version = NEWEST_ENVELOPE
        self._queue: list[tuple[Request, int, asyncio.Future[Answer]]] = []
        """Requests for the link that is being opened, with their deadlines, in order."""
        self._clients: set[int] = set()
        """Connections that were named on the open link."""
        self._rests_until = 0.0
        self._pinged_at: float | None = None
        """When the ping without an answer was sent."""
        self._opening: asyncio.Task[None] | None = None
        self._watching: asyncio.Task[None] | None = None

    def forward(self, request: Request) -> asyncio.Future[Answer]:
        """Send the request, after all that were forwarded before. The result never is an exception."""
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        deadline_ms = self._deadline_ms()
        if self._connection is not None and not self._connection.closed:
            self._send(request, deadline_ms, answer)
        elif self._clock.monotonic() < self._rests_until:
            self._lose(answer)
        else:
            self._queue.append((request, deadline_ms, answer))
            if self._opening is None or self._opening.done():
                self._opening = asyncio.get_running_loop().create_task(self._start())
        return answer

    def ended(self, connection_id: int) -> None:
        """A client's connection ended: what it asked for and did not start yet must not start."""
        if connection_id in self._clients:
            self._clients.discard(connection_id)
            if self._connection is not None and not self._connection.closed:
                envelope = Envelope(EnvelopeKind.ENDED, connection_id)
                number = self._connection.next_id()
                self._connection.tell(encode_envelope(envelope, self._key, number, self._version))

    async def close(self) -> None:
        """Give up what waits."""
        if self._connection is not None:
            self._connection.close()
        tasks = [task for task in (self._opening, self._watching) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._lose_queue()

    # -- the link's tasks

    async def _start(self) -> None:
        """Open the link, and send what waits for it."""
        if self._watching is not None:
            self._watching.cancel()
        try:
            connection = await self._open()
        except HeadraceError as error:
            logger.warning("forwarding: link not opened: node_id=%d error=%s", self._node_id, error)
            self._rests_until = self._clock.monotonic() + REST_SECONDS
            self._lose_queue()
            return
        except Exception:
            self._lose_queue()  # else its requests would wait without end
            raise
        self._connection = connection
        self._clients.clear()
        self._pinged_at = None
        self._watching = asyncio.get_running_loop().create_task(self._watch(connection))
        if self._version >= PROVEN:
            self._ping(connection)  # before all others
        queue, self._queue = self._queue, []
        for waiting in queue:
            self._send(*waiting)

    async def _open(self) -> PeerConnection:
        """UnavailableError or CorruptError if the other agent does not open it in time."""
        try:
            return await within(self._clock, OPEN_SECONDS, self._exchange(), lambda connection: connection.close())
        except TimeoutError:
            raise FORWARDING.error(UnavailableError, "no answer in time") from None

    async def _exchange(self) -> PeerConnection:
        connection = await self._terms.connect(FORWARDING, self._address.host, self._address.port)
        try:
            nonce = self._rng.randbytes(NONCE_BYTES)
            opening = Opening(self._terms.now_ms(), self._terms.own_node_id(), self._node_id, NEWEST_ENVELOPE, nonce)
            number = connection.next_id()
            frame, mac = encode_opening(opening, self._terms.secret, number)
            version, other = decode_opened(await connection.ask(number, frame, OPENED_BYTES), self._terms.secret, mac)
            if not 1 <= version <= NEWEST_ENVELOPE:
                raise FORWARDING.error(CorruptError, f"unknown version of envelopes: version={version}")
        except BaseException:
            connection.close()
            raise
        self._key, self._version = link_key(self._terms.secret, mac, other), version
        return connection

    async def _watch(self, connection: PeerConnection) -> None:
        """Close the link when it is silent: while requests wait, it must answer a ping within SILENT_SECONDS."""
        self._metrics.links.inc()
        try:
            while not connection.closed:
                await self._clock.sleep(PING_SECONDS)
                if self._pinged_at is None:
                    if connection.waiting and not connection.closed:
                        self._ping(connection)
                elif self._clock.monotonic() - self._pinged_at >= SILENT_SECONDS:
                    logger.warning(
                        "forwarding: link is silent: node_id=%d waiting=%d", self._node_id, connection.waiting
                    )
                    return
        finally:
            self._metrics.links.dec()
            connection.close()

    def _ping(self, connection: PeerConnection) -> None:
        """Ask for an answer; the first envelope of a link also proves that this agent has its key."""
        self._pinged_at = self._clock.monotonic()
        number = connection.next_id()
        frame = encode_envelope(Envelope(EnvelopeKind.PING, 0), self._key, number, self._version)
        connection.send(number, frame, ANSWER_BYTES_MAX).add_done_callback(partial(self._ponged, connection))

    def _ponged(self, connection: PeerConnection, frame: asyncio.Future[memoryview]) -> None:
        if not frame.cancelled() and frame.exception() is None and connection is self._connection:
            self._pinged_at = None

    def _deadline_ms(self) -> int:
        """START_SECONDS from now, less the time for which the link was silent already."""
        silent = 0.0 if self._pinged_at is None else self._clock.monotonic() - self._pinged_at
        return self._terms.now_ms() + int((START_SECONDS - silent) * 1000)

    # -- requests

    def _send(self, request: Request, deadline_ms: int, answer: asyncio.Future[Answer]) -> None:
        connection, client = self._connection, request.connection
        if answer.done():  # its handler was cancelled
            return
        if connection is None or connection.closed or client.closed or self._terms.now_ms() > deadline_ms:
            self._lose(answer)
            return
        number = connection.next_id()
        self._clients.add(client.connection_id)
        envelope = Envelope(
            EnvelopeKind.REQUEST,
            client.connection_id,
            deadline_ms,
            request.api_key,
            request.api_version,
            request.correlation_id,
            client.listener,
            client.peer,
            request.client_id,
            client.principal,
            request.body,
        )
        self._metrics.sent.inc()
        frame = encode_envelope(envelope, self._key, number, self._version)
        connection.send(number, frame, ANSWER_BYTES_MAX).add_done_callback(
            partial(self._answered, connection, self._key, number, answer)
        )

    def _answered(
        self,
        connection: PeerConnection,
        key: bytes,
        number: int,
        answer: asyncio.Future[Answer],
        frame: asyncio.Future[memoryview],
    ) -> None:
        if frame.cancelled() or frame.exception() is not None:
            self._lose(answer)
            return
        try:
            found = decode_answer(frame.result(), key, number)
        except CorruptError as error:
            logger.warning("forwarding: link closed: node_id=%d error=%s", self._node_id, error)
            connection.close()
            self._lose(answer)
            return
        if not answer.done():
            answer.set_result(found)

    def _lose(self, answer: asyncio.Future[Answer]) -> None:
        if not answer.done():
            self._metrics.lost.inc()
            answer.set_result(LOST)

    def _lose_queue(self) -> None:
        queue, self._queue = self._queue, []
        for _, _, answer in queue:
            self._lose(answer)


_LONG = frozenset({ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP})
"""Requests that may wait for other members for minutes."""

MakeLink = Callable[[int, Listener], ForwardLink]


class Links:
    """Created for one agent; `on_image` gets every new image."""

    def __init__(self, make: MakeLink, inter_broker: str | None) -> None:
        self._make = make
        self._inter_broker = inter_broker
        self._links: dict[tuple[int, int], ForwardLink] = {}
        self._waiting: dict[asyncio.Future[Answer], int] = {}
        """Requests without an answer -> API key."""
        self._clients: set[ClientConnection] = set()
        """Open connections of clients that a link has named."""
        self._closing: set[asyncio.Task[None]] = set()
        self._draining = False

    def forward(self, agent: AgentImage, request: Request) -> asyncio.Future[Answer]:
        """Send the request to this agent, in the order of the calls."""
        if self._draining and request.api_key in _LONG:
            return _lost()
        key = agent.node_id, agent.broker_epoch
        link = self._links.get(key)
        if link is None:
            link = self._links[key] = self._make(agent.node_id, agent.endpoint(self._inter_broker))
        client = request.connection
        if client not in self._clients:
            self._clients.add(client)
            client.call_when_closed(partial(self._ended, client))
        answer = link.forward(request)
        if not answer.done():
            self._waiting[answer] = request.api_key
            answer.add_done_callback(self._forget)
        return answer

    def on_image(self, image: MetadataImage) -> None:
        """Close the links to registrations that are gone."""
        registered = {(agent.node_id, agent.broker_epoch) for agent in image.agents.values()}
        for key in self._links.keys() - registered:
            task = asyncio.get_running_loop().create_task(self._links.pop(key).close())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    def drain(self) -> None:
        """Give up what may wait for minutes: clients continue at other agents."""
        self._draining = True
        for answer, api_key in list(self._waiting.items()):
            if api_key in _LONG and not answer.done():
                answer.set_result(LOST)

    async def close(self) -> None:
        """Close every link."""
        links, self._links = self._links, {}
        await asyncio.gather(*(link.close() for link in links.values()), *self._closing)

    def _ended(self, client: ClientConnection) -> None:
        self._clients.discard(client)
        for link in self._links.values():
            link.ended(client.connection_id)

    def _forget(self, answer: asyncio.Future[Answer]) -> None:
        self._waiting.pop(answer, None)


def _lost() -> asyncio.Future[Answer]:
    answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
    answer.set_result(LOST)
    return answer
