"""What the codecs and the listener cost: ours against kio, kafka-python and asyncio streams, in one run.

`python -m load codec` prints microseconds per message and CPU seconds per GB (10^9 bytes) of
this process, with ratios to ours. The other end of each socket is a separate process.
"""

from __future__ import annotations

import asyncio
import datetime
import io
import multiprocessing
import socket
import struct
import time
import timeit
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

from kafka.protocol.consumer import FetchResponse as KafkaPythonFetchResponse
from kafka.protocol.producer import ProduceRequest as KafkaPythonProduceRequest
from kio.schema.errors import ErrorCode
from kio.schema.fetch.v12 import response as kio_fetch
from kio.schema.produce.v9 import request as kio_produce
from kio.serial import entity_reader, entity_writer
from prometheus_client import CollectorRegistry

from headrace.agent.listener.host import Limits
from headrace.agent.listener.server import KafkaListener
from headrace.protocol.fetch_codec import FetchPartitionReply, FetchReply, FetchTopicReply, encode_fetch_response
from headrace.protocol.produce_codec import decode_produce
from headrace.protocol.request import Request, Response
from headrace.storage.clock import SystemClock
from load.harness import Benchmark, BenchmarkRun

BATCH_BYTES = 16 * 1024
FETCH_PARTITIONS = 50
FETCH_BYTES = 64 * 1024
SOCKET_BYTES = 1_000_000_000
HELD_BYTES = 16 * 1024 * 1024
HEADER = struct.pack(">hhih4s", 0, 9, 1, 4, b"load") + b"\0"
NO_TIME = datetime.timedelta(0)


# -- codecs


def microseconds(call: Callable[[], object]) -> float:
    """CPU time per call, since others may share the machine; the best of twenty rounds of about 20 ms."""
    timer = timeit.Timer(call, timer=time.process_time)
    once = max(timer.timeit(100) / 100, 1e-7)
    number = max(1, int(0.02 / once))
    return min(timer.repeat(20, number)) / number * 1e6


def table(run: BenchmarkRun, title: str, unit: str, rows: list[tuple[str, float]]) -> None:
    """One block; the first row is ours."""
    run.note(title)
    for name, value in rows:
        run.row(name, {unit: value, "of ours": value / rows[0][1]})


def produce_body(partitions: int) -> bytes:
    request = kio_produce.ProduceRequest(
        acks=-1,  # type: ignore[arg-type]
        timeout=datetime.timedelta(seconds=30),  # type: ignore[arg-type]
        topic_data=(
            kio_produce.TopicProduceData(
                name="topic",  # type: ignore[arg-type]
                partition_data=tuple(
                    kio_produce.PartitionProduceData(index=i, records=bytes(BATCH_BYTES))  # type: ignore[arg-type]
                    for i in range(partitions)
                ),
            ),
        ),
    )
    buffer = io.BytesIO()
    entity_writer(kio_produce.ProduceRequest)(buffer, request)
    return buffer.getvalue()


def bench_produce(run: BenchmarkRun, partitions: int) -> None:
    body = produce_body(partitions)
    window = memoryview(body)
    read = entity_reader(kio_produce.ProduceRequest)
    rows = [
        ("headrace", microseconds(lambda: decode_produce(window, 9))),
        ("kio (copies records)", microseconds(lambda: read(body, 0))),
        ("kafka-python", microseconds(lambda: KafkaPythonProduceRequest.decode(body, version=9))),
    ]
    table(run, f"decode Produce v9, {partitions} partitions of 16 KiB", "us", rows)


def bench_fetch(run: BenchmarkRun) -> None:
    records = bytes(FETCH_BYTES)
    window = memoryview(records)
    indexes = range(FETCH_PARTITIONS)

    def ours() -> object:
        partitions = [FetchPartitionReply(i, 0, 9, 9, 0, [window]) for i in indexes]
        return encode_fetch_response(1, 12, FetchReply([FetchTopicReply("topic", None, partitions)]))

    write = entity_writer(kio_fetch.FetchResponse)

    def kio() -> object:
        buffer = io.BytesIO()
        write(buffer, _kio_fetch_response(records))
        return buffer.getvalue()

    def kafka_python() -> object:
        partitions = [
            KafkaPythonFetchResponse.FetchableTopicResponse.PartitionData(
                partition_index=i,
                error_code=0,
                high_watermark=9,
                last_stable_offset=9,
                log_start_offset=0,
                aborted_transactions=None,
                preferred_read_replica=-1,
                records=records,
            )
            for i in indexes
        ]
        topic = KafkaPythonFetchResponse.FetchableTopicResponse(topic="topic", partitions=partitions)
        return KafkaPythonFetchResponse(throttle_time_ms=0, error_code=0, session_id=0, responses=[topic]).encode(
            version=12
        )

    rows = [
        ("headrace (gather list)", microseconds(ours)),
        ("kio", microseconds(kio)),
        ("kafka-python", microseconds(kafka_python)),
    ]
    table(run, "encode Fetch v12 response, 50 partitions of 64 KiB", "us", rows)


