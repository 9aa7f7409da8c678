"""Sources that are broken or hostile: bounded memory and time, and an error that says so."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode

from headrace.compactor.links.fetch_answers import FIRST_BY_ID, LAST, decode_fetch_answer
from headrace.compactor.links.kafka_source import KafkaSource, open_source
from headrace.compactor.links.source import SourceBounds
from headrace.config.link_configs import BOOTSTRAP_SERVERS
from headrace.protocol.client.login import Login
from headrace.protocol.client.transport import ClientConfig
from headrace.protocol.fetch_codec import (
    AbortedTransaction,
    DivergingEpoch,
    FetchPartitionReply,
    FetchReply,
    FetchTopicReply,
    encode_fetch_response,
)
from headrace.storage.errors import CorruptError, UnavailableError

pytestmark = pytest.mark.requirement("X14")

TOPIC_ID = uuid.UUID(int=7)


def _encoded(version: int) -> bytearray:
    by_id = version >= FIRST_BY_ID
    partitions = [
        FetchPartitionReply(1, 0, 90, 80, 5, [b"rec", b"ords"], [AbortedTransaction(3, 60), AbortedTransaction(4, 70)]),
        FetchPartitionReply(
            2, 1, -1, -1, -1, [], None, diverging_epoch=DivergingEpoch(4, 55) if version > 11 else None
        ),
    ]
    topic = FetchTopicReply(None if by_id else "orders", TOPIC_ID if by_id else None, partitions)
    return bytearray(b"".join(encode_fetch_response(1, version, FetchReply([topic], throttle_time_ms=1500))))


@pytest.mark.parametrize("version", range(4, LAST + 1))
def test_answers_are_read_in_each_version(version: int) -> None:
    answer = decode_fetch_answer(memoryview(_encoded(version)), version, {TOPIC_ID: "orders"})
    first, second = answer.partitions
    assert answer.throttle_s == 1.5
    assert (first.topic, first.partition, first.error) == ("orders", 1, ErrorCode.none)
    assert first.bounds == SourceBounds(5 if version >= 5 else -1, 90, 80)
    assert (bytes(first.records), list(first.aborted)) == (b"records", [(3, 60), (4, 70)])
    assert second.error is ErrorCode.offset_out_of_range
    assert second.diverging == ((4, 55) if version > 11 else None)


@given(st.integers(4, LAST), st.integers(0, 120), st.binary(max_size=40))
def test_bytes_that_are_no_answer_are_refused(version: int, place: int, junk: bytes) -> None:
    data = _encoded(version)
    data[place : place + len(junk)] = junk
    with suppress(CorruptError):
        decode_fetch_answer(memoryview(data), version, {})


@contextmanager
def _server(serve: Callable[[socket.socket], None]) -> Iterator[tuple[str, int]]:
    """A server that does this with each connection."""
    listening = socket.create_server(("127.0.0.1", 0))
    open_ones: list[socket.socket] = []

    def accept() -> None:
        with suppress(OSError):
            while True:
                connection, _ = listening.accept()
                open_ones.append(connection)
                with suppress(OSError):
                    serve(connection)

    thread = threading.Thread(target=accept)
    thread.start()
    try:
        yield listening.getsockname()
    finally:
        listening.shutdown(socket.SHUT_RDWR)
        for connection in open_ones:
            connection.close()
        listening.close()
        thread.join()


async def _refused(address: tuple[str, int], error: type[Exception], ask_seconds: float = 30.0) -> str:
    with ThreadPoolExecutor(2) as threads:
        source = KafkaSource(ClientConfig((address,), request_timeout_ms=300), threads, ask_seconds)
        with pytest.raises(error) as raised:
            await source.metadata()
        await source.close()
        return str(raised.value)


async def test_a_source_that_claims_a_huge_answer_is_refused() -> None:
    def claim(connection: socket.socket) -> None:
        connection.recv(1000)
        connection.sendall(struct.pack(">i", 2**31 - 1))

    with _server(claim) as address:
        assert "not a Kafka response" in await _refused(address, UnavailableError)


async def test_a_source_that_says_nothing_is_left() -> None:
    with _server(lambda connection: None) as address:
        assert "within" in await _refused(address, UnavailableError, 0.05)


async def test_a_source_that_sends_a_byte_now_and_then_is_left() -> None:
    ended = threading.Event()

    def drip(connection: socket.socket) -> None:
        connection.sendall(struct.pack(">i", 60_000_000))
        while not ended.wait(0.01):
            connection.sendall(b"x")

    with _server(drip) as address:
        assert "within" in await _refused(address, UnavailableError, 0.1)
        ended.set()


async def test_a_handshake_that_never_ends_is_left() -> None:
    with _server(lambda connection: None) as address, ThreadPoolExecutor(2) as threads:
        config = ClientConfig((address,), request_timeout_ms=300, login=Login.of({"security.protocol": "SSL"}))
        source = KafkaSource(config, threads, 0.05)
        with pytest.raises(UnavailableError, match="within"):
            await source.metadata()


async def test_a_source_that_cannot_be_reached_is_away() -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        address = unused.getsockname()
    assert "no server answered" in await _refused(address, UnavailableError)
    with ThreadPoolExecutor(1) as threads:
        source = open_source({BOOTSTRAP_SERVERS: f"127.0.0.1:{address[1]}"}, threads)
        results = await asyncio.gather(*(source.metadata() for _ in range(3)), return_exceptions=True)
    assert all(isinstance(result, UnavailableError) for result in results)
