"""What the agent's limits allow one connection: a place among the sockets, memory for a frame, reading at its quota.

Place: AcceptedSocket is made at accept (server.py), before anything is read or allocated for the socket, and held by
the protocol that serves it, whichever it is. connection.py asks FrameMemory between the head of a frame and its
allocation (frames.py), and Muting when a request was read and when its answer with the throttle time is made.
Invariant: a socket counts once: in admission under its client's address, and among the newcomers until its client is
known. It counts until `ended` is called for the first time.
At most one frame per connection is admitted or waits. A frame of an API and size that is not read raises before
anything is reserved. While others wait for memory, a frame has to make progress, or it `stalls`. A connection with a
client over its quota is not read until nothing is owed. The debt is looked at again every second, because a quota
may be raised, and other agents may use more or less.
Source: KIP-219 (answer at once, then mute).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from headrace.agent.access.quotas.enforcement import QuotaEnforcer, RequestUse
from headrace.agent.listener.admission import Newcomer
from headrace.agent.listener.host import ConnectionHost, Entrance
from headrace.agent.listener.memory import Client, MemoryBudget
from headrace.agent.listener.replies import Slot
from headrace.config.addresses import counted_address
from headrace.config.memory_budget import CONNECTION_BYTES, TLS_CONNECTION_BYTES, TLS_HANDSHAKE_BYTES
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.frames import FrameHead
from headrace.protocol.request import ClientConnection, Request
from headrace.storage.errors import InvalidError

if TYPE_CHECKING:
    from headrace.agent.listener.host import ConnectionHost

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
        self.newcomer: Newcomer | None = None
        """None once its client is known."""
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
        if self.newcomer is None and not self._has_ended:
            now = self._host.clock.monotonic()
            self.newcomer = self._entrance.newcomers.enter(counted_address(self.client[0]), now, self._give_up)
        return not self._has_ended

    def handshake_begins(self) -> None:
        """Count what TLS allocates from now on."""
        self._takes(TLS_HANDSHAKE_BYTES)

    def name(self, client: tuple[str, int]) -> None:
        """A balancer has said who the client is."""
        self.client = client
        if self.newcomer is not None:
            self.newcomer.move(counted_address(client[0]))

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

    def established(self) -> None:
        """Its client is known: from now on it is closed for no other."""
        if self.newcomer is not None:
            self.newcomer.leave()
            self.newcomer = None

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
        self.newcomer = None
        if for_others:
            self._host.metrics.refused("max.unauthenticated.connections")
            self.close("too_many_unauthenticated", detail=self._stage)
        else:
            # Idle links of other agents (agent/cluster/controller/agent_links.py) never authenticate; they connect
            # again.
            level = logging.DEBUG if self._stage == AUTHENTICATION else logging.INFO
            self.close(self._stage, detail="not complete in time", level=level)


REQUEST_BYTES = 1024
"""What a request in progress uses besides its frame, about."""
STALL_SECONDS = 2.0
"""While others wait for memory, a started frame must make progress in this time,"""
START_SECONDS = 5.0
HURRIED_BYTES_PER_SECOND = 256 * 1024
"""Least rate at which bytes arrive after the first 5 s."""
WHOLE_SECONDS = 30.0
"""A frame of any size is complete after so many more: Kafka's producers then give it up (request.timeout.ms)."""


def _not_admitted(head: FrameHead) -> None:
    """The connection has ended."""


