"""What a PUT and a GET of 4 MiB cost this process in CPU, with S3Store and without it.

Run: `python -m load store`. The other end is load/workloads/http_sink.py in a separate process, on loopback, over
http and https. Loopback makes the sender's kernel do the receiver's work as well, so figures are higher
than on a network card. The variants take turns in short rounds, so that a busy machine affects all equally;
the minimum of the rounds is shown, with the median and the ratio to S3Store's. obstore takes part if it is installed
(`pip install obstore`); the threads that run its requests count as well.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import os
import ssl
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import aioboto3
import aiohttp
from aiobotocore.config import AioConfig

from headrace.storage.clock import SystemClock
from headrace.storage.objects.s3 import S3Store
from headrace.storage.objects.s3_client import S3Options
from headrace.storage.objects.store import ByteRange
from load.harness import Benchmark, BenchmarkRun
from load.self_signed import write_certificate
from load.workloads.http_sink import GET_BYTES

BODY = bytes(GET_BYTES)
SIDE_BY_SIDE = 4
OURS = "S3Store"

Call = Callable[[], Awaitable[object]]
Variant = Callable[[str], AbstractAsyncContextManager[Call]]


def aioboto3_variant(operation: str, *, checksums: str | None = None, sign_body: bool | None = None) -> Variant:
    """`operation` as plain aioboto3 does it; None leaves a setting as it comes."""
    s3 = {"addressing_style": "path"} | ({} if sign_body is None else {"payload_signing_enabled": sign_body})
    config = AioConfig(s3=s3, request_checksum_calculation=checksums)

    @asynccontextmanager
    async def opened(url: str) -> AsyncIterator[Call]:
        async with aioboto3.Session().client("s3", endpoint_url=url, region_name="us-east-1", config=config) as client:

            async def put() -> object:
                return await client.put_object(Bucket="bucket", Key="key", Body=BODY)

            async def get() -> object:
                answer = await client.get_object(Bucket="bucket", Key="key")
                return await answer["Body"].read()

            yield put if operation == "PUT" else get

    return opened


def store_variant(operation: str) -> Variant:
    """`operation` as Headrace does it."""

    @asynccontextmanager
    async def opened(url: str) -> AsyncIterator[Call]:
        options = S3Options(bucket="bucket", endpoint=url, region="us-east-1", path_style=True)
        store = S3Store(options, SystemClock())
        everything = ByteRange(0, len(BODY))
        yield (lambda: store.put("key", BODY)) if operation == "PUT" else (lambda: store.get("key", everything))
        await store.close()

    return opened


def obstore_variant(operation: str) -> Variant:
    """`operation` as obstore does it, without a signature of the body."""
    from obstore.store import S3Store as RustStore

    @asynccontextmanager
    async def opened(url: str) -> AsyncIterator[Call]:
        store = RustStore(
            "bucket",
            endpoint=url,
            region="us-east-1",
            access_key_id="bench",
            secret_access_key="bench",
            unsigned_payload=True,
            virtual_hosted_style_request=False,
            client_options={"allow_http": True, "allow_invalid_certificates": True},
        )

        async def get() -> object:
            return await store.get_range_async("key", start=0, length=len(BODY))

        yield (lambda: store.put_async("key", BODY, use_multipart=False)) if operation == "PUT" else get

    return opened


@asynccontextmanager
async def bare_put(url: str) -> AsyncIterator[Call]:
    """The floor: the same bytes through asyncio connections, with neither signature nor HTTP library."""
    parts = urlsplit(url)
    context = ssl.create_default_context(cafile=os.environ["AWS_CA_BUNDLE"]) if parts.scheme == "https" else None
    head = f"PUT /bucket/key HTTP/1.1\r\nHost: {parts.netloc}\r\nContent-Length: {len(BODY)}\r\n\r\n".encode()
    idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
    opened: list[asyncio.StreamWriter] = []

    async def put() -> object:
        if not idle:
            idle.append(await asyncio.open_connection(parts.hostname, parts.port, ssl=context))
            opened.append(idle[-1][1])
        reader, writer = idle.pop()
        writer.write(head)
        for start in range(0, len(BODY), 256 * 1024):
            writer.write(memoryview(BODY)[start : start + 256 * 1024])
            await writer.drain()
        answer = await reader.readuntil(b"\r\n\r\n")
        idle.append((reader, writer))
        return answer

    yield put
    for writer in opened:
        writer.close()


@asynccontextmanager
async def bare_aiohttp_get(url: str) -> AsyncIterator[Call]:
    """A GET without a signature, as aiohttp alone does it."""
    context = ssl.create_default_context(cafile=os.environ.get("AWS_CA_BUNDLE"))
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=context)) as session:

        async def get() -> object:
            async with session.get(f"{url}/bucket/key", headers={"range": f"bytes=0-{len(BODY) - 1}"}) as answer:
                return await answer.read()

        yield get


def variants(operation: str) -> dict[str, Variant]:
    """Return the variants by name, in the order of the table."""
    chosen = {"aioboto3 as it comes": aioboto3_variant(operation)}
    if operation == "PUT":
        chosen["aioboto3, when_required alone"] = aioboto3_variant(operation, checksums="when_required")
        chosen["aioboto3, when_required and unsigned"] = aioboto3_variant(
            operation, checksums="when_required", sign_body=False
        )
    chosen[OURS] = store_variant(operation)
    if importlib.util.find_spec("obstore"):
        chosen["obstore"] = obstore_variant(operation)
    if operation == "PUT":
        chosen["bare asyncio (the floor)"] = bare_put
    else:
        chosen["aiohttp alone, not signed"] = bare_aiohttp_get
    return chosen


async def cpu_s_per_gb(variant: Variant, url: str, requests: int) -> float:
    """CPU seconds of this process, user and system, for 10^9 bytes; connections are up before it counts."""
    async with variant(url) as call:
        await asyncio.gather(*(call() for _ in range(SIDE_BY_SIDE)))

        async def some() -> None:
            for _ in range(requests // SIDE_BY_SIDE):
                await call()

        started = time.process_time()
        await asyncio.gather(*(some() for _ in range(SIDE_BY_SIDE)))
        spent = time.process_time() - started
    return spent / (requests // SIDE_BY_SIDE * SIDE_BY_SIDE * len(BODY) / 1e9)


@contextmanager
def sink(scheme: str, directory: Path) -> Iterator[str]:
    """URL of a sink that runs as long as the block."""
    command = [sys.executable, "-m", "load.workloads.http_sink"]
    if scheme == "https":
        certificate, key = write_certificate(directory)
        os.environ["AWS_CA_BUNDLE"] = str(certificate)
        command += [str(certificate), str(key)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield f"{scheme}://127.0.0.1:{int(process.stdout.readline())}"
    finally:
        process.terminate()
        process.wait()


def measure(run: BenchmarkRun, operation: str, scheme: str, url: str, requests: int, rounds: int) -> None:
    """Tell a row per variant."""
    chosen = variants(operation)
    spent: dict[str, list[float]] = {name: [] for name in chosen}
    for _ in range(rounds):
        for name, variant in chosen.items():
            spent[name].append(asyncio.run(cpu_s_per_gb(variant, url, requests)))
    ours = min(spent[OURS])
    for name, figures_of in spent.items():
        least = min(figures_of)
        figures = {"s/GB least": least, "s/GB median": statistics.median(figures_of), "of ours": least / ours}
        run.row(f"{operation} {scheme}, {name}", figures)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("--requests", type=int, default=60, help="requests of a round")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--operations", default="PUT,GET")


def benchmark(run: BenchmarkRun) -> None:
    args = run.args
    os.environ.update(AWS_ACCESS_KEY_ID="bench", AWS_SECRET_ACCESS_KEY="bench", AWS_EC2_METADATA_DISABLED="true")
    run.note(f"4 MiB a request, {SIDE_BY_SIDE} side by side, {args.rounds} rounds")
    for scheme in ("http", "https"):
        with sink(scheme, run.folder("sink")) as url:
            for operation in args.operations.split(","):
                measure(run, operation, scheme, url, args.requests, args.rounds)


BENCHMARK = Benchmark("CPU of a PUT and a GET of 4 MiB with the object store, and without it", benchmark, add_arguments)
