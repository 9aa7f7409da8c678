"""One client's connection: frames in, requests started in order, replies out in the same order.

Place: between asyncio and the dispatcher; first and last step of every request.
Invariants: requests start in the order in which they arrived, and replies have the same order, except on a link from
another agent (agent/peers/forwarding), which matches replies by correlation id. The request after one that changes
something (ALONE) starts when that one is answered, as on Kafka's connections; so does a Fetch after a Fetch.
Requests in progress are limited (requests per connection; bytes of frames and replies over all connections): above
the limit the connection stops reading. While others wait for memory, a client that stalls within a frame or reads its
replies too slowly loses its connection, so that it holds memory for a few seconds only.
A client over its quota is answered at once, then not read until it owes nothing; an open frame is read to its end.
An error on a connection ends this connection, after the previous replies, and no other.
A handler is never cancelled because its client disconnected: a batch in the buffer stays there.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable
from functools import partial

from headrace.agent.access.quotas.client_traffic import CountedPair
from headrace.agent.limits.work_slices import WorkSlices
from headrace.agent.listener.connection_limits import AcceptedSocket, FrameMemory, Muting
from headrace.agent.listener.host import ConnectionHost, Entrance, asked_wait_seconds
from headrace.agent.listener.memory import ConnectionReplies
from headrace.agent.listener.replies import ReplyQueue, ReplyWriter, Slot
from headrace.config.addresses import counted_address
from headrace.protocol.answers import refusal
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.api_versions import ALONE, APIS, WIDE
from headrace.protocol.frames import TOKEN_HEADER, FrameHead, FrameReader, RequestHeader, read_request_header
from headrace.protocol.request import ClientConnection, CloseConnection, Promise, Request, Response
from headrace.storage.client_text import SHOWN_CHARACTERS, shown
from headrace.storage.errors import InvalidError, TooManyElementsError

logger = logging.getLogger(__name__)

_CAUTIOUS_BYTES = 4 * 1024
"""One read while memory is short: a connection that pauses keeps what it has read."""
_FRAME_SECONDS = 60.0
_FRAME_BYTES_PER_SECOND = 1024 * 1024
"""A started frame must be complete after 60 s plus 1 s per MiB, so that half a frame cannot hold memory
permanently."""
_LINK_INFLIGHT_MAX = 100_000
"""Requests in progress of a link from another agent, which has the requests of many clients; they are limited by the
memory for requests."""
_OTHERS_INFLIGHT_MAX = 64
"""Requests that are not Produce, until their replies are sent: each is a task, which may be a long one, and then a
reply that waits for earlier ones. A Produce request costs no more than its counted memory, and producers that do not
wait for answers send one for each few records.
"""
_TURN_REQUESTS = 64
_TURN_SECONDS = 0.01
"""One turn of the event loop starts no further request of a connection after so many, or after this time: those of
other connections come in between. A read may bring hundreds of requests, of which each may take 20 ms.
"""
_SENDER_SECONDS = 1.0
"""How long requests of the same client id count for the same pair without another look-up."""
_NEVER = float("inf")
_NO_BYTES = memoryview(b"")


class KafkaConnection(asyncio.BufferedProtocol):
    """The asyncio protocol of one connection."""

    _transport: asyncio.Transport
    _client: ClientConnection
    _writer: ReplyWriter
    _replies: ReplyQueue
    _reply_memory: ConnectionReplies

    def __init__(self, host: ConnectionHost, entrance: Entrance, accepted: AcceptedSocket) -> None:
        """`accepted`: its socket, which admission has let in."""
        self._host, self._entrance, self._accepted = host, entrance, accepted
        self._frames = FrameReader(host.limits.socket_request_max_bytes)
        self._held = b""
        """Bytes received after reading was paused."""
        self._direct = False
        """Whether the read in progress goes into the frame rather than the slab."""
        self._memory = FrameMemory(host, self._open_admitted)
        self._inflight_max = host.limits.max_inflight_requests
        self._others_max = min(self._inflight_max, _OTHERS_INFLIGHT_MAX)
        self._alone: Slot | None = None
        """The request in progress that must be answered before the next one starts."""
        self._frame_deadline = _NEVER
        self._active_at = host.clock.monotonic()
        self._paused = False
        self._deaf = False
        """No more bytes are read: the connection ends after its replies."""
        self._continues = False
        """Whether the next turn of the event loop starts requests that were read in this one."""
        self._flush_scheduled = False
        self._muting = Muting(host, self._read_on)
        self._sender: CountedPair | None = None
        """What counts the requests with this client id, until then."""
        self._sender_id: str | None = None
        self._sender_until = 0.0

    @property
    def in_progress(self) -> int:
        """Requests that were read and not answered."""
        return len(self._replies.slots)

    @property
    def is_paused(self) -> bool:
        """Whether nothing is read for now."""
        return self._paused

    # -- asyncio's callbacks

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._writer = ReplyWriter(transport)
        self._reply_memory = ConnectionReplies(self._host.replies)
        self._client = ClientConnection(
            self._host.next_connection_id(),
            self._accepted.peer,
            request_elements_max=self._host.limits.request_max_elements,
            replies=self._reply_memory,
            listener=self._entrance.name,
        )
        slow = self._host.slow
        self._replies = ReplyQueue(
            self._writer,
            self._host.metrics,
            memory=self._reply_memory,
            slow_seconds=slow.seconds,
            on_slow=partial(slow.report, self._client),
        )
        self._writer.begin()
        self._name_client()
        self._accepted.served()
        self._host.connections.add(self)
        self._host.metrics.connections.inc()
        if self._host.draining or self._host.suspended:
            self._give_up("drain")
            return
        try:
            self._identify()
        except PermissionError as error:
            self._host.log_end("connection refused", self._client.peer, self._client.listener, str(error))
            self._host.refused_certificate(self._client, None, "SSL", error)
            self._give_up("certificate")
            return
        self._settle()

    def _identify(self) -> None:
        """Identify the client by its certificate, if the listener's protocol says so."""
        security = self._entrance.security
        if security is not None:
            encrypted = self._transport.get_extra_info("ssl_object")
            certificate = None if encrypted is None else encrypted.getpeercert(binary_form=True)
            self._client.must_authenticate = security.must_authenticate
            self._client.principal = security.principal(certificate)

    def _settle(self) -> None:
        """Its client may be known now: then it is closed for no other."""
        if self._client.is_known:
            self._accepted.established()
            self._name_client()

    def _name_client(self) -> None:
        """Set the client that takes turns when the connection waits for memory."""
        address, number = counted_address(self._accepted.client[0]), str(self._client.connection_id)
        self._memory.client = self._reply_memory.client = self._client.principal or "", address, number

    def get_buffer(self, sizehint: int) -> memoryview:
        vacant = None if self._frames.frame is None else self._frames.vacant()
        self._direct = vacant is not None
        if vacant is not None:
            return vacant
        return self._host.slab[:_CAUTIOUS_BYTES] if self._host.memory_is_short else self._host.slab

    def buffer_updated(self, nbytes: int) -> None:
        self._host.metrics.received_bytes.inc(nbytes)
        self._memory.saw_bytes()
        if self._direct:
            self._frames.filled(nbytes)
            self._cut(_NO_BYTES)
        else:
            self._cut(self._host.slab[:nbytes])

    def pause_writing(self) -> None:
        self._writer.pause()

    def resume_writing(self) -> None:
        # Not at once: asyncio 3.11 breaks when a protocol closes its transport within this callback.
        self._writer.resume()
        self._schedule_flush()

    def connection_lost(self, exc: Exception | None) -> None:
        self._client.closed = True
        if self._client.when_closed is not None:
            self._client.when_closed()
        self._deaf = True
        self._drop_unread()
        self._replies.clear()
        self._host.connections.discard(self)
        self._accepted.ended()
        self.release()
        self._host.metrics.connections.dec()
        self._host.ended()

    def release(self) -> None:
        """End the cycles of references to this connection: the collector runs rarely."""
        self._memory.release()
        self._muting.release()

    # -- reading

    def _cut(self, data: memoryview) -> None:
        """Start a request for every complete frame in `data`, until it is used up or reading has to pause."""
        began, left = self._host.clock.monotonic(), _TURN_REQUESTS
        try:
            while not self._full() and left and self._active_at - began < _TURN_SECONDS:
                if self._frames.frame is not None:
                    data = self._frames.fill(data)
                else:
                    read_head = self._frames.read_token_head if self._client.sends_tokens else self._frames.read_head
                    head, data = read_head(data)
                    if head is None or not self._memory.admit(head, self._client):
                        break
                    data = self._frames.open(head, data)
                frame = self._frames.take()
                if frame is None:
                    self._set_deadline()
                    break
                self._start(frame)
                left -= 1
                if not data:
                    break
        except InvalidError as error:
            self._host.log_end("connection refused", self._client.peer, self._client.listener, str(error))
            self._end("malformed")
            return
        if self._held or len(data):
            self._hold(bytes(data))
        if (self._held or self._full()) and not self._paused:
            self._paused = True
            self._transport.pause_reading()
        if self._held and not self._full() and not self._continues:
            self._continues = True
            asyncio.get_running_loop().call_soon(self._continue)

    def _full(self) -> bool:
        """Return whether no further request may be read for now."""
        return (
            self._deaf
            or self._memory.awaited is not None
            or self._alone is not None
            or self._writer.blocked
            or len(self._replies.slots) >= self._inflight_max
            or self._replies.others >= self._others_max
            or (self._replies.held_bytes > 0 and self._host.replies.is_full)
            or (self._muting.is_on and self._frames.frame is None)
        )

    def _continue(self) -> None:
        """Start what one turn of the event loop left to the next."""
        self._continues = False
        self._read_on()

    def _read_on(self) -> None:
        """Continue after a pause, if its reason is gone."""
        if not self._paused or self._continues or self._full():
            return
        self._frame_deadline = _NEVER
        held = self._held
        self._hold(b"")
        self._cut(memoryview(held))
        if not self._held and not self._full():
            self._paused = False
            self._transport.resume_reading()

    def _hold(self, data: bytes) -> None:
        """Keep what was read and cannot be used yet, and count it."""
        if self._held:
            self._host.requests.release(len(self._held))
        if data:
            self._host.requests.charge(len(data))
        self._held = data

    def _open_admitted(self, head: FrameHead) -> None:
        """A frame that had to wait is admitted. Read soon, but not inside the budget's loop."""
        self._frames.open(head, _NO_BYTES)
        asyncio.get_running_loop().call_soon(self._read_on)

    def _set_deadline(self) -> None:
        """The time by which the open frame must be complete."""
        if self._frame_deadline == _NEVER:
            allowed = _FRAME_SECONDS + self._frames.size / _FRAME_BYTES_PER_SECOND
            self._frame_deadline = self._host.clock.monotonic() + allowed

    def _drop_unread(self) -> None:
        """Drop a frame that was not read completely. None follows."""
        self._muting.stop()
        self._hold(b"")
        self._frame_deadline = _NEVER
        self._memory.drop()

    # -- handling

    def _start(self, frame: memoryview) -> None:
        """Turn a frame into a request and start its handler."""
        now = self._host.clock.monotonic()
        self._active_at = now
        self._frame_deadline = _NEVER
        header = TOKEN_HEADER if self._client.sends_tokens else read_request_header(frame)
        api_key, version, correlation_id, client_id, body_start = header
        if client_id is not None and len(client_id) > SHOWN_CHARACTERS:
            header = header._replace(client_id=shown(client_id))
        slot = Slot(header, now, *self._memory.take())
        self._replies.append(slot)
        if api_key == ApiKey.FETCH:
            self._memory.fetch_started()
            slot.asked_wait_seconds = asked_wait_seconds(version, frame[body_start:])
        elif api_key in ALONE:
            self._alone = slot
        self._host.metrics.requests.received(api_key, version)
        request = Request(self._client, api_key, version, correlation_id, client_id, frame[body_start:], now)
        if self._host.traffic is not None:
            if self._sender is None or client_id != self._sender_id or now >= self._sender_until:
                self._sender = self._host.traffic.sender(self._client, client_id, now)
                self._sender_id, self._sender_until = client_id, now + _SENDER_SECONDS
            if self._sender is not None:
                slot.sender = request.sender = self._sender
                self._sender.sent_request(len(frame))
        if self._host.quotas is not None:
            self._muting.charge(slot, request, len(frame), self._host.quotas)
        try:
            answer = self._host.handle(request) if slot.use is None else slot.use.call(self._host.handle, request)
        except Exception as error:
            self._fail(slot, error)
            self._finish(slot)
            return
        if request.kept_bytes:
            slot.keep(request.kept_bytes)
        if isinstance(answer, Promise):
            self._host.promised.add(slot)
            answer.when_answered(partial(self._collect, slot, answer))
        else:
            self._host.tasks.add(asyncio.get_running_loop().create_task(self._serve(slot, answer)))

    def _collect(self, slot: Slot, promise: Promise) -> None:
        """The promise has its answer. Never raises, because its caller has other promises to answer."""
        try:
            slot.take(promise.response())
        except Exception as error:
            self._fail(slot, error)
        self._host.promised.discard(slot)
        self._finish(slot)
        if self._deaf:
            self._host.ended()

    async def _serve(self, slot: Slot, answer: Awaitable[Response]) -> None:
        """Run one handler to its end and handle every outcome."""
        try:
            if slot.header.api_key in WIDE:
                await self._reply_memory.reserve(0)
            response = await (answer if slot.use is None else slot.use.run(answer))
            if response.write_in_steps is not None:
                await response.encoded(WorkSlices().did)
            slot.take(response)
        except asyncio.CancelledError:
            slot.fatal = "cancelled"
            raise
        except TooManyElementsError as error:
            self._refuse(slot, error)
        except Exception as error:
            self._fail(slot, error)
        finally:
            self._finish(slot)
            self._host.forget(asyncio.current_task())

    def _refuse(self, slot: Slot, error: TooManyElementsError) -> None:
        """Answer INVALID_REQUEST where the API can say so for the whole request; else the connection ends."""
        self._host.metrics.refused("request.max.elements")
        header = slot.header
        slot.buffers = refusal(header.api_key, header.api_version, header.correlation_id)
        if slot.buffers is None:
            self._fail(slot, error)
        else:
            logger.warning("request refused: %s reason=%s", self._describe(slot.header), error)

    def _fail(self, slot: Slot, error: Exception) -> None:
        """The connection ends at this request, instead of sending its reply."""
        if isinstance(error, CloseConnection | InvalidError):
            slot.fatal = "refused"
            logger.warning("request refused: %s reason=%s", self._describe(slot.header), error)
        else:
            slot.fatal = "failed"
            logger.error("request failed, its connection ends: %s", self._describe(slot.header), exc_info=error)

    def _finish(self, slot: Slot) -> None:
        """The request has its answer: release its frame's memory, and reply when its turn comes."""
        slot.done = True
        if self._accepted.newcomer is not None:
            self._settle()
        if self._alone is slot:
            self._alone = None
        slot.release()
        if slot.use is not None or slot.throttle_seconds:
            self._muting.settle(slot)
        self._replies.made(slot, self._host.clock.monotonic())
        if slot.sender is not None:
            slot.sender.got_answer(slot.reply_bytes)
        if slot.header.api_key == ApiKey.FETCH:
            self._memory.fetch_answered()
        self._schedule_flush()

    # -- replying

    def _schedule_flush(self) -> None:
        """Send soon: replies to requests of one commit share a write."""
        if not self._flush_scheduled:
            self._flush_scheduled = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_scheduled = False
        self._active_at = self._host.clock.monotonic()
        if self._client.is_link:
            self._inflight_max = self._others_max = _LINK_INFLIGHT_MAX
            self._replies.flush_in_any_order(self._active_at)
        else:
            self._replies.flush(self._active_at)
        if self._replies.fatal:
            self._end(self._replies.fatal)
        if not self._deaf:
            self._read_on()
        elif self._replies.finished:
            self._transport.close()

    # -- ending

    def drain(self) -> None:
        """Stop reading; close after everything in progress is answered."""
        self._end("drain")

    def abort(self) -> None:
        """Close at once."""
        self._transport.abort()

    def relieve(self, now: float) -> None:
        """Others wait for memory: end the connection if its client keeps some of it without need."""
        holds_frame = self._memory.holds_needed_memory()
        if holds_frame and not self._paused:
            if self._memory.stalls(now, self._frames.filled_bytes):
                self._give_up("stalled")
        elif (holds_frame or self._host.replies.waiting) and self._replies.is_too_slow(now):
            self._give_up("not_reading")

    def expire(self, now: float) -> None:
        """End the connection if its client is idle, stalls within a frame, or does not read its replies."""
        idle = now - self._active_at > self._host.limits.connections_max_idle_ms / 1000
        if now > self._frame_deadline and not self._paused:
            self._give_up("stalled")
        elif idle and self._writer.blocked:
            self._give_up("not_reading")
        elif idle and not self._replies.slots and self._memory.awaited is None:
            self._end("idle")

    def _give_up(self, reason: str) -> None:
        self._host.log_end("connection closed", self._client.peer, self._client.listener, reason)
        self._host.metrics.connection_closed(reason)
        self.abort()

    def _end(self, reason: str) -> None:
        """Stop reading; the connection closes after everything in progress is answered."""
        if self._deaf:
            return
        self._deaf = True
        self._host.metrics.connection_closed(reason)
        self._transport.pause_reading()
        self._drop_unread()
        self._schedule_flush()

    def _describe(self, header: RequestHeader) -> str:
        api = APIS.get(header.api_key)
        return (
            f"api={api.name if api else header.api_key} version={header.api_version}"
            f" client_id={header.client_id!r} peer={self._client.peer} connection={self._client.connection_id}"
        )
