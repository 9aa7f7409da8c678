"""Large ranges past aioboto3: the expected answer is taken, everything else is left to aioboto3 or is its error."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

import pytest
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from headrace.storage.errors import CorruptError, NotFoundError, ThrottledError, UnavailableError
from headrace.storage.objects import s3_range
from headrace.storage.objects.s3_range import (
    HEAD_BYTES_MAX,
    LARGE_BYTES,
    PARTIAL,
    REFUSED_MAX,
    LargeRanges,
    S3Keys,
    judge_head,
    place_of,
    quoted,
    signed_get,
)
from headrace.storage.objects.store import ByteRange
from tests.fixtures_s3 import aws_credentials, s3_at, s3_on
from tests.patch import Patch
from tests.scripted_http import Exchange, ScriptedServer, Step, never_answer, refusing

__all__ = ["aws_credentials"]

pytestmark = pytest.mark.usefixtures("aws_credentials")

BODY = random.Random(7).randbytes(2_000_000)
RANGE = ByteRange(1_000, LARGE_BYTES)
WANTED = BODY[1_000 : 1_000 + LARGE_BYTES]


def _range_of(exchange: Exchange) -> tuple[int, int]:
    first, last = exchange.headers["range"].removeprefix("bytes=").split("-")
    return int(first), int(last)


async def serve(exchange: Exchange) -> None:
    """Answer as S3 does."""
    first, last = _range_of(exchange)
    headers = {"Content-Range": f"bytes {first}-{last}/{len(BODY)}"}
    await exchange.answer(206, BODY[first : last + 1], headers)


async def whole(exchange: Exchange) -> None:
    """Ignore the range."""
    await exchange.answer(200, BODY)


def is_own(exchange: Exchange) -> bool:
    """Return whether the request came past aioboto3."""
    return "user-agent" not in exchange.headers


async def got(*steps: Step) -> tuple[list[bool], bytes]:
    """One GET; whether each request was our own, and the range."""
    async with ScriptedServer(list(steps)) as server, s3_on(server) as store:
        found = await store.get("k", RANGE)
    return [is_own(exchange) for exchange in server.exchanges], found


async def test_a_large_range_is_one_request_and_a_connection_is_used_again() -> None:
    async with ScriptedServer([serve] * 3) as server, s3_on(server) as store:
        for start in (0, 5, 1_000_000):
            assert await store.get("k", ByteRange(start, LARGE_BYTES)) == BODY[start : start + LARGE_BYTES]
        assert [is_own(exchange) for exchange in server.exchanges] == [True] * 3
        assert len({exchange.writer for exchange in server.exchanges}) == 1
        assert server.exchanges[0].target == "/bucket/pre/k"


async def test_small_ranges_and_whole_objects_are_aioboto3s() -> None:
    async with ScriptedServer([serve, whole]) as server, s3_on(server) as store:
        assert await store.get("k", ByteRange(3, LARGE_BYTES - 1)) == BODY[3 : LARGE_BYTES + 2]
        assert await store.get("k") == BODY
        assert [is_own(exchange) for exchange in server.exchanges] == [False] * 2


async def test_an_answer_in_small_pieces_is_the_same() -> None:
    async def slowly(exchange: Exchange) -> None:
        first, last = _range_of(exchange)
        lines = f"Content-Range: bytes {first}-{last}/9\r\ncontent-length: {last - first + 1}"
        data = f"HTTP/1.1 206 Partial\r\n{lines}\r\n\r\n".encode() + BODY[first : last + 1]
        for start in range(0, 300, 7):
            exchange.writer.write(data[start : start + 7])
            await exchange.writer.drain()
            await asyncio.sleep(0)
        exchange.writer.write(data[start + 7 :])

    assert await got(slowly) == ([True], WANTED)


def answering(status: int, headers: dict[str, str], body: bytes = WANTED) -> Step:
    async def answer(exchange: Exchange) -> None:
        await exchange.answer(status, body, headers)

    return answer


async def chunked(exchange: Exchange) -> None:
    exchange.writer.write(b"HTTP/1.1 206 Partial\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n")


async def nonsense(exchange: Exchange) -> None:
    exchange.writer.write(b"hello" * HEAD_BYTES_MAX)


@pytest.mark.parametrize(
    "step",
    [
        whole,
        chunked,
        nonsense,
        refusing(500, "InternalError"),
        refusing(307, "TemporaryRedirect"),
        answering(206, {"Content-Range": f"bytes 1001-{1_000 + LARGE_BYTES}/2000000"}),
        answering(206, {}),
        answering(206, {"Content-Range": f"bytes 1000-{999 + LARGE_BYTES}/2000000"}, WANTED[:-1]),
        answering(206, {"Content-Range": f"bytes 1000-{999 + LARGE_BYTES}/2000000", "Content-Encoding": "gzip"}),
        answering(206, {"Content-Range": f"bytes 1000-{999 + LARGE_BYTES}/2000000", "Connection": "close"}),
    ],
)
async def test_any_other_answer_is_left_to_aioboto3(step: Step) -> None:
    assert await got(step, serve) == ([True, False], WANTED)


async def test_a_missing_object_is_aioboto3s_error() -> None:
    async with ScriptedServer([refusing(404, "NoSuchKey")] * 2) as server, s3_on(server) as store:
        with pytest.raises(NotFoundError):
            await store.get("k", RANGE)


@pytest.mark.parametrize(("status", "code"), [(503, "SlowDown"), (429, "TooManyRequests")])
async def test_a_request_to_slow_down_is_not_followed_by_another(status: int, code: str) -> None:
    async with ScriptedServer([refusing(status, code)]) as server, s3_on(server) as store:
        with pytest.raises(ThrottledError):
            await store.get("k", RANGE)
        assert len(server.exchanges) == 1


async def test_a_body_that_ends_early_is_corrupt() -> None:
    async def cut(exchange: Exchange) -> None:
        first, last = _range_of(exchange)
        await exchange.answer(206, WANTED, {"Content-Range": f"bytes {first}-{last}/2000000"}, send=100_000)
        exchange.close()

    async with ScriptedServer([cut, serve]) as server, s3_on(server) as store:
        with pytest.raises(CorruptError, match="got=100000"):
            await store.get("k", RANGE)
        assert await store.get("k", RANGE) == WANTED


async def test_a_connection_that_was_closed_while_idle_is_replaced() -> None:
    async def serve_and_close(exchange: Exchange) -> None:
        await serve(exchange)
        exchange.close()

    async def close(exchange: Exchange) -> None:
        exchange.close()

    async with ScriptedServer([serve_and_close, serve, close, serve]) as server, s3_on(server) as store:
        for _ in range(3):
            assert await store.get("k", RANGE) == WANTED
        assert len(server.exchanges) == 4


async def test_a_server_that_closes_new_connections_is_unavailable() -> None:
    async def close(exchange: Exchange) -> None:
        exchange.close()

    async with ScriptedServer([close] * 4) as server, s3_on(server) as store:
        with pytest.raises(UnavailableError):
            await store.get("k", RANGE)


async def test_bytes_without_a_request_end_a_connection() -> None:
    async def too_much(exchange: Exchange) -> None:
        await serve(exchange)
        exchange.writer.write(b"HTTP/1.1 206 Partial\r\n")

    async with ScriptedServer([too_much, serve]) as server, s3_on(server) as store:
        assert await store.get("k", RANGE) == WANTED
        await asyncio.sleep(0.05)
        assert await store.get("k", RANGE) == WANTED
        assert len({exchange.writer for exchange in server.exchanges}) == 2


async def test_a_cancelled_get_closes_its_connection_and_gives_its_turn_on() -> None:
    async with ScriptedServer([never_answer, serve]) as server, s3_on(server, max_connections=2) as store:
        slow = asyncio.ensure_future(store.get("slow", RANGE))
        await server.reached.wait()
        slow.cancel()
        with pytest.raises(asyncio.CancelledError):
            await slow
        assert await store.get("k", RANGE) == WANTED


async def test_silence_ends_at_the_time_limit() -> None:
    async with ScriptedServer([never_answer]) as server, s3_on(server, request_timeout_s=0.05) as store:
        with pytest.raises(UnavailableError):
            await store.get("k", RANGE)


async def test_at_most_half_of_the_connections_read_large_ranges() -> None:
    at_once = most = 0

    async def slowly(exchange: Exchange) -> None:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        await asyncio.sleep(0.02)
        at_once -= 1
        await serve(exchange)

    async with ScriptedServer([slowly] * 12) as server, s3_on(server, max_connections=6) as store:
        await asyncio.gather(*(store.get("k", RANGE) for _ in range(12)))
    assert most <= 3


async def test_a_server_with_other_answers_is_asked_by_aioboto3_alone(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    async with ScriptedServer([*[chunked, serve] * REFUSED_MAX, serve]) as server, s3_on(server) as store:
        for _ in range(REFUSED_MAX + 1):
            assert await store.get("k", RANGE) == WANTED
        assert [is_own(exchange) for exchange in server.exchanges] == [True, False] * REFUSED_MAX + [False]
    assert "large ranges are read by aioboto3" in caplog.text


async def test_a_proxy_and_a_directory_bucket_are_left_to_aioboto3(monkeypatch: pytest.MonkeyPatch) -> None:
    from dataclasses import replace

    store = s3_at("http://127.0.0.1:1")
    express = LargeRanges(replace(store._options, bucket="b--use1-az4--x-s3"), store._session, store._clock)
    assert not express.takes(RANGE)
    monkeypatch.setattr("headrace.storage.objects.s3_range.get_environ_proxies", lambda url: {"http": "http://p"})
    async with ScriptedServer([serve]) as server:
        store = s3_at(server.url)
        assert await store.get("k", RANGE) == WANTED
        assert not is_own(server.exchanges[0])
        await store.close()


@pytest.mark.parametrize("token", [None, "a/token=="])
def test_the_signature_is_botocores(token: str | None) -> None:
    """For the same headers. Real servers check it in tests/contracts/test_object_store_contract.py."""
    path, host = f"/bucket/{quoted('pre/a b+ü~*')}", "127.0.0.1:9000"
    more = {"x-amz-expected-bucket-owner": "123456789012"}
    mine = signed_get(path, host, "eu-north-1", S3Keys("id", "secret", token), 1_700_000_000_000, more)
    request = AWSRequest("GET", f"http://{host}{path}", headers=more)
    request.context = {"timestamp": mine["x-amz-date"], "payload_signing_enabled": False, "signing": {}}
    request.headers["X-Amz-Content-SHA256"] = mine["x-amz-content-sha256"]
    auth = S3SigV4Auth(Credentials("id", "secret", token), "s3", "eu-north-1")
    request.headers["X-Amz-Date"] = mine["x-amz-date"]
    if token:
        request.headers["X-Amz-Security-Token"] = token
    canonical = auth.canonical_request(request)
    canonical = canonical.rpartition("\n")[0] + "\nUNSIGNED-PAYLOAD"
    signature = auth.signature(auth.string_to_sign(request, canonical), request)
    assert mine["authorization"].endswith(f"Signature={signature}")


def test_a_place_is_where_botocore_addresses_the_bucket() -> None:
    url = "https://b.s3.eu-north-1.amazonaws.com/k?X-Amz-Signature=1"
    assert place_of(url, "k") == ("https", "b.s3.eu-north-1.amazonaws.com", "/")
    assert place_of("http://127.0.0.1:9/x/bucket/k?a", "k") == ("http", "127.0.0.1:9", "/x/bucket/")


@pytest.mark.parametrize(
    ("line", "status"),
    [
        ("HTTP/1.1 206 Partial Content", PARTIAL),
        ("HTTP/1.0 206 Partial Content", 0),
        ("HTTP/1.1 403 No", 403),
        ("x", 0),
    ],
)
def test_the_first_line_decides(line: str, status: int) -> None:
    head = f"{line}\r\nContent-Length: 10\r\nContent-Range: bytes 5-14/100"
    assert judge_head(head.encode(), ByteRange(5, 10)) == status


async def test_a_bug_that_takes_a_part_for_the_range_is_caught(patch: Patch) -> None:
    """A planted bug: Content-Range is not looked at."""
    patch.replace(s3_range, "judge_head", lambda head, wanted: int(head.split()[1]))
    proof: Callable[[Step], Awaitable[None]] = test_any_other_answer_is_left_to_aioboto3
    with pytest.raises(AssertionError):
        await proof(answering(206, {"Content-Range": f"bytes 1001-{1_000 + LARGE_BYTES}/2000000"}))
