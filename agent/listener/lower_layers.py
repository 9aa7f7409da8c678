"""The layers below Kafka's frames on a connection: a load balancer's PROXY header, TLS.

Place: server.py reads a header of PROXY protocol, version 2, before the first frame of a connection, and makes
TlsProtocol under every listener with TLS; so does cli/process/http_security.py. asyncio.sslproto is what
`create_server(ssl=...)` uses; it is used directly because each connection gets the newest certificates, is judged
before its handshake, and may have a PROXY header before it.
Invariant: bytes that cannot become a header are refused at the first of them; a header has at most HEADER_BYTES_MAX
bytes. The extensions (TLVs) after the addresses are skipped.
A receive buffer of TLS is filled and emptied within one callback of the loop, so that one is enough. asyncio's own
is allocated for each connection, as large as the class attribute `max_size` says (256 KiB), and kept while it is
idle; tests/agent/listener/test_tls_memory.py fails if a Python version takes its buffer from elsewhere.
Source: HAProxy's proxy-protocol.txt, section 2.2.
"""

from __future__ import annotations

import asyncio
import ipaddress
import ssl
import struct
import threading
from asyncio.sslproto import SSLProtocol
from collections.abc import Callable
from typing import NamedTuple

from headrace.storage.errors import InvalidError

SIGNATURE = b"\r\n\r\n\0\r\nQUIT\n"
HEADER_BYTES_MAX = 4096
_FIXED = struct.Struct(">12sBBH")
_LOCAL, _PROXY = 0x20, 0x21
_ADDRESSES = {0x11: struct.Struct(">4s4sHH"), 0x21: struct.Struct(">16s16sHH")}
"""Family and transport (TCP over IPv4, over IPv6) -> source, destination and their ports."""
_UNSPECIFIED = 0x00


class ProxyHeader(NamedTuple):
    """`client` None: the balancer itself connected, or does not say for whom."""

    client: tuple[str, int] | None
    size: int


def read_proxy_header(data: bytes) -> ProxyHeader | None:
    """The header at the start of `data`; None while bytes are missing. InvalidError for anything else."""
    if data[: len(SIGNATURE)] != SIGNATURE[: len(data)]:
        reason = "version 1 is not supported" if data.startswith(b"PROXY") else "the first bytes are another protocol's"
        raise InvalidError(f"no header of PROXY protocol version 2: {reason}")
    if len(data) < _FIXED.size:
        return None
    _, command, family, length = _FIXED.unpack_from(data)
    if command not in (_LOCAL, _PROXY):
        raise InvalidError(f"PROXY protocol: unknown version or command: {command:#x}")
    size = _FIXED.size + length
    if size > HEADER_BYTES_MAX:
        raise InvalidError(f"PROXY protocol: header too long: bytes={size} max={HEADER_BYTES_MAX}")
    addresses = _ADDRESSES.get(family)
    if command == _PROXY and family != _UNSPECIFIED and (addresses is None or length < addresses.size):
        raise InvalidError(f"PROXY protocol: neither TCP over IPv4 nor over IPv6: family={family:#x} bytes={length}")
    if len(data) < size:
        return None
    if command == _LOCAL or addresses is None:
        return ProxyHeader(None, size)
    source, _, port, _ = addresses.unpack_from(data, _FIXED.size)
    return ProxyHeader((str(ipaddress.ip_address(source)), port), size)


def missing_bytes(data: bytes) -> int:
    """Return how many bytes belong to the header for certain, beyond those that read_proxy_header needs more of."""
    if len(data) < _FIXED.size:
        return _FIXED.size - len(data)
    length: int = _FIXED.unpack_from(data)[3]
    return _FIXED.size + length - len(data)


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
