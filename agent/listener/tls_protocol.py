"""asyncio's TLS with one receive buffer for all connections of an event loop.

Place: under every listener with TLS: server.py, cli/process/http_security.py. asyncio.sslproto is what
`create_server(ssl=...)` uses; it is used directly because each connection gets the newest certificates, is judged
before its handshake, and may have a PROXY header before it.
Invariant: a buffer is filled and emptied within one callback of the loop, so that one is enough. asyncio's own is
allocated for each connection, as large as the class attribute `max_size` says (256 KiB), and kept while it is idle;
tests/agent/listener/test_tls_memory.py fails if a Python version takes its buffer from elsewhere.
"""

from __future__ import annotations

import asyncio
import ssl
import threading
from asyncio.sslproto import SSLProtocol
from collections.abc import Callable

RECEIVE_BYTES = 256 * 1024
"""One read of encrypted bytes; as large as asyncio's."""
SHUTDOWN_SECONDS = 5
"""Seconds to wait for a client's answer to the end of TLS; asyncio waits for 30."""
_LET_GO = (
    *("_sslobj", "_incoming", "_outgoing", "_app_protocol_get_buffer", "_app_protocol_buffer_updated"),
    *("handshake", "_on_lost"),  # the first has the frames of a failure
)
_of_thread = threading.local()


class TlsProtocol(SSLProtocol):
    """The server's side of one connection, between `transport` and the protocol `inner`."""

    def __init__(
        self,
        inner: asyncio.BaseProtocol,
        context: ssl.SSLContext,
        handshake_seconds: int,
        on_lost: Callable[[], None],
    ) -> None:
        """`on_lost` is called when the socket is closed, at any stage."""
        loop = asyncio.get_running_loop()
        self.handshake: asyncio.Future[None] = loop.create_future()
        """Done when it is complete, or with the error that ended it."""
        self._on_lost = on_lost
        vars(self)["max_size"] = 0  # what the constructor allocates for itself
        super().__init__(
            loop,
            inner,
            context,
            self.handshake,
            server_side=True,
            ssl_handshake_timeout=handshake_seconds,
            ssl_shutdown_timeout=SHUTDOWN_SECONDS,
        )
        del vars(self)["max_size"]
        self._ssl_buffer_view = receive_buffer()

    def get_buffer(self, n: int) -> memoryview:
        return self._ssl_buffer_view

    def connection_lost(self, exc: BaseException | None) -> None:
        super().connection_lost(exc)  # schedules that of `inner`
        self._on_lost()
        asyncio.get_running_loop().call_soon(self._let_go)

    def _let_go(self) -> None:
        """Release what OpenSSL has, and `inner`: in a cycle of references they stay until the collector runs, and
        thousands of connections that come and go fill the memory meanwhile."""
        vars(self).update(dict.fromkeys(_LET_GO))
        self._extra.clear()


def receive_buffer() -> memoryview:
    """Return the buffer of this thread's event loop: of all its TLS connections, RECEIVE_BYTES."""
    buffer: memoryview | None = getattr(_of_thread, "buffer", None)
    if buffer is None:
        buffer = _of_thread.buffer = memoryview(bytearray(RECEIVE_BYTES))
    return buffer
