"""The body of a PUT, written to the socket without a copy and without an earlier read of it.

Place: between S3Store.put and aiohttp, through botocore, which treats it as a file.
Invariant: a body is written once, completely, from its first byte. After a byte may have been sent, `consumed` is
true and stays true: aiohttp then does not repeat the request by itself (its own duplicate would make a conditional
put fail) and follows no redirect, and S3Store knows that a failure leaves the outcome unknown.
"""

from __future__ import annotations

from aiohttp.abc import AbstractStreamWriter
from aiohttp.payload import Payload

SLICE_BYTES = 256 * 1024
"""Written in one piece, because the socket accepts nearly all of it directly. By default a body is first joined to
its
headers, and the part the socket does not accept is copied again (`load/benchmarks/store.py` shows the cost)."""


class RequestBody(Payload):
    """The bytes of `view`. The buffer must not change until the request is finished."""

    def __init__(self, view: memoryview) -> None:
        super().__init__(view, content_type="application/octet-stream")
        self._size = view.nbytes

    async def write_with_length(self, writer: AbstractStreamWriter, content_length: int | None) -> None:
        """Called by aiohttp, after botocore has set Content-Length to the full size."""
        self._consumed = True
        writer.send_headers()
        for start in range(0, self._value.nbytes, SLICE_BYTES):
            await writer.write(self._value[start : start + SLICE_BYTES])

    async def write(self, writer: AbstractStreamWriter) -> None:
        await self.write_with_length(writer, None)

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        return bytes(self._value).decode(encoding, errors)

    def read(self, size: int = -1) -> bytes:
        """Botocore checks that this method exists; a call means that botocore hashes the body in Python."""
        raise RuntimeError("a put's body must not be read before it is sent: signing or checksums changed in botocore")

    def seek(self, offset: int, whence: int = 0) -> int:
        """Botocore rewinds a body that it sends again; every write starts at the beginning anyway."""
        return 0

    def tell(self) -> int:
        return 0
