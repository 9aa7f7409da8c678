"""One accepted socket: admitted before anything is read or allocated for it, counted until it ends.

Place: made by arrival.py at accept; held by the protocol that serves the connection, whichever it is.
Invariant: a socket counts once: in admission under its client's address, and among the newcomers until its client is
known. It counts until `ended` is called for the first time.
"""

from __future__ import annotations

import asyncio
import logging

from headrace.agent.listener.host import ConnectionHost, Entrance
from headrace.agent.listener.newcomers import Newcomer
from headrace.config.addresses import counted_address
from headrace.config.memory_budget import CONNECTION_BYTES, TLS_CONNECTION_BYTES, TLS_HANDSHAKE_BYTES

HEADER, HANDSHAKE, AUTHENTICATION = "proxy_header", "tls_handshake", "unauthenticated"
"""What a newcomer has not finished: the reason when its time is over."""


def _break_cycle(transport: asyncio.Transport) -> None:
    """Remove the bound method that asyncio's transport keeps of itself. It makes a cycle of references, so a transport
    that is closed, with its TLS buffers, would stay allocated until the garbage collector runs. asyncio has no public
    call for this, and other transports (of tests) have no such attribute.
    """
    vars(transport).pop("_read_ready_cb", None)


class AcceptedSocket:
    """The socket of one connection, from accept to its end."""

    def __init__(
        self, host: ConnectionHost, entrance: Entrance, transport: asyncio.Transport, client: tuple[str, int]
    ) -> None:
        """`client`: the sender's address, until a balancer names another."""
        self._host, self._entrance, self._transport = host, entrance, transport
        self.client = client
        self._stage = AUTHENTICATION
        self._newcomer: Newcomer | None = None
        self._is_admitted = self._has_ended = self._is_reported = False
        self._bytes = 0
        self._takes(CONNECTION_BYTES)
        host.arriving.add(self)

    @property
    def peer(self) -> str:
        """The client's address and port."""
        return f"{self.client[0]}:{self.client[1]}"

    def wait(self, stage: str) -> bool:
        """It is a newcomer, at this stage; False if it was closed at once."""
        self._stage = stage
        if self._newcomer is None and not self._has_ended:
            now = self._host.clock.monotonic()
            self._newcomer = self._entrance.newcomers.enter(counted_address(self.client[0]), now, self._give_up)
        return not self._has_ended

    def handshake_begins(self) -> None:
        """Count what TLS allocates from now on."""
        self._takes(TLS_HANDSHAKE_BYTES)

    def name(self, client: tuple[str, int]) -> None:
        """A balancer has said who the client is."""
        self.client = client
        if self._newcomer is not None:
            self._newcomer.move(counted_address(client[0]))

    def admit(self) -> bool:
        """Return whether it is accepted, by the limits of its address and of all; else it is closed."""
        admission, address = self._entrance.admission, counted_address(self.client[0])
        is_ending = self._host.draining or self._host.suspended
        reason = admission.refusal(address, draining=is_ending)
        if reason == "too_many" and admission.has_room(address, without=1):
            self._entrance.newcomers.displace(self._host.clock.monotonic())  # frees the place of one newcomer
            reason = admission.refusal(address, draining=is_ending) if not self._has_ended else reason
        if reason:
            self.close(reason)
            return False
        admission.opened(address)
        self._is_admitted = True
        return True

    def served(self) -> None:
        """It is a KafkaConnection now, which ends it when the listener does."""
        self._host.arriving.discard(self)
        if self._stage == HANDSHAKE:
            self._stage = AUTHENTICATION
            self._takes(TLS_CONNECTION_BYTES)

    @property
    def is_new(self) -> bool:
        """Whether its client is not known yet."""
        return self._newcomer is not None

    def established(self) -> None:
        """Its client is known: from now on it is closed for no other."""
        if self._newcomer is not None:
            self._newcomer.leave()
            self._newcomer = None

    def close(self, reason: str, *, detail: object = "", level: int = logging.WARNING) -> None:
        """End it, count why, and say so once; `detail` for the log."""
        if not self._is_reported:
            self._is_reported = True
            shown = f"{reason}: {detail}" if detail else reason
            self._host.log_end("connection closed", self.peer, self._entrance.name, shown, level=level)
            self._host.metrics.connection_closed(reason)
        self.ended()
        self._transport.abort()

    def ended(self) -> None:
        """The socket is closed, or about to be."""
        if self._has_ended:
            return
        self._has_ended = True
        self.established()
        self._host.arriving.discard(self)
        self._takes(0)
        _break_cycle(self._transport)
        if self._is_admitted:
            self._entrance.admission.closed(counted_address(self.client[0]))

    def _takes(self, size_bytes: int) -> None:
        self._host.connection_bytes += size_bytes - self._bytes
        self._bytes = size_bytes

    def _give_up(self, for_others: bool) -> None:
        """The newcomers chose it, or its time is over."""
        self._newcomer = None
        if for_others:
            self._host.metrics.refused("max.unauthenticated.connections")
            self.close("too_many_unauthenticated", detail=self._stage)
        else:
            # Idle links of other agents (agent/cluster/controller/agent_links.py) never authenticate; they connect
            # again.
            level = logging.DEBUG if self._stage == AUTHENTICATION else logging.INFO
            self.close(self._stage, detail="not complete in time", level=level)
