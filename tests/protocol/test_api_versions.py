"""What is advertised, in every version, and what becomes of requests that are not."""

from __future__ import annotations

import struct
from importlib import import_module
from typing import Any

import pytest

from headrace.agent.apis.dispatch import Dispatcher
from headrace.protocol.api_versions import APIS
from headrace.protocol.frames import read_request_header
from headrace.protocol.request import ClientConnection, CloseConnection, Request, Response
from tests.protocol.client_vectors import vectors
from tests.protocol.kio_entities import kio_read


def _request(api_key: int, version: int, body: bytes = b"") -> Request:
    connection = ClientConnection(connection_id=1, peer="127.0.0.1:1")
    return Request(connection, api_key, version, 77, "client", memoryview(body), 0.0)


async def _echo(request: Request) -> Response:
    return Response([bytes(request.body)])


def _dispatcher(*keys: int) -> Dispatcher:
    dispatcher = Dispatcher()
    for key in keys:
        dispatcher.register(key, _echo)
    return dispatcher


async def _answer(dispatcher: Dispatcher, request: Request, version: int) -> Any:
    """The decoded answer; its header is v0 in every version."""
    buffers = (await dispatcher.handle(request)).buffers
    assert buffers is not None
    data = b"".join(buffers)
    assert struct.unpack(">i", data[:4]) == (77,)
    return kio_read(import_module(f"kio.schema.api_versions.v{version}.response").ApiVersionsResponse, data[4:])


@pytest.mark.parametrize("version", range(5))
async def test_exactly_what_is_registered_is_advertised(version: int) -> None:
    body = b"\x05rdka\x041.0\0" if version >= 3 else b""
    answer = await _answer(_dispatcher(0, 1, 3), _request(18, version, body), version)
    assert answer.error_code == 0
    rows = {row.api_key: (row.min_version, row.max_version) for row in answer.api_keys}
    assert rows == {0: (0, 13), 1: (4, 18), 3: (0, 13), 18: (0, 4)}


async def test_produce_is_advertised_from_0() -> None:
    """librdkafka picks its message format by it."""
    answer = await _answer(_dispatcher(0), _request(18, 0), 0)
    assert next(row.min_version for row in answer.api_keys if row.api_key == 0) == 0


@pytest.mark.parametrize("version", [-1, 5, 99])
async def test_an_unknown_version_is_answered_in_v0_with_the_ranges(version: int) -> None:
    answer = await _answer(_dispatcher(3), _request(18, version, b"whatever"), 0)
    assert answer.error_code == 35
    assert [(row.api_key, row.min_version, row.max_version) for row in answer.api_keys] == [(3, 0, 13), (18, 0, 4)]


async def test_a_software_name_is_accepted() -> None:
    request = _request(18, 4, b"\x05rdka\x042.0\0")
    assert (await _answer(_dispatcher(), request, 4)).error_code == 0


@pytest.mark.parametrize("name", [b"", b"-x", b"a b", b"a\n"])
async def test_a_malformed_software_name_is_refused(name: bytes) -> None:
    request = _request(18, 3, bytes((len(name) + 1,)) + name + b"\x021\0")
    answer = await _answer(_dispatcher(), request, 3)
    assert (answer.error_code, answer.api_keys) == (42, ())


async def test_what_is_not_registered_ends_the_connection() -> None:
    dispatcher = _dispatcher(3)
    for vector in vectors():
        if vector.api_key in (3, 18):
            continue
        header = read_request_header(memoryview(vector.frame))
        with pytest.raises(CloseConnection, match="api not served"):
            await dispatcher.handle(_request(header.api_key, header.api_version))


@pytest.mark.parametrize(("api_key", "version"), [(3, 14), (3, -1), (1, 3), (1, 19), (0, 14), (0, -1)])
async def test_a_version_out_of_range_ends_the_connection(api_key: int, version: int) -> None:
    with pytest.raises(CloseConnection, match="version not served"):
        await _dispatcher(0, 1, 3).handle(_request(api_key, version))


async def test_a_served_request_reaches_its_handler() -> None:
    assert (await _dispatcher(3).handle(_request(3, 1, b"body"))).buffers == [b"body"]


OLD_PRODUCE = struct.pack(">ih1sii", 1, 1, b"t", 1, 7) + struct.pack(">i3s", 3, b"old")


@pytest.mark.parametrize("version", [0, 1, 2])
async def test_old_produce_requests_are_answered_unsupported(version: int) -> None:
    body = struct.pack(">hi", 1, 500) + OLD_PRODUCE
    buffers = (await _dispatcher(0).handle(_request(0, version, body))).buffers
    assert buffers is not None
    assert b"".join(buffers).startswith(struct.pack(">iih1siih", 77, 1, 1, b"t", 1, 7, 35))


async def test_old_produce_requests_without_acks_end_the_connection() -> None:
    body = struct.pack(">hi", 0, 500) + OLD_PRODUCE
    with pytest.raises(CloseConnection, match="not served"):
        await _dispatcher(0).handle(_request(0, 2, body))


def test_an_api_is_registered_once_and_must_be_in_the_table() -> None:
    dispatcher = _dispatcher(3)
    for key in (3, 18, 71):
        with pytest.raises(ValueError, match=f"api_key={key}"):
            dispatcher.register(key, _echo)


async def test_everything_in_the_table_can_be_loaded_ahead() -> None:
    await _dispatcher(*(key for key in APIS if key != 18)).warm_up()
