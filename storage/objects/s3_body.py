"""The body of a PUT, written to the socket without a copy and without being read by anybody else.

Place: between S3Store.put and aiohttp, through botocore, which takes it for a file.
Invariant: a body is written once, whole, from its first byte. Once a byte may have left, `consumed` is
true and stays so: aiohttp then repeats nothing in silence (a conditional put would be refused because
of its own twin) and follows no redirect, and S3Store knows that a failure leaves the outcome in doubt.
If the process dies here nothing is lost: the store drops a request whose body ends early.
"""

from __future__ import annotations

from aiohttp.abc import AbstractStreamWriter
from aiohttp.payload import Payload

SLICE_BYTES = 256 * 1024
"""Written at once: the socket takes nearly all of it directly. A whole body would first be joined to its
headers, and what the socket does not take would be copied once more (`load/bench_store.py` shows the price)."""


class RequestBody(Payload):
    """`view`'s bytes. The buffer must not change until the request is over."""

    def __init__(self, view: memoryview) -> None:
        super().__init__(view, content_type="application/octet-stream")
        self._size = view.nbytes

    async def write_with_length(self, writer: AbstractStreamWriter, content_length: int | None) -> None:
        """Called by aiohttp, after botocore has set Content-Length to the whole size."""
        self._consumed = True
        writer.send_headers()
        for start in range(0, self._value.nbytes, SLICE_BYTES):
            await writer.write(self._value[start : start + SLICE_BYTES])

    async def write(self, writer: AbstractStreamWriter) -> None:
        await self.write_with_length(writer, None)

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        return bytes(self._value).decode(encoding, errors)

    def read(self, size: int = -1) -> bytes:
        """Botocore asks for this method's presence; reading would mean that it hashes the body in Python."""
        raise RuntimeError("a put's body must not be read before it is sent: signing or checksums changed in botocore")

    def seek(self, offset: int, whence: int = 0) -> int:
        """Botocore rewinds what it sends again; each write starts over anyway."""
        return 0

    def tell(self) -> int:
        return 0