class FrameMemory:
    """The memory of frames, for one connection."""

    client: Client = ("", "", "")
    """Principal, address and connection: they take turns."""

    def __init__(self, host: ConnectionHost, admitted: Callable[[FrameHead], None]) -> None:
        """`admitted` is called for a frame that had to wait: open it, but start no request within the call."""
        self._host = host
        self._admitted = admitted
        self._budget = host.requests
        """The share that the frame uses or waits for."""
        self._is_produce = False
        self._reserved_bytes = 0
        self.awaited: FrameHead | None = None
        """The frame that waits for memory, or for the answer to the Fetch before it."""
        self._fetching = False
        self._began_at = 0.0
        self._progress_at = 0.0

    def admit(self, head: FrameHead, client: ClientConnection) -> bool:
        """Return whether the frame may be opened now; InvalidError if its API takes no frame of that size."""
        allowed, limit = self._host.limits.largest_frame(head.api_key, client)
        if head.size > allowed:
            self._host.metrics.refused(limit)
            raise InvalidError(
                f"frame larger than its API takes: api_key={head.api_key} size={head.size} max={allowed}"
            )
        if head.api_key == ApiKey.FETCH and self._fetching:
            self.awaited = head
            return False
        return self._reserve(head)

    def saw_bytes(self) -> None:
        """Bytes arrived while a frame is open."""
        if self._reserved_bytes:
            self._progress_at = self._host.clock.monotonic()
            if self._is_produce:
                self._host.produce_bytes.saw(self._progress_at)

    def take(self) -> tuple[int, MemoryBudget]:
        """(bytes, their share) of the frame, which is complete: the caller gives them back."""
        size, self._reserved_bytes = self._reserved_bytes, 0
        if size and self._is_produce:
            self._host.produce_bytes.half_received -= 1
        return size, self._budget

    def drop(self) -> None:
        """Give up the frame, whether it waits or is half read."""
        if self.awaited is not None:
            waits_for_fetch = self.awaited.api_key == ApiKey.FETCH and self._fetching
            self.awaited = None
            if not waits_for_fetch:
                self._budget.withdraw(self._on_memory)
        size, budget = self.take()
        budget.release(size)

    def release(self) -> None:
        """The connection has ended: admit nothing more, and hold no reference to it."""
        self._admitted = _not_admitted

    def fetch_started(self) -> None:
        """The next Fetch waits for the answer to this one, so that their replies do not pile up."""
        self._fetching = True

    def fetch_answered(self) -> None:
        """A Fetch that waits may be read now."""
        self._fetching = False
        head = self.awaited
        if head is not None and head.api_key == ApiKey.FETCH:
            self.awaited = None
            if self._reserve(head):
                self._admitted(head)

    def holds_needed_memory(self) -> bool:
        """Return whether a half-read frame holds memory that others wait for."""
        return self._reserved_bytes > 0 and self._budget.waiting > 0

    def stalls(self, now: float, filled_bytes: int) -> bool:
        """Return whether the open frame, of which `filled_bytes` arrived, comes too slowly while others wait."""
        rate = max(HURRIED_BYTES_PER_SECOND, self._reserved_bytes / WHOLE_SECONDS)
        allowed = START_SECONDS + filled_bytes / rate
        return now - self._progress_at > STALL_SECONDS or now - self._began_at > allowed

    def _reserve(self, head: FrameHead) -> bool:
        self._is_produce = head.api_key == ApiKey.PRODUCE
        self._budget = self._host.budget if self._is_produce else self._host.requests
        if not self._budget.reserve(head.size + REQUEST_BYTES, self._on_memory, self.client):
            self.awaited = head
            return False
        self._reserved(head)
        return True

    def _reserved(self, head: FrameHead) -> None:
        self._reserved_bytes = head.size + REQUEST_BYTES
        self._began_at = self._progress_at = self._host.clock.monotonic()
        if self._is_produce:
            self._host.produce_bytes.half_received += 1
            self._host.produce_bytes.saw(self._began_at)

    def _on_memory(self) -> None:
        """The budget granted what `awaited` needs."""
        assert self.awaited is not None
        head, self.awaited = self.awaited, None
        self._reserved(head)
        self._admitted(head)


_LEAST_SECONDS, _MOST_SECONDS = 0.001, 1.0
"""Shortest and longest time between two looks at a debt."""


def _not_read_on() -> None:
    """The connection has ended."""


class Muting:
    """Muting of one connection."""

    def __init__(self, host: ConnectionHost, on_end: Callable[[], None]) -> None:
        self._host, self._on_end = host, on_end
        self.is_on = False

    def charge(self, slot: Slot, request: Request, size_bytes: int, quotas: QuotaEnforcer) -> None:
        """The request of this slot was read."""
        slot.use = quotas.arrived(request, size_bytes)
        if slot.use is not None and (seconds := slot.use.wait()):
            self.begin(slot.use, seconds)

    def settle(self, slot: Slot) -> None:
        """The answer of this slot is made."""
        if seconds := slot.throttle():
            self.begin(slot.use, seconds)

    def begin(self, use: RequestUse | None, seconds: float) -> None:
        """Mute for so long, or as long as `use` owes something. Nothing changes if it is muted."""
        if not self.is_on:
            self.is_on = True
            waiting = asyncio.get_running_loop().create_task(self._wait(use, seconds))
            self._host.muted.add(waiting)
            waiting.add_done_callback(self._host.muted.discard)

    def stop(self) -> None:
        """The connection ends: there is nothing to wait for."""
        self.is_on = False

    def release(self) -> None:
        """The connection has ended: hold no reference to it."""
        self.stop()
        self._on_end = _not_read_on

    async def _wait(self, use: RequestUse | None, seconds: float) -> None:
        while seconds > 0 and self.is_on:
            nap = min(max(seconds, _LEAST_SECONDS), _MOST_SECONDS)
            await self._host.clock.sleep(nap)
            seconds = seconds - nap if use is None else use.wait()
        if self.is_on:
            self.is_on = False
            self._on_end()
