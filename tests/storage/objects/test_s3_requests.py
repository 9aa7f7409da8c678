"""What S3Store sends, what it takes for an answer, and how it treats connections, certificates and credentials."""

from __future__ import annotations

import asyncio
import base64
import random
import ssl
from collections.abc import Awaitable
from dataclasses import replace
from pathlib import Path

import aioboto3.session
import crc32c
import pytest

from headrace.storage.errors import CorruptError, InvalidError, OutcomeUnknownError, UnavailableError
from headrace.storage.objects import s3
from headrace.storage.objects.retrying import RetryingStore
from headrace.storage.objects.s3 import DELETES_AT_ONCE, time_limit_s
from headrace.storage.objects.store import ByteRange, ObjectInfo
from load.self_signed import write_certificate
from tests.fixtures_s3 import aws_credentials, s3_at, s3_on
from tests.manual_clock import ManualClock
from tests.scripted_http import Exchange, ScriptedServer, Step, never_answer, refusing

__all__ = ["aws_credentials"]

pytestmark = pytest.mark.usefixtures("aws_credentials")

BODY = random.Random(7).randbytes(2_000_000)


async def test_waiting_for_a_connection_counts_and_leaves_no_doubt() -> None:
    async with ScriptedServer([never_answer]) as server, s3_on(server, max_connections=1) as store:
        holder = asyncio.ensure_future(store.get("slow"))
        await server.reached.wait()
        store._options = replace(store._options, request_timeout_s=0.1)  # for requests from now on
        with pytest.raises(UnavailableError):
            await store.put("k", BODY)  # the one connection is taken: certainly not sent
        holder.cancel()
        await asyncio.gather(holder, return_exceptions=True)
    assert [exchange.method for exchange in server.exchanges] == ["GET"]


