"""A server that swallows PUTs and answers GETs with zeros, as fast as Python can: the far end of a measurement.
A range that is asked for is taken for the whole object.

Place: run as a separate process (`python -m load.workloads.http_sink [certificate key]`) by load/benchmarks/store.py,
so that the measured process pays for its own half only. It prints its port, on 127.0.0.1, and serves
until it is ended.
Invariant: it takes a request's word for its length; it checks nothing, so it proves nothing. It names a
PUT's checksum in its answer, as S3 does: S3Store would ask for the length otherwise.
"""

from __future__ import annotations

import asyncio
import ssl
import sys

GET_BYTES = 4 * 1024 * 1024
_ZEROS = bytes(GET_BYTES)
_CHUNKED_END = b"0\r\n\r\n"


class Sink(asyncio.BufferedProtocol):
    """One connection."""

    def __init__(self) -> None:
        self._buffer = memoryview(bytearray(256 * 1024))
        self._head = b""
        self._left = 0  # bytes of the body still to come; -1: chunked, until _CHUNKED_END
        self._tail = b""
        self._is_get = False
        self._range = ""
        self._checksum = ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        data = self._buffer[:nbytes]
        if self._left == 0:
            self._head += bytes(data)
            head, end, body = self._head.partition(b"\r\n\r\n")
            if not end:
                return
            self._begin(head.decode())
            data = memoryview(body)
        self._swallow(data)

    def _begin(self, head: str) -> None:
        self._head = self._tail = b""
        request, *lines = head.split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        self._is_get = request.startswith("GET")
        self._range = headers.get("range", "").removeprefix("bytes=")
        checksum = headers.get("x-amz-checksum-crc32c")
        self._checksum = f"x-amz-checksum-crc32c: {checksum}\r\n" if checksum else ""
        self._left = -1 if "transfer-encoding" in headers else int(headers.get("content-length", "0"))
        if "expect" in headers:
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def _swallow(self, data: memoryview) -> None:
        if self._left < 0:
            self._tail = (self._tail + bytes(data[-len(_CHUNKED_END) :]))[-len(_CHUNKED_END) :]
            self._left = 0 if self._tail == _CHUNKED_END else -1
        else:
            self._left -= len(data)
        if self._left == 0:
            body = _ZEROS if self._is_get else b""
            part = f"Content-Range: bytes {self._range}/{len(body)}\r\n" if self._range else ""
            status = "206 Partial Content" if part else "200 OK"
            head = f'HTTP/1.1 {status}\r\nETag: "sink"\r\n{self._checksum}{part}Content-Length: {len(body)}\r\n\r\n'
            self._transport.write(head.encode())
            self._transport.write(body)


async def serve(certificate: str | None = None, key: str | None = None) -> None:
    context = None
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
    server = await asyncio.get_running_loop().create_server(Sink, "127.0.0.1", 0, ssl=context)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(serve(*sys.argv[1:3]))
