"""Requests and responses of every API except Produce and Fetch, with kio's generated schemas.

Place: between a Request of the listener and a handler that uses field names, not versions.
Invariant: a handler sets every field it knows; fields that a version lacks are left out. A body that
cannot be decoded raises InvalidError and changes nothing. Requests are read by protocol/entity_reader.py
(kio's reader aborts the process on a false array count), responses are written by kio.
Source: Kafka's message schemas, KIP-482 for flexible versions.
"""

from __future__ import annotations

import datetime
import functools
import io
import struct
from dataclasses import fields
from functools import partial
from importlib import import_module
from types import ModuleType
from typing import Any, TypeVar, overload

from kio.schema.index import api_key_map
from kio.serial import entity_reader as response_reader
from kio.serial import entity_writer

from headrace.protocol.entity_reader import entity_reader
from headrace.protocol.long_entities import Did, write_long
from headrace.protocol.request import REQUEST_ELEMENTS_MAX, Request, Response
from headrace.protocol.wire import MALFORMED, allow_elements
from headrace.storage.errors import InvalidError, TooManyElementsError

_NO_TIME = datetime.timedelta(0)
UNIX_EPOCH = datetime.datetime.fromtimestamp(0, datetime.UTC)
API_VERSIONS_KEY = 18
M = TypeVar("M")


class Schema:
    """The request and response classes of one (API key, version)."""

    def __init__(self, api_key: int, version: int) -> None:
        package = api_key_map[api_key]
        self.api_key = api_key
        self.version = version
        self._request_module = import_module(f"kio.schema.{package}.v{version}.request")
        self._response_module = import_module(f"kio.schema.{package}.v{version}.response")
        camel = "".join(part.capitalize() for part in package.split("_"))
        self.request_type = _named(self._request_module, camel + "Request")
        self.response_type = _named(self._response_module, camel + "Response")
        self._messages: dict[type, tuple[Any, frozenset[str]]] = {}
        """What `make` makes, by what its callers name: the class, and the names of its fields."""
        self._read = entity_reader(self.request_type)
        self._write = entity_writer(self.response_type)

    @property
    def flexible(self) -> bool:
        """Whether bodies (and headers, except of ApiVersions responses) have tagged fields."""
        return bool(self.request_type.__flexible__)

    def decode(self, body: memoryview | bytes, elements_max: int = REQUEST_ELEMENTS_MAX) -> Any:
        """The request entity at the start of `body`; InvalidError if the bytes are malformed, TooManyElementsError
        if its arrays have more elements in total than `elements_max`.

        Bytes after it are ignored, as in Kafka: librdkafka 2.16 adds one byte to AlterUserScramCredentials.
        """
        allow_elements(elements_max)
        try:
            entity, _ = self._read(memoryview(body), 0)
        except TooManyElementsError:
            raise
        except (*MALFORMED, OverflowError) as error:
            raise InvalidError(f"malformed request: api_key={self.api_key} version={self.version} {error}") from error
        finally:
            allow_elements()
        return entity

    def make(self, message: type[M], /, **values: Any) -> M:
        """An instance of this version's class of a message of the response. `message`: its class in the newest version
        that has it, as which type checks see the result. Values that this version lacks are dropped. A throttle
        time is 0: the listener sets it in the bytes (protocol/answers.py)."""
        found = self._messages.get(message)
        if found is None:
            cls = _named(self._response_module, message.__name__)
            found = self._messages[message] = cls, frozenset(field.name for field in fields(cls))
        cls, known = found
        values["throttle_time"] = _NO_TIME
        made: M = cls(**{key: value for key, value in values.items() if key in known})
        return made

    def response(self, **values: Any) -> Any:
        """An instance of the top-level response class."""
        return self.make(self.response_type, **values)

    def decode_response(self, frame: bytes) -> Any:
        """The response entity of a frame that an agent made."""
        header = response_header(0, self.flexible and self.api_key != API_VERSIONS_KEY)
        entity, _ = _response_reader(self.response_type)(frame[len(header) :], 0)
        return entity

    def encode_request(self, entity: Any) -> memoryview:
        """The body of a request."""
        body = io.BytesIO()
        _request_writer(self.request_type)(body, entity)
        return memoryview(body.getvalue())

    def encode(self, correlation_id: int, entity: Any) -> list[bytes | memoryview]:
        """Response header and body as buffers for the listener."""
        body = io.BytesIO()
        self._write(body, entity)
        return [self._header(correlation_id), body.getvalue()]

    async def encode_in_steps(self, correlation_id: int, entity: Any, did: Did) -> list[bytes | memoryview]:
        """Return the same; `did` is awaited after each step, of an entity with many elements."""
        body = io.BytesIO()
        await write_long(body, entity, did)
        return [self._header(correlation_id), body.getvalue()]

    def _header(self, correlation_id: int) -> bytes:
        return response_header(correlation_id, self.flexible and self.api_key != API_VERSIONS_KEY)


def response_header(correlation_id: int, flexible: bool) -> bytes:
    """Response header v1 (with an empty tag section) when flexible, else v0."""
    return struct.pack(">iB", correlation_id, 0) if flexible else struct.pack(">i", correlation_id)


@functools.cache
def _response_reader(response_type: Any) -> Any:
    return response_reader(response_type)


@functools.cache
def _request_writer(request_type: Any) -> Any:
    return entity_writer(request_type)


@functools.cache
def schema(api_key: int, version: int) -> Schema:
    """The Schema, loaded once. KeyError or ModuleNotFoundError for a pair that kio does not know."""
    return Schema(api_key, version)


@overload
def decode(request: Request, message: type[M]) -> tuple[Schema, M]: ...


@overload
def decode(request: Request) -> tuple[Schema, Any]: ...


def decode(request: Request, message: type | None = None) -> tuple[Schema, Any]:
    """The request's Schema and entity, which is decoded once. `message`: the class of the newest version, as which
    type checks see the entity; it has the fields of the request's version."""
    found = schema(request.api_key, request.api_version)
    if request.entity is None:
        request.entity = found.decode(request.body, request.connection.request_elements_max)
    return found, request.entity


def reply(request: Request, entity: Any) -> Response:
    """The Response with an entity of this request's version."""
    found = schema(request.api_key, request.api_version)
    return Response(
        entity=entity,
        write=partial(found.encode, request.correlation_id),
        write_in_steps=partial(found.encode_in_steps, request.correlation_id),
    )


def entity_of(request: Request, response: Response) -> Any:
    """Return what a response says; None if nothing is sent. Only the bytes of another agent's answer are decoded."""
    if response.entity is None and response.buffers is not None:
        response.entity = schema(request.api_key, request.api_version).decode_response(b"".join(response.buffers))
    return response.entity


def _named(module: ModuleType, name: str) -> Any:
    return getattr(module, name)