async def test_a_large_body_gets_more_time(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(s3, "time_limit_s", lambda limit, size: time_limit_s(limit, (asked.append(size), size)[1]))
    store = s3_at("http://127.0.0.1:1")
    for request in (store.put("k", BODY), store.get("k", ByteRange(7, 5_000_000)), store.get("k"), store.head("k")):
        with pytest.raises(UnavailableError):
            await request
    assert asked == [len(BODY), 5_000_000, 0, 0]
    assert time_limit_s(10.0, 0) == 10.0
    assert time_limit_s(10.0, 64 * 1024 * 1024) == 26.0, "a file of compaction.file.bytes, at 4 MiB per second"
    await store.close()


async def test_a_closed_store_says_so() -> None:
    store = s3_at("http://127.0.0.1:1")
    await store.close()
    with pytest.raises(UnavailableError, match="store is closed"):
        await store.get("k")


@pytest.mark.parametrize(
    ("status", "content_range", "length"),
    [(206, "bytes 10-29/100", 20), (206, "bytes 11-30/100", 20), (206, "bytes 10-19/20", 10), (200, "", 100)],
)
async def test_only_the_asked_range_is_accepted(status: int, content_range: str, length: int) -> None:
    """A shifted part, a part cut at the object's end, a server that ignores Range: none is taken for the range."""
    headers = {"Content-Range": content_range} if content_range else {}

    async def answer(exchange: Exchange) -> None:
        assert exchange.headers["range"] == "bytes=10-29"
        assert "x-amz-checksum-mode" not in exchange.headers  # botocore would check the answer in Python
        await exchange.answer(status, bytes(length), headers)

    async with ScriptedServer([answer]) as server, s3_on(server) as store:
        if content_range.startswith("bytes 10-29"):
            assert await store.get("k", ByteRange(10, 20)) == bytes(20)
        else:
            with pytest.raises(CorruptError):
                await store.get("k", ByteRange(10, 20))


async def test_a_put_announces_exactly_what_it_sends() -> None:
    async with ScriptedServer() as server, s3_on(server) as store:
        info = await store.put("k", memoryview(b"##" + BODY)[2:], if_absent=True)
    assert (info.size, info.etag) == (len(BODY), "scripted")
    (request,) = server.exchanges
    assert (request.method, request.target) == ("PUT", "/bucket/pre/k")
    assert request.body == BODY
    assert request.headers["content-length"] == str(len(BODY))
    assert base64.b64decode(request.headers["x-amz-checksum-crc32c"]) == crc32c.crc32c(BODY).to_bytes(4, "big")
    assert request.headers["x-amz-content-sha256"] == "UNSIGNED-PAYLOAD"
    assert request.headers["if-none-match"] == "*"
    assert request.headers["user-agent"].startswith("headrace ")
    assert request.headers.keys().isdisjoint({"expect", "transfer-encoding", "content-encoding", "content-md5"})


async def test_a_stored_checksum_that_differs_is_corrupt() -> None:
    async def altered(exchange: Exchange) -> None:
        await exchange.read_body()
        await exchange.answer(headers={"x-amz-checksum-crc32c": "AAAAAA=="})

    async with ScriptedServer([altered]) as server, s3_on(server) as store:
        with pytest.raises(CorruptError, match="differs from what was sent"):
            await store.put("k", BODY)


def keeping(length: int) -> list[Step]:
    """A gateway that knows no CRC32C: it takes a body whole, and has `length` bytes of it when it is asked."""

    async def take(exchange: Exchange) -> None:
        await exchange.read_body()
        await exchange.answer()

    async def say(exchange: Exchange) -> None:
        await exchange.answer(body=bytes(length), headers={"Last-Modified": "Wed, 01 Jan 2025 00:00:00 GMT"})

    return [take, say]


async def test_an_answer_with_the_checksum_proves_the_whole_and_costs_no_request() -> None:
    async with ScriptedServer() as server, s3_on(server) as store:
        assert (await store.put("k", BODY)).size == len(BODY)
    assert [exchange.method for exchange in server.exchanges] == ["PUT"]


@pytest.mark.requirement("W3")
@pytest.mark.parametrize("kept", [len(BODY), len(BODY) // 2, 0])
async def test_a_store_that_names_no_checksum_is_asked_for_the_length(
    kept: int, caplog: pytest.LogCaptureFixture
) -> None:
    async with ScriptedServer(keeping(kept) * 2) as server, s3_on(server) as store:
        for _ in range(2):
            if kept == len(BODY):
                assert (await store.put("k", BODY)).size == kept
            else:
                with pytest.raises(CorruptError, match=f"sent={len(BODY)} stored={kept}"):
                    await store.put("k", BODY)
    assert [exchange.method for exchange in server.exchanges] == ["PUT", "HEAD"] * 2
    assert caplog.text.count("each put is checked with a HEAD request: bucket=bucket") == 1


@pytest.mark.parametrize(
    ("step", "kind"),
    [
        (refusing(503, "SlowDown"), OutcomeUnknownError),
        (refusing(500, "InternalError"), OutcomeUnknownError),
        (refusing(404, "NoSuchKey"), CorruptError),
        (refusing(403, "AccessDenied"), InvalidError),
    ],
)
async def test_a_put_with_an_unknown_length_is_outcome_unknown(step: Step, kind: type[Exception]) -> None:
    async with ScriptedServer([*keeping(0)[:1], step, step, step]) as server, s3_on(server) as store:
        with pytest.raises(kind):
            await store.put("k", BODY)


async def test_a_put_that_was_kept_short_is_sent_again_whole() -> None:
    clock = ManualClock()
    async with ScriptedServer([*keeping(len(BODY) // 2), *keeping(len(BODY))]) as server:
        store = RetryingStore(s3_at(server.url), retries=1, clock=clock, rng=random.Random(1))
        info = await clock.run(store.put("k", BODY))
        await store.close()
    assert isinstance(info, ObjectInfo)
    assert info.size == len(BODY)
    assert [exchange.body for exchange in server.exchanges if exchange.method == "PUT"] == [BODY, BODY]


async def test_what_the_store_refuses_to_delete_is_not_confirmed(caplog: pytest.LogCaptureFixture) -> None:
    async def partly(exchange: Exchange) -> None:
        await exchange.read_body()
        deleted = "<Deleted><Key>pre/a</Key></Deleted>"
        errors = "".join(
            f"<Error><Key>pre/{key}</Key><Code>{code}</Code></Error>"
            for key, code in (("b", "AccessDenied"), ("c", "NoSuchKey"), ("d", "InternalError"))
        )
        await exchange.answer(200, f"<DeleteResult>{deleted}{errors}</DeleteResult>".encode())

    async with ScriptedServer([partly]) as server, s3_on(server) as store:
        assert await store.delete_many(["a", "b", "c", "d", "unmentioned"]) == ["a", "c"]
    assert "delete failed: key=pre/b code=AccessDenied" in caplog.text
    assert "delete failed: key=pre/d code=InternalError" in caplog.text


def _md5(exchange: Exchange) -> Awaitable[None]:
    text = "Missing required header for this request: Content-MD5"
    return exchange.answer(400, f"<Error><Code>InvalidRequest</Code><Message>{text}</Message></Error>".encode())


@pytest.mark.parametrize(
    "refusal",
    [refusing(501, "NotImplemented"), refusing(405, "MethodNotAllowed"), refusing(400, "MissingContentMD5"), _md5],
)
async def test_without_delete_objects_each_object_is_deleted(refusal: Step, caplog: pytest.LogCaptureFixture) -> None:
    async def gone(exchange: Exchange) -> None:
        if exchange.target.startswith("/bucket/pre/locked"):
            await exchange.refuse(403, "AccessDenied")
        else:
            await exchange.answer(204)

    keys = [f"k{number}" for number in range(DELETES_AT_ONCE)]
    async with ScriptedServer([refusal] + [gone] * (len(keys) + 3)) as server, s3_on(server) as store:
        assert await store.delete_many([*keys, "locked"]) == keys
        assert await store.delete_many(["locked", "again"]) == ["again"]
    assert [exchange.method for exchange in server.exchanges] == ["POST"] + ["DELETE"] * (len(keys) + 3)
    assert caplog.text.count("store has no DeleteObjects") == 1
    assert "delete failed: key=pre/locked" in caplog.text


async def test_a_single_deletion_may_have_happened() -> None:
    async with (
        ScriptedServer([refusing(501, "NotImplemented"), refusing(500, "InternalError")]) as server,
        s3_on(server) as store,
    ):
        with pytest.raises(OutcomeUnknownError):
            await store.delete_many(["k"])


async def test_a_cancelled_get_gives_its_connection_back() -> None:
    async with ScriptedServer([never_answer]) as server, s3_on(server, max_connections=1) as store:
        slow = asyncio.ensure_future(store.get("slow"))
        await server.reached.wait()
        slow.cancel()
        with pytest.raises(asyncio.CancelledError):
            await slow
        assert await asyncio.wait_for(store.get("k"), timeout=600) == b""


async def test_missing_credentials_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("aioboto3.Session", aioboto3.session.Session)  # one that has not found any before
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    async with ScriptedServer() as server, s3_on(server) as store:
        with pytest.raises(InvalidError, match="credential chain"):
            await store.put("k", b"x")
        assert not server.exchanges


async def test_an_untrusted_certificate_is_named(tmp_path: Path) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*write_certificate(tmp_path))
    server = await asyncio.start_server(lambda _reader, writer: writer.close(), "127.0.0.1", 0, ssl=context)
    store = s3_at(f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    with pytest.raises(InvalidError, match="AWS_CA_BUNDLE"):
        await store.put("k", b"x")
    await store.close()
    server.close()


async def test_a_put_to_the_wrong_region_says_so_and_is_not_sent_twice() -> None:
    """A HEAD asks the server which region is right; this one does not say."""
    steps = [refusing(301, "PermanentRedirect")] * 3
    async with ScriptedServer(steps) as server, s3_on(server) as store:
        with pytest.raises(InvalidError, match=r"check=s3\.region"):
            await store.put("k", BODY)
    methods = [exchange.method for exchange in server.exchanges]
    assert (methods[0], set(methods[1:])) == ("PUT", {"HEAD"})


async def test_a_put_is_sent_for_the_region_that_the_server_names() -> None:
    async def elsewhere(exchange: Exchange) -> None:
        await exchange.read_body()
        named = b"<Error><Code>PermanentRedirect</Code></Error>"
        await exchange.answer(301, named, headers={"x-amz-bucket-region": "eu-west-1", "Location": "http://other/"})

    async with ScriptedServer([elsewhere]) as server, s3_on(server) as store:
        await store.put("k", BODY)
    first, second = server.exchanges
    assert "/us-east-1/s3/" in first.headers["authorization"]
    assert "/eu-west-1/s3/" in second.headers["authorization"]
    assert (second.method, second.body) == ("PUT", BODY)
