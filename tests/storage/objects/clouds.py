"""Stores of Azure and Google on a scripted server, and how each of these services answers well and badly.

Fault model: that of tests/scripted_http.py.
"""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import crc32c

from headrace.storage.clock import Clock, SystemClock
from headrace.storage.objects.azure import AzureStore
from headrace.storage.objects.azure_client import AzureOptions
from headrace.storage.objects.google import GoogleStore
from headrace.storage.objects.google_client import GoogleOptions
from tests.scripted_http import Exchange, ScriptedServer, Step

CloudStore = AzureStore | GoogleStore


async def azure_accepts(exchange: Exchange) -> None:
    """Name the checksum that came with a body."""
    await exchange.read_body()
    name = "x-ms-content-crc64"
    await exchange.answer(201, headers={name: exchange.headers[name]} if name in exchange.headers else {})


def sent_object(exchange: Exchange) -> bytes:
    """The object inside an upload to Google, or the whole body elsewhere."""
    kind = exchange.headers.get("content-type", "")
    if "boundary=" not in kind:
        return exchange.body
    boundary = kind.partition("boundary=")[2].encode()
    return exchange.body.split(b"\r\n\r\n", 2)[-1].removesuffix(b"\r\n--" + boundary + b"--\r\n")


async def google_accepts(exchange: Exchange) -> None:
    """Describe the object that came."""
    await exchange.read_body()
    body = sent_object(exchange)
    checksum = base64.b64encode(crc32c.crc32c(body).to_bytes(4, "big")).decode()
    told = {"name": "k", "size": str(len(body)), "crc32c": checksum, "generation": "7"}
    await exchange.answer(200, json.dumps(told | {"updated": "2026-11-30T12:00:00Z"}).encode())


@dataclass(frozen=True, slots=True)
class Cloud:
    """`refuses(status, code)`: a step that reads the body, and then refuses as the service does."""

    name: str
    open: Callable[[str, Clock, float], CloudStore]
    accepts: Step
    refuses: Callable[[int, str], Step]
    condition: str
    """What a conditional put has in its head or target."""
    exists: tuple[int, str]
    """The refusal of a conditional put."""
    checksum: tuple[int, str]
    """The refusal of an altered body."""
    no_bucket: tuple[int, str]

    @asynccontextmanager
    async def on(
        self, server: ScriptedServer, *, clock: Clock | None = None, timeout_s: float = 10.0
    ) -> AsyncIterator[CloudStore]:
        """A store on the server, closed at the end of the block."""
        store = self.open(server.url, clock or SystemClock(), timeout_s)
        try:
            yield store
        finally:
            await store.close()


def _azure(url: str, clock: Clock, timeout_s: float) -> CloudStore:
    options = AzureOptions(
        account="account1", container="bucket", prefix="pre", endpoint=url, request_timeout_s=timeout_s
    )
    return AzureStore(options, clock)


def _google(url: str, clock: Clock, timeout_s: float) -> CloudStore:
    return GoogleStore(GoogleOptions(bucket="bucket", prefix="pre", endpoint=url, request_timeout_s=timeout_s), clock)


def azure_refuses(status: int, code: str, headers: dict[str, str] | None = None) -> Step:
    """A refusal with Azure's code; an empty code: of a proxy before it."""

    async def step(exchange: Exchange) -> None:
        await exchange.read_body()
        named = {"x-ms-error-code": code} if code else {}
        await exchange.answer(status, b"<Error/>", headers={**named, **(headers or {})})

    return step


def google_refuses(status: int, code: str, headers: dict[str, str] | None = None) -> Step:
    """A refusal with Google's reason; what follows a colon is the message."""

    async def step(exchange: Exchange) -> None:
        await exchange.read_body()
        reason, _, message = code.partition(":")
        error = {"error": {"code": status, "message": message, "errors": [{"reason": reason}]}}
        await exchange.answer(status, json.dumps(error).encode(), headers=headers)

    return step


CLOUDS = {
    cloud.name: cloud
    for cloud in (
        Cloud(
            "azure", _azure, azure_accepts, azure_refuses, '"if-none-match": "*"',
            (409, "BlobAlreadyExists"), (400, "Crc64Mismatch"), (404, "ContainerNotFound"),
        ),
        Cloud(
            "google", _google, google_accepts, google_refuses, "ifGenerationMatch=0",
            (412, "conditionNotMet"), (400, "invalid:Provided CRC32C does not match"),
            (404, "notFound:The specified bucket does not exist."),
        ),
    )
}  # fmt: skip