def _kio_fetch_response(records: bytes) -> kio_fetch.FetchResponse:
    values: dict[str, Any] = {"error_code": ErrorCode.none, "high_watermark": 9, "last_stable_offset": 9}
    partitions = tuple(
        kio_fetch.PartitionData(
            partition_index=i,  # type: ignore[arg-type]
            log_start_offset=0,  # type: ignore[arg-type]
            aborted_transactions=None,
            records=records,  # type: ignore[arg-type]
            **values,
        )
        for i in range(FETCH_PARTITIONS)
    )
    topic = kio_fetch.FetchableTopicResponse(topic="topic", partitions=partitions)  # type: ignore[arg-type]
    return kio_fetch.FetchResponse(throttle_time=NO_TIME, error_code=ErrorCode.none, responses=(topic,))  # type: ignore[arg-type]


# -- sockets


def send_frames(port: int, frame_bytes: int) -> None:
    """The client of the receive benchmark: frames without end, answers read and dropped."""
    with socket.create_connection(("127.0.0.1", port)) as connection:
        body = bytes(frame_bytes - len(HEADER))
        frame = struct.pack(">i", frame_bytes) + HEADER + body
        together = frame * max(1, 65_536 // len(frame))
        for _ in range(SOCKET_BYTES // len(together)):
            connection.sendall(together)
            try:
                connection.recv(65_536, socket.MSG_DONTWAIT)
            except BlockingIOError:
                continue


def ask_and_read(port: int, response_bytes: int) -> None:
    """The client of the send benchmark: one request after the other, each answer read whole."""
    request = struct.pack(">i", len(HEADER)) + HEADER
    buffer = bytearray(1024 * 1024)
    with socket.create_connection(("127.0.0.1", port)) as connection:
        for _ in range(SOCKET_BYTES // response_bytes):
            connection.sendall(request)
            left = response_bytes + 4
            while left > 0:
                left -= connection.recv_into(buffer, min(left, len(buffer)))


async def cpu_per_gb(port: int, client: Callable[[int, int], None], size: int) -> float:
    """CPU seconds of this process per 10^9 bytes while the client runs."""
    process = multiprocessing.get_context("spawn").Process(target=client, args=(port, size))
    process.start()
    before = time.process_time()
    await asyncio.to_thread(process.join)
    return (time.process_time() - before) / (SOCKET_BYTES / 1e9)


async def with_listener(handle: Callable[[Request], Coroutine[Any, Any, Response]], client: Any, size: int) -> float:
    limits = Limits(100_000_000, 256 * 1024 * 1024, 64, 10, 600_000)
    listener = KafkaListener(handle, limits, SystemClock(), CollectorRegistry())
    port = await listener.start("127.0.0.1", 0)
    cost = await cpu_per_gb(port, client, size)
    await listener.drain(1)
    return cost


async def with_streams(on_frame: Callable[[bytes, asyncio.StreamWriter], None], client: Any, size: int) -> float:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                (length,) = struct.unpack(">i", await reader.readexactly(4))
                on_frame(await reader.readexactly(length), writer)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    cost = await cpu_per_gb(server.sockets[0].getsockname()[1], client, size)
    server.close()
    return cost


async def bench_receive(run: BenchmarkRun, frame_bytes: int) -> None:
    """Ours makes a task per request and keeps replies in order; the streams only read.

    Both hold the last 16 MiB, as the produce path does: memory that is reused at once stays in the
    processor's cache and favours the variant that copies most.
    """
    answer = struct.pack(">i", 1)
    held: deque[object] = deque(maxlen=HELD_BYTES // frame_bytes)

    async def silent(request: Request) -> Response:
        held.append(request.body)
        return Response(None)

    async def answering(request: Request) -> Response:
        held.append(request.body)
        return Response([answer])

    rows = [
        ("headrace, null handler", await with_listener(silent, send_frames, frame_bytes)),
        ("headrace, null handler that answers", await with_listener(answering, send_frames, frame_bytes)),
        (
            "asyncio streams, readexactly",
            await with_streams(lambda data, writer: held.append(data), send_frames, frame_bytes),
        ),
    ]
    table(run, f"receive, frames of {frame_bytes} bytes", "s/GB", rows)


async def bench_send(run: BenchmarkRun) -> None:
    records = memoryview(bytes(FETCH_BYTES))
    buffers: list[bytes | memoryview] = [struct.pack(">i", 1)]
    for _ in range(FETCH_PARTITIONS):
        buffers += (b"h" * 45, records)
    size = sum(map(len, buffers))

    async def fetch(request: Request) -> Response:
        return Response(list(buffers))

    length = struct.pack(">i", size)
    rows = [
        ("headrace (gather writes)", await with_listener(fetch, ask_and_read, size)),
        (
            "asyncio streams, writelines (joins)",
            await with_streams(lambda data, writer: writer.writelines([length, *buffers]), ask_and_read, size),
        ),
    ]
    table(run, "send, responses of 50 x 64 KiB", "s/GB", rows)


def benchmark(run: BenchmarkRun) -> None:
    for partitions in (1, 50):
        bench_produce(run, partitions)
    bench_fetch(run)
    for frame_bytes in (4_096, 65_536, 1_048_576):
        asyncio.run(bench_receive(run, frame_bytes))
    asyncio.run(bench_send(run))


BENCHMARK = Benchmark("Produce and Fetch codecs and the listener, next to other libraries", benchmark)
