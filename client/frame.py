"""A request with a body that is encoded elsewhere, as aiokafka's connections send it.

Place: between cluster.py and aiokafka's connection, which adds the length and matches responses.
Invariant: the response is the bytes after its header.
Source: KIP-482 for flexible headers.
"""

from __future__ import annotations

import io
import struct
from typing import Any, NamedTuple

from headrace.protocol import wire
from headrace.protocol.wire import INT32


class _Encoded(NamedTuple):
    data: bytes

    def encode(self) -> bytes:
        return self.data


class _ResponseHeader(NamedTuple):
    correlation_id: int


class Frame:
    """`flexible`: both headers have tagged fields."""

    def __init__(self, api_key: int, version: int, body: bytes, *, flexible: bool) -> None:
        self._api_key, self._version, self._body, self._flexible = api_key, version, body, flexible
        self.RESPONSE_TYPE = self

    def prepare(self, versions: object) -> Frame:
        """The version is chosen already."""
        return self

    def build_request_header(self, *, correlation_id: int, client_id: str) -> _Encoded:
        """Header v2 if flexible, else v1."""
        head = struct.pack(">hhi", self._api_key, self._version, correlation_id) + wire.string(client_id, False)
        return _Encoded(head + wire.EMPTY_TAGS if self._flexible else head)

    def encode(self) -> bytes:
        """The body."""
        return self._body

    def parse_response_header(self, stream: io.BytesIO) -> _ResponseHeader:
        """Header v1 if flexible, else v0."""
        (correlation_id,) = INT32.unpack(stream.read(4))
        if self._flexible:
            stream.read(1)  # agents send no tagged fields in it
        return _ResponseHeader(correlation_id)

    def decode(self, stream: io.BytesIO) -> Any:
        """Return what is left."""
        return memoryview(stream.getvalue())[stream.tell() :]
