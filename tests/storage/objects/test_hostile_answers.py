"""Stores that answer with more, or with other things, than any store does: bodies and listings without end, bombs,
redirects elsewhere. Each costs bounded memory and time, ends in an error of ours, and shows no secret.

Fault model: a scripted server; it may be anything that is between Headrace and the store, where there is no TLS.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager

import pytest

from headrace.config.addresses import HIDDEN, without_parameters
from headrace.storage.errors import (
    CorruptError,
    HeadraceError,
    InvalidError,
    NotFoundError,
    OutcomeUnknownError,
    ThrottledError,
    UnavailableError,
)
from headrace.storage.objects import azure_client, google_client, s3, s3_session
from headrace.storage.objects.retrying import RETRY_AFTER_S_MAX, THROTTLED_BACKOFF_S_MAX, RetryingStore, pause_s
from headrace.storage.objects.s3 import S3Store
from headrace.storage.objects.store import ByteRange
from tests.fixtures_s3 import aws_credentials, s3_on
from tests.manual_clock import ManualClock
from tests.scripted_http import Exchange, ScriptedServer, Step
from tests.storage.objects.clouds import CLOUDS, CloudStore

__all__ = ["aws_credentials"]

pytestmark = [pytest.mark.requirement("X15"), pytest.mark.usefixtures("aws_credentials", "secret")]

Store = CloudStore | S3Store
Call = Callable[[Store], Awaitable[object]]
KINDS = ["azure", "google", "s3"]
SECRET = "never-shown"
LIMIT = 256 * 1024
FLOOD = 64 * 1024 * 1024
"""Far more than a store reads, with what is in buffers of sockets."""
BUFFERED = 32 * 1024 * 1024


@pytest.fixture
def secret(monkeypatch: pytest.MonkeyPatch) -> None:
    """A signature that goes with each request to Azure; Google is an emulator."""
    monkeypatch.setenv("AZURE_STORAGE_SAS_TOKEN", f"sv=1&sig={SECRET}")
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", "http://127.0.0.1:9")


@pytest.fixture
def small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, names in (
        (azure_client, ("ANSWER_BYTES_MAX", "OBJECT_BYTES_MAX")),
        (google_client, ("ANSWER_BYTES_MAX", "OBJECT_BYTES_MAX")),
        (s3, ("OBJECT_BYTES_MAX",)),
        (s3_session, ("ANSWER_BYTES_MAX",)),
    ):
        for name in names:
            monkeypatch.setattr(module, name, LIMIT)


@asynccontextmanager
async def on(kind: str, server: ScriptedServer, timeout_s: float = 60.0) -> AsyncIterator[Store]:
    if kind == "s3":
        async with s3_on(server, request_timeout_s=timeout_s) as store:
            yield store
    else:
        async with CLOUDS[kind].on(server, timeout_s=timeout_s) as cloud:
            yield cloud


async def get(store: Store) -> object:
    return await store.get("k")


async def get_part(store: Store) -> object:
    return await store.get("k", ByteRange(0, 1000))


async def list_all(store: Store) -> object:
    return [info async for info in store.list_objects()]


async def head(store: Store) -> object:
    return await store.head("k")


async def put(store: Store) -> object:
    return await store.put("k", b"body")


async def failure_of(store: Store, call: Call) -> HeadraceError:
    """The error, in which nothing is secret, and which is no page long."""
    with pytest.raises(HeadraceError) as caught:
        await call(store)
    assert SECRET not in str(caught.value)
    assert len(str(caught.value)) < 1_000
    return caught.value


def flood(status: int, sent: list[int], headers: str = "") -> Step:
    """Send FLOOD bytes in chunks; `sent`: how many it could send."""

    async def step(exchange: Exchange) -> None:
        await exchange.read_body()
        exchange.writer.write(f"HTTP/1.1 {status} Scripted\r\n{headers}Transfer-Encoding: chunked\r\n\r\n".encode())
        block, sent[0] = b"10000\r\n" + bytes(65_536) + b"\r\n", 0
        while sent[0] < FLOOD:
            exchange.writer.write(block)
            await exchange.writer.drain()
            sent[0] += 65_536
        exchange.close()

    return step


@pytest.mark.parametrize("kind", KINDS)
async def test_a_body_without_end_is_read_up_to_what_was_asked_for(kind: str, small_limits: None) -> None:
    sent = [0]
    async with ScriptedServer() as server, on(kind, server) as store:
        for call, status, headers, expected in (
            (get, 200, "", CorruptError),
            (get_part, 206, "Content-Range: bytes 0-999/1000\r\n", CorruptError),
            (get_part, 200, "", CorruptError),
            (list_all, 200, "", CorruptError),
            (get, 403, "", InvalidError),
            (list_all, 429, "", ThrottledError),
            (put, 500, "", OutcomeUnknownError),
        ):
            server.steps[:] = [flood(status, sent, headers)] * 2
            assert type(await failure_of(store, call)) is expected, (call, status)
            assert sent[0] < BUFFERED


@pytest.mark.parametrize("kind", ["azure", "google"])
async def test_a_put_with_an_answer_without_end_is_in_doubt(kind: str, small_limits: None) -> None:
    sent = [0]
    async with ScriptedServer([flood(200, sent)]) as server, on(kind, server) as store:
        assert type(await failure_of(store, put)) is OutcomeUnknownError
    assert sent[0] < BUFFERED


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "lines", [b"X-Long: " + b"a" * 1_000_000 + b"\r\n", b"".join(b"X-%d: a\r\n" % n for n in range(50_000))]
)
async def test_heads_of_megabytes(kind: str, lines: bytes) -> None:
    async def step(exchange: Exchange) -> None:
        await exchange.read_body()
        exchange.writer.write(b"HTTP/1.1 200 OK\r\n" + lines + b"Content-Length: 0\r\n\r\n")
        await exchange.writer.drain()
        exchange.close()

    async with ScriptedServer([step] * 6) as server, on(kind, server) as store:
        assert type(await failure_of(store, get)) is UnavailableError
        assert type(await failure_of(store, put)) is OutcomeUnknownError


@pytest.mark.parametrize("kind", KINDS)
async def test_a_trickle_ends_at_the_time_limit(kind: str) -> None:
    async def trickle(exchange: Exchange) -> None:
        await exchange.read_body()
        exchange.writer.write(b"HTTP/1.1 206 OK\r\nContent-Range: bytes 0-999/1000\r\nContent-Length: 1000\r\n\r\n")
        while True:
            exchange.writer.write(b"a")
            await exchange.writer.drain()
            await asyncio.sleep(0.01)

    async with ScriptedServer([trickle]) as server, on(kind, server, timeout_s=0.3) as store:
        assert type(await failure_of(store, get_part)) is UnavailableError


@pytest.mark.parametrize("kind", KINDS)
async def test_no_redirect_is_followed(kind: str) -> None:
    """Neither a token nor what it opens goes to another server; nor is an inner service asked for its secrets."""
    async with ScriptedServer() as elsewhere, ScriptedServer() as server, on(kind, server) as store:
        for status in (301, 302, 303, 307, 308):
            for call in (get, get_part, head, list_all, put):

                async def redirect(exchange: Exchange, status: int = status) -> None:
                    await exchange.read_body()
                    await exchange.answer(status, headers={"Location": f"{elsewhere.url}{exchange.target}"})

                server.steps[:] = [redirect] * 4
                error = await failure_of(store, call)
                assert type(error) is InvalidError, (call, status, error)
                assert "check=" in str(error)
        assert elsewhere.exchanges == []


def page(kind: str, marker: str, key: str = "k") -> bytes:
    """A page of a listing with one key, which says that there are more."""
    if kind == "azure":
        entry = (
            f"<Blob><Name>pre/{key}</Name><Properties><Last-Modified>Mon, 30 Nov 2026 12:00:00 GMT</Last-Modified>"
            "<Content-Length>1</Content-Length><Etag>e</Etag></Properties></Blob>"
        )
        return f"<R><Blobs>{entry}</Blobs><NextMarker>{marker}</NextMarker></R>".encode()
    if kind == "google":
        entry = f'{{"name": "pre/{key}", "size": "1", "updated": "2026-11-30T12:00:00Z", "generation": "1"}}'
        return f'{{"items": [{entry}], "nextPageToken": "{marker}"}}'.encode()
    entry = (
        f"<Contents><Key>pre/{key}</Key><LastModified>2026-11-30T12:00:00Z</LastModified><ETag>e</ETag>"
        "<Size>1</Size></Contents>"
    )
    following = f"<NextContinuationToken>{marker}</NextContinuationToken>" if marker else ""
    return f"<ListBucketResult><IsTruncated>true</IsTruncated>{following}{entry}</ListBucketResult>".encode()


def answering(*bodies: bytes, status: int = 200) -> list[Step]:
    """A step for each body."""

    def step_of(body: bytes) -> Step:
        async def step(exchange: Exchange) -> None:
            await exchange.read_body()
            await exchange.answer(status, body)

        return step

    return [step_of(body) for body in bodies]


@pytest.mark.parametrize("kind", KINDS)
async def test_a_listing_that_comes_back_to_a_page_is_given_up(kind: str) -> None:
    """Retries continue after the last key, and end, too: the pages after it have none."""
    for markers in ("aaaa", "ababab", "abcdbcd"):
        async with ScriptedServer(answering(*(page(kind, each) for each in markers))) as server:
            async with on(kind, server) as store:
                error = await failure_of(store, list_all)
                assert type(error) is CorruptError
                assert "a page comes again" in str(error)
            assert len(server.exchanges) == len(set(markers)) + 1
    clock = ManualClock()
    async with ScriptedServer(answering(*[page(kind, "a")] * 50)) as server, on(kind, server) as store:
        retrying = RetryingStore(store, retries=3, clock=clock, rng=random.Random(1))
        with pytest.raises(CorruptError, match="a page comes again"):
            await clock.run(list_all(retrying))  # type: ignore[arg-type]
        assert len(server.exchanges) < 50


async def test_a_page_of_s3_that_names_no_next_one() -> None:
    async with ScriptedServer(answering(page("s3", ""))) as server, on("s3", server) as store:
        assert "no marker" in str(await failure_of(store, list_all))


BOMB = (
    b'<?xml version="1.0"?><!DOCTYPE r [<!ENTITY a "' + b"x" * 100_000 + b'">'
    b'<!ENTITY b "' + b"&a;" * 60 + b'">]><r><Blobs><Blob><Name>&b;</Name></Blob></Blobs></r>'
)
"""Less than what the parser itself refuses."""
NESTED = b"[" * 100_000
TAGS = b"<r>" + b"<a/>" * 1_000_001 + b"</r>"


@pytest.mark.parametrize(
    ("kind", "bomb"),
    [
        ("azure", BOMB),
        ("azure", BOMB.decode().encode("utf-16")),
        ("azure", TAGS),
        ("google", NESTED),
        ("google", b'{"a":' * 100_000),
        ("google", b'{"items": [{"name": "k", "size": 1e999, "updated": "2026-11-30T12:00:00Z"}]}'),
        ("s3", BOMB),
    ],
    ids=["entities", "utf-16", "tags", "arrays", "objects", "infinite", "s3 entities"],
)
async def test_documents_that_grow_when_they_are_read(kind: str, bomb: bytes) -> None:
    async with ScriptedServer(answering(bomb)) as server, on(kind, server) as store:
        assert type(await failure_of(store, list_all)) is CorruptError
        for status, expected in ((404, NotFoundError), (403, InvalidError), (503, UnavailableError)):
            server.steps[:] = answering(*[bomb] * 3, status=status)
            if isinstance(store, CloudStore):
                store._client._bucket_exists = True  # type: ignore[union-attr]
            found = await failure_of(store, get)
            assert isinstance(found, (expected, ThrottledError)), (status, found)


def wrong_entries() -> Iterator[tuple[str, bytes]]:
    """Listings of which an entry is not as documented."""
    for kind, before, after in (
        ("azure", b"30 Nov 2026", b"30 Nov 99999999999999999999"),
        ("azure", b">1<", b">1e9<"),
        ("azure", b"<Content-Length>1</Content-Length>", b""),
        ("google", b'"2026-11-30T12:00:00Z"', b"7"),
        ("google", b'"2026-11-30T12:00:00Z"', b'"0001-01-01T00:00:00"'),
        ("google", b'"items": [', b'"items": {"a": 1}, "x": ['),
        ("google", b'"items": [', b'"items": [null, '),
        ("s3", b"2026-11-30T12:00:00Z", b"yesterday"),
        ("s3", b"<Size>1</Size>", b"<Size>much</Size>"),
        ("s3", b"<Size>1</Size>", b""),
        ("s3", b"<Key>pre/k</Key>", b""),
        ("s3", b"<Contents>", b"<Contents>&nothing;"),
    ):
        whole = page(kind, "a")
        assert before in whole
        yield kind, whole.replace(before, after)


async def test_entries_that_are_not_as_documented_are_corrupt() -> None:
    for kind, body in wrong_entries():
        async with ScriptedServer(answering(body)) as server, on(kind, server) as store:
            error = await failure_of(store, list_all)
            assert isinstance(error, (CorruptError, UnavailableError)), body
            assert isinstance(error, CorruptError) or "status=500" in str(error), "what botocore takes no part of"


@pytest.mark.parametrize("kind", KINDS)
async def test_a_head_without_what_it_is_asked_for_is_corrupt(kind: str) -> None:
    """A proxy may answer so for any address."""

    async def bare(exchange: Exchange) -> None:
        exchange.writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        await exchange.writer.drain()

    async with ScriptedServer([bare]) as server, on(kind, server) as store:
        assert type(await failure_of(store, head)) is CorruptError


@pytest.mark.parametrize("kind", ["azure", "google"])
@pytest.mark.parametrize("asked", ["99999999999999999999", "9" * 4_000, "-5", "Mon, 30 Nov 2026 12:00:00 GMT", "nan"])
async def test_a_store_that_asks_to_wait_for_days_is_asked_again(kind: str, asked: str) -> None:
    async def busy(exchange: Exchange) -> None:
        await exchange.read_body()
        await exchange.answer(429, headers={"Retry-After": asked})

    async with ScriptedServer([busy]) as server, on(kind, server) as store:
        error = await failure_of(store, put)
    assert type(error) is ThrottledError
    for attempt in range(1, 6):
        assert pause_s(attempt, error, random.Random(1)) <= RETRY_AFTER_S_MAX + THROTTLED_BACKOFF_S_MAX


def test_parameters_of_addresses_are_not_shown() -> None:
    for text in (f"400, url='http://h:1/c/k?sv=1&sig={SECRET}'", f"https://h/c/?{SECRET}", f"h/k?sig={SECRET}) and"):
        assert SECRET not in without_parameters(text)
        assert HIDDEN in without_parameters(text)
    assert without_parameters("is it there? yes") == "is it there? yes"
