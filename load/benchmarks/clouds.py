"""Clients of Azure Blob Storage and Google Cloud Storage: CPU and time of PUTs with a checksum, and of ranged GETs.

Run: `python -m load clouds`. The other ends are Azurite and fake-gcs-server on this machine (`make tools`), so times
are those of emulators that share the processors; what to compare is the CPU of this process. A library takes part if
it is installed: `pip install obstore gcloud-aio-storage google-cloud-storage`. Each PUT has the checksum by which the
service refuses an altered body, if the library can send it; the name of the row says which.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import importlib.util
import os
import statistics
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import crc32c
from awscrt.checksums import crc64nvme

from headrace.storage.clock import SystemClock
from headrace.storage.errors import OutcomeUnknownError, RetryableError
from headrace.storage.objects.azure import AzureStore
from headrace.storage.objects.azure_client import AzureOptions
from headrace.storage.objects.google import GoogleStore
from headrace.storage.objects.google_client import GoogleOptions
from headrace.storage.objects.store import ByteRange, ObjectStore
from load.harness import Benchmark, BenchmarkRun
from tests.fixtures_clouds import ACCOUNT, KEY
from tests.tools import why_missing
from tests.torture.servers import BUCKET, CREDENTIALS, NEEDS, STORES

KIB = 1024
PUT_SIZES, GET_SIZES = (64 * KIB, 1024 * KIB, 8192 * KIB), (1024 * KIB, 8192 * KIB)
IN_FLIGHT = (1, 16, 64)
ENDPOINTS = {"azure": "azure.endpoint", "google": "gcs.endpoint"}
OBJECTS = 8
"""Requests take turns over so many keys."""
PATIENCE_S = 300.0
"""Emulators are slow with 64 large bodies at once."""


class Calls(NamedTuple):
    """`put(key, body)` and `get(key, length)`, from the object's first byte."""

    put: Callable[[str, bytes], Awaitable[object]]
    get: Callable[[str, int], Awaitable[bytes]]


Client = Callable[[str], AbstractAsyncContextManager[Calls]]


@asynccontextmanager
async def ours(url: str, cloud: str) -> AsyncIterator[Calls]:
    """The requests of Headrace."""
    store: ObjectStore
    if cloud == "azure":
        store = _AsOnAzure(
            AzureOptions(account=ACCOUNT, container=BUCKET, endpoint=url, request_timeout_s=PATIENCE_S), SystemClock()
        )
    else:
        store = GoogleStore(GoogleOptions(bucket=BUCKET, endpoint=url, request_timeout_s=PATIENCE_S), SystemClock())

    async def put(key: str, body: bytes) -> object:
        while True:
            try:
                return await store.put(key, body)
            except (OutcomeUnknownError, RetryableError):
                await asyncio.sleep(0)  # Azurite ends connections that are idle for 5 s, also just then

    try:
        yield Calls(put, lambda key, length: store.get(key, ByteRange(0, length)))
    finally:
        await store.close()


class _AsOnAzure(AzureStore):
    """Azure names the CRC-64 that it stored; Azurite does not, so that a HEAD would follow each PUT."""

    async def _check_length(self, key: str, sent: int) -> None:
        """Take it as checked."""


@asynccontextmanager
async def azure_storage_blob(url: str, checksum: str) -> AsyncIterator[Calls]:
    """Microsoft's client. `checksum`: "header": of a CRC-64 that is made here; else its option validate_content."""
    from azure.core.credentials import AzureNamedKeyCredential
    from azure.storage.blob.aio import ContainerClient

    credential = AzureNamedKeyCredential(ACCOUNT, KEY)
    large = 64 * KIB * KIB
    async with ContainerClient(
        url, BUCKET, credential=credential, retry_total=0, max_single_put_size=large, max_single_get_size=large
    ) as client:

        async def put(key: str, body: bytes) -> object:
            blob = client.get_blob_client(key)
            if checksum != "header":
                return await blob.upload_blob(body, overwrite=True, validate_content=checksum)  # type: ignore[arg-type]
            crc = base64.b64encode(crc64nvme(body).to_bytes(8, "little")).decode()
            return await blob.upload_blob(body, overwrite=True, headers={"x-ms-content-crc64": crc})

        async def get(key: str, length: int) -> bytes:
            return await (await client.get_blob_client(key).download_blob(0, length)).readall()

        yield Calls(put, get)


@asynccontextmanager
async def obstore_azure(url: str) -> AsyncIterator[Calls]:
    """obstore, which has no checksum for Azure."""
    from obstore.store import AzureStore as RustStore

    store = RustStore(BUCKET, account_name=ACCOUNT, account_key=KEY, endpoint=url, client_options={"allow_http": True})

    async def get(key: str, length: int) -> bytes:
        return bytes(await store.get_range_async(key, start=0, length=length))

    yield Calls(partial(store.put_async, use_multipart=False), get)


@asynccontextmanager
async def gcloud_aio(url: str) -> AsyncIterator[Calls]:
    """gcloud-aio-storage: a multipart upload that names the CRC32C."""
    import aiohttp
    from gcloud.aio.storage import Storage

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=64)) as session:
        storage = Storage(session=session, api_root=url, api_is_dev=True)

        async def put(key: str, body: bytes) -> object:
            crc = base64.b64encode(crc32c.crc32c(body).to_bytes(4, "big")).decode()
            return await storage.upload(
                BUCKET, key, body, metadata={"crc32c": crc}, force_resumable_upload=False,
                content_type="application/octet-stream",
            )  # fmt: skip

        async def get(key: str, length: int) -> bytes:
            return bytes(await storage.download(BUCKET, key, headers={"Range": f"bytes=0-{length - 1}"}))

        yield Calls(put, get)


