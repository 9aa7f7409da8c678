"""One request to one handler, as a client makes it: kafka-python writes the request and reads the reply.

kio reads the reply too, to the last byte: two decoders that share nothing with each other.
"""

from __future__ import annotations

from typing import Any

from kafka.protocol import admin, consumer, metadata, producer
from kio.serial import entity_reader

from headrace.protocol.api_versions import APIS
from headrace.protocol.request import ClientConnection, Request, RequestHandler, Response
from headrace.protocol.typed import schema
from tests.protocol.client_vectors import vectors

RESPONSES = {
    found.API_KEY: found
    for module in (admin, consumer, metadata, producer)
    for name, found in vars(module).items()
    if name.endswith("Response")
}


def versions_of(api_key: int) -> list[int]:
    """Every version that Headrace serves."""
    return list(range(APIS[api_key].min_version, APIS[api_key].max_version + 1))


def a_request(
    api_key: int,
    version: int,
    body: bytes | bytearray | memoryview,
    *,
    client_id: str | None = "test",
    received_at: float = 1000.0,
    correlation_id: int = 42,
    listener: str = "PLAINTEXT",
) -> Request:
    """A Request as the listener makes it."""
    connection = ClientConnection(connection_id=1, peer="127.0.0.1:50000", listener=listener)
    return Request(connection, api_key, version, correlation_id, client_id, memoryview(bytes(body)), received_at)


async def call(handler: RequestHandler, message: Any, version: int, **request: Any) -> Any:
    """kafka-python's response object for one of its request objects."""
    sent = a_request(message.API_KEY, version, message.encode(version=version), **request)
    return read_reply(sent, await handler(sent))


def read_reply(request: Request, response: Response) -> Any:
    """The reply as kafka-python reads it; fails unless kio reads the very bytes to their end as well."""
    assert response.buffers is not None
    frame = b"".join(response.buffers)
    served = schema(request.api_key, request.api_version)
    header_bytes = 5 if served.flexible else 4
    assert frame[:header_bytes] == request.correlation_id.to_bytes(4, "big") + b"\0" * (header_bytes - 4)
    body = frame[header_bytes:]
    _, consumed = entity_reader(served.response_type)(body, 0)
    assert consumed == len(body)
    return RESPONSES[request.api_key].decode(body, version=request.api_version)


def captured_requests(*api_keys: int) -> list[tuple[str, Request]]:
    """Requests of real clients with a label that says who sent them."""
    found = [
        (vector.label, a_request(vector.api_key, vector.version, vector.body))
        for vector in vectors()
        if vector.api_key in api_keys and APIS[vector.api_key].serves(vector.version)
    ]
    assert found
    return found
