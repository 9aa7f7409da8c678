"""The arrays of one request have an allowance, so no request of a few megabytes occupies the event loop."""

from __future__ import annotations

import struct

import pytest
from kio.schema.errors import ErrorCode
from kio.serial import entity_reader

from headrace.agent.apis.dispatch import Dispatcher
from headrace.protocol import wire
from headrace.protocol.answers import refusal
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.api_versions import APIS, Api
from headrace.protocol.fetch_codec import decode_fetch
from headrace.protocol.produce_codec import decode_produce
from headrace.protocol.request import Request, Response
from headrace.protocol.typed import decode, schema
from headrace.storage.errors import TooManyElementsError
from tests.agent.listener.listener_client import frame, listening
from tests.protocol.client_vectors import vectors

pytestmark = pytest.mark.requirement("X7")
MOST = 10


def _names(count: int) -> bytes:
    return struct.pack(">i", count) + struct.pack(">h1s", 1, b"t") * count


def test_an_array_may_have_as_many_elements_as_are_allowed() -> None:
    assert len(schema(ApiKey.METADATA, 1).decode(_names(MOST), MOST).topics) == MOST
    with pytest.raises(TooManyElementsError):
        schema(ApiKey.METADATA, 1).decode(_names(MOST + 1), MOST)


def test_nested_arrays_count_together() -> None:
    """5 topics with 2 partitions each are 15 elements."""
    topics = (struct.pack(">h1si", 1, b"t", 2) + struct.pack(">ii", 0, 1)) * 5
    body = struct.pack(">h1si", 1, b"g", 5) + topics
    assert schema(ApiKey.OFFSET_FETCH, 1).decode(body, 15)
    with pytest.raises(TooManyElementsError):
        schema(ApiKey.OFFSET_FETCH, 1).decode(body, 14)


def test_what_one_request_spent_is_not_missing_in_the_next() -> None:
    for _ in range(3):
        schema(ApiKey.METADATA, 1).decode(_names(MOST), MOST)


def test_reading_outside_a_request_has_no_limit() -> None:
    with pytest.raises(TooManyElementsError):
        schema(ApiKey.METADATA, 1).decode(_names(MOST + 1), MOST)
    assert wire.read_count(memoryview(_names(50)), 0, False)[0] == 50


def test_unknown_tagged_fields_count() -> None:
    tags = b"".join(bytes((tag, 0)) for tag in range(20))
    body = b"\x01\0\0" + bytes((20,)) + tags  # metadata v12: no topics, two flags, 20 tags
    assert schema(ApiKey.METADATA, 12).decode(body, 20).topics == ()
    with pytest.raises(TooManyElementsError):
        schema(ApiKey.METADATA, 12).decode(body, 19)


def test_fetch_and_produce_count_topics_and_partitions() -> None:
    fetch = struct.pack(">iiiib", -1, 0, 1, 1, 0) + struct.pack(">ih1si", 1, 1, b"t", 20) + bytes(16 * 20)
    produce = struct.pack(">hhi", -1, -1, 0) + struct.pack(">ih1si", 1, 1, b"t", 20) + bytes(8 * 20)
    assert decode_fetch(memoryview(fetch), 4, 20)
    assert decode_produce(memoryview(produce), 7, 20)
    with pytest.raises(TooManyElementsError):
        decode_fetch(memoryview(fetch), 4, 19)
    with pytest.raises(TooManyElementsError):
        decode_produce(memoryview(produce), 7, 19)


def test_every_request_of_a_real_client_is_far_within_the_limit() -> None:
    for vector in vectors():
        if vector.api_key == ApiKey.FETCH:
            decode_fetch(vector.body, vector.version, 1_000)
        elif vector.api_key == ApiKey.PRODUCE:
            decode_produce(vector.body, vector.version, 1_000)
        elif vector.api_key in APIS:
            schema(vector.api_key, vector.version).decode(vector.body, 1_000)


@pytest.mark.parametrize("api", APIS.values(), ids=lambda api: api.name)
def test_a_refusal_is_a_response_of_its_version_with_the_code_at_its_top(api: Api) -> None:
    key, first, last = api.key, api.min_version, api.max_version
    for version in range(max(first, 3 if key == ApiKey.PRODUCE else 0), last + 1):
        buffers = refusal(key, version, 77)
        found = schema(key, version)
        assert (buffers is not None) == ("error_code" in found.response_type.__dataclass_fields__)
        if buffers is not None:
            assert buffers[0][:4] == (77).to_bytes(4, "big")
            entity, _ = entity_reader(found.response_type)(bytes(buffers[1]), 0)
            assert entity.error_code == ErrorCode.invalid_request


async def test_beyond_the_limit_a_client_hears_invalid_request_or_loses_its_connection() -> None:
    async def handle(request: Request) -> Response:
        decode(request)
        return Response([request.correlation_id.to_bytes(4, "big")])

    dispatcher = Dispatcher()
    for key in (ApiKey.METADATA, ApiKey.LIST_GROUPS, ApiKey.LEAVE_GROUP):
        dispatcher.register(key, handle)
    async with listening(dispatcher.handle) as server:
        answered, closed = await server.connect(), await server.connect()
        members = struct.pack(">h1si", 1, b"g", 20_000) + struct.pack(">hh", 0, -1) * 20_000
        await answered.send(frame(1, members, api_key=ApiKey.LEAVE_GROUP, version=3))
        correlation_id, body = await answered.reply()
        assert (correlation_id, body[4:6]) == (1, struct.pack(">h", ErrorCode.invalid_request))
        await answered.send(frame(2, _names(2)))
        assert (await answered.reply())[0] == 2, "the connection goes on"
        await closed.send(frame(3, _names(1_000_000)))
        assert await closed.ended() == b""
        assert server.metric("headrace_limit_reached_total", limit="request.max.elements") == 2
        await answered.close()