@asynccontextmanager
async def google_cloud_storage(url: str) -> AsyncIterator[Calls]:
    """Google's client, on threads."""
    from concurrent.futures import ThreadPoolExecutor

    from google.auth.credentials import AnonymousCredentials
    from google.cloud import storage
    from requests.adapters import HTTPAdapter

    client: Any = storage.Client(
        credentials=AnonymousCredentials(),  # type: ignore[no-untyped-call]
        project="p",
        client_options={"api_endpoint": url},
    )
    client._http.mount("http://", HTTPAdapter(pool_maxsize=64))
    bucket, loop = client.bucket(BUCKET), asyncio.get_running_loop()
    with ThreadPoolExecutor(64) as threads:

        def put(key: str, body: bytes) -> Awaitable[object]:
            blob = bucket.blob(key)
            return loop.run_in_executor(threads, lambda: blob.upload_from_string(body, checksum="crc32c", retry=None))

        def get(key: str, length: int) -> Awaitable[bytes]:
            blob = bucket.blob(key)
            return loop.run_in_executor(
                threads, lambda: blob.download_as_bytes(start=0, end=length - 1, checksum=None, retry=None)
            )

        yield Calls(put, get)


def clients(cloud: str) -> dict[str, Client]:
    """Those that are installed, by the name of their row."""
    found: dict[str, Client] = {"ours": partial(ours, cloud=cloud)}
    if cloud == "azure":
        found |= {
            "azure-storage-blob, our CRC-64": partial(azure_storage_blob, checksum="header"),
            "azure-storage-blob, its MD5": partial(azure_storage_blob, checksum="md5"),
        }
        if importlib.util.find_spec("azure.storage.extensions"):
            found["azure-storage-blob, its CRC-64"] = partial(azure_storage_blob, checksum="crc64")
        if importlib.util.find_spec("obstore"):
            found["obstore, no checksum"] = obstore_azure
    else:
        if importlib.util.find_spec("gcloud"):
            found["gcloud-aio-storage, CRC32C"] = gcloud_aio
        if importlib.util.find_spec("google.cloud") and importlib.util.find_spec("google.cloud.storage"):
            found["google-cloud-storage, CRC32C"] = google_cloud_storage
    return found


async def measured(
    client: Client, url: str, operation: str, size: int, in_flight: int, requests: int
) -> dict[str, float]:
    """Figures of so many requests, after a few that open connections."""
    body, seconds = os.urandom(size), list[float]()
    async with client(url) as calls:

        async def call(number: int) -> None:
            key = f"k{number % OBJECTS}"
            if operation == "PUT":
                await calls.put(key, body)
            elif len(await calls.get(key, size)) != size:
                raise RuntimeError("a short answer")

        await asyncio.gather(*(calls.put(f"k{number}", body) for number in range(OBJECTS)))
        await asyncio.gather(*map(call, range(in_flight)))
        numbers = iter(range(requests))

        async def some() -> None:
            for number in numbers:
                before = time.perf_counter()
                await call(number)
                seconds.append(time.perf_counter() - before)

        started = time.process_time()
        await asyncio.gather(*(some() for _ in range(in_flight)))
        spent = time.process_time() - started
    seconds.sort()
    return {
        "CPU ms a request": spent / requests * 1e3,
        "CPU s/GB": spent / (requests * size / 1e9),
        "p50 ms": statistics.median(seconds) * 1e3,
        "p99 ms": seconds[len(seconds) * 99 // 100] * 1e3,
    }


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("--clouds", default="azure,google")
    parser.add_argument(
        "--requests", type=int, default=128, help="of 1 MiB; more of smaller ones, fewer of larger ones"
    )


def benchmark(run: BenchmarkRun) -> None:
    os.environ.update(CREDENTIALS)
    for cloud in run.args.clouds.split(","):
        if reason := why_missing(NEEDS[cloud]):
            run.note(f"{cloud} is left out: {reason}")
            continue
        turns = deque(clients(cloud).items())
        for operation, sizes in (("PUT", PUT_SIZES), ("GET", GET_SIZES)):
            for size in sizes:
                # a new server for each size: Azurite keeps in memory what was replaced
                with STORES[cloud](Path(run.folder(f"{cloud}-{operation}-{size}"))) as server:
                    endpoint = str(server.settings(server.port)[ENDPOINTS[cloud]])
                    for in_flight in IN_FLIGHT:
                        _rows(run, cloud, endpoint, operation, size, in_flight, turns)
                        turns.rotate(1)  # the first of a size pays for memory that the others find


def _rows(
    run: BenchmarkRun,
    cloud: str,
    endpoint: str,
    operation: str,
    size: int,
    in_flight: int,
    turns: Iterable[tuple[str, Client]],
) -> None:
    requests = max(in_flight, run.args.requests * (2 if size < KIB * KIB else 1) // max(1, size // (2 * KIB * KIB)))
    for name, client in turns:
        figures = asyncio.run(measured(client, endpoint, operation, size, in_flight, requests))
        run.row(f"{cloud} {operation} {size // KIB} KiB, {in_flight} in flight: {name}", figures)


BENCHMARK = Benchmark(
    "CPU and time of clients of Azure and Google Cloud, with their checksums", benchmark, add_arguments
)
