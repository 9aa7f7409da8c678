"""Requests that need no codec of this project: entities of kio's schemas by field names.

Place: under cluster.py's `call`, for group requests and offsets.
"""

from __future__ import annotations

import functools
import io
from typing import Any

from kio.serial import entity_reader, entity_writer

from headrace.protocol.typed import schema


class ApiMessage:
    """One API in one version. `make` builds the entities of its request by their class names."""

    def __init__(self, api_key: int, version: int) -> None:
        found = schema(api_key, version)
        self.api_key, self.version, self.flexible = api_key, version, found.flexible
        self._request_type = found.request_type
        self._module = __import__(found.request_type.__module__, fromlist=["_"])
        self._write = entity_writer(found.request_type)
        self._read = entity_reader(found.response_type)

    def make(self, name: str, /, **values: Any) -> Any:
        """A part of the request."""
        return getattr(self._module, name)(**values)

    def encode(self, **values: Any) -> bytes:
        """The request's body."""
        body = io.BytesIO()
        self._write(body, self._request_type(**values))
        return body.getvalue()

    def decode(self, body: memoryview) -> Any:
        """The response's entity."""
        return self._read(bytes(body), 0)[0]


@functools.cache
def message(api_key: int, version: int) -> ApiMessage:
    """Loaded once."""
    return ApiMessage(api_key, version)
