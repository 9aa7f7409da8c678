"""Both ends of a link as they were before openings were proven (version 1 of the envelopes), for tests of mixed agents.

Copied from the commit before; do not repair anything here.
"""

from __future__ import annotations

from collections.abc import Awaitable
from functools import partial

from headrace.agent.peers.channel import FORWARDING, WINDOW_MS
from headrace.agent.peers.connection import PeerConnection
from headrace.agent.peers.forwarding.links import ForwardLink
from headrace.agent.peers.forwarding.service import ForwardServer, ServedLink, _Ready
from headrace.agent.peers.forwarding.wire import (
    NONCE_BYTES,
    OPEN_VERSION,
    OPENED_BYTES,
    Opening,
    decode_opened,
    decode_opening,
    encode_opened,
    encode_opening,
    link_key,
)
from headrace.metastore.api.cluster import opened_with
from headrace.protocol.request import CloseConnection, Request, Response
from headrace.storage.errors import CorruptError, InvalidError

NEWEST_ENVELOPE = 1


class EarlierLink(ForwardLink):
    """Opens links of version 1 and sends requests at once."""

    async def _exchange(self) -> PeerConnection:
        connection = await self._terms.connect(FORWARDING, self._address.host, self._address.port)
        try:
            nonce = self._rng.randbytes(NONCE_BYTES)
            opening = Opening(self._terms.now_ms(), self._terms.own_node_id(), self._node_id, NEWEST_ENVELOPE, nonce)
            number = connection.next_id()
            frame, mac = encode_opening(opening, self._terms.secret, number)
            version, other = decode_opened(await connection.ask(number, frame, OPENED_BYTES), self._terms.secret, mac)
            if not 1 <= version <= NEWEST_ENVELOPE:
                raise CorruptError(f"link: unknown version of envelopes: version={version}")
        except BaseException:
            connection.close()
            raise
        self._key, self._version = link_key(self._terms.secret, mac, other), version
        return connection


class EarlierServer(ForwardServer):
    """Knows version 1 only: the connection is a link with the answer to its opening."""

    def open(self, request: Request) -> Awaitable[Response]:
        try:
            if request.api_version != OPEN_VERSION:
                raise CloseConnection("link: unsupported version")
            (opening, mac), secret = opened_with(
                self._terms.secret, lambda secret: decode_opening(request.body, secret)
            )
            if opening.asked != self._terms.own_node_id() or abs(self._terms.now_ms() - opening.sent_ms) > WINDOW_MS:
                raise CloseConnection(f"link: not for this agent, or stale: asked={opening.asked}")
            if opening.newest_envelope < 1 or request.connection in self._links:
                raise CloseConnection("link: unsupported version, or opened already")
        except (CloseConnection, InvalidError):
            self._metrics.refused.inc()
            raise
        version = min(opening.newest_envelope, NEWEST_ENVELOPE)
        nonce = self._rng.randbytes(NONCE_BYTES)
        connection = request.connection
        self._links[connection] = ServedLink(
            opening.asker, link_key(secret, mac, nonce), version, request.correlation_id
        )
        connection.is_link = True
        connection.when_closed = partial(self._lost, connection)
        return _Ready([encode_opened(request.correlation_id, secret, mac, version, nonce)])
