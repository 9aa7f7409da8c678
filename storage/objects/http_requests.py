"""Requests over HTTP to Azure Blob Storage and Google Cloud Storage, and the token that goes with them.

Place: under azure.py and google.py, which know addresses, headers and error codes; S3's requests are aioboto3's.
Invariant of a body: it is written once, completely, from its first byte. After a byte may have been sent, `consumed`
is true and stays true: aiohttp then does not repeat the request by itself (its own duplicate would make a conditional
put fail), and a failure leaves the outcome unknown. Requests without a body may be sent once more by aiohttp if their
connection broke before an answer: reads and deletions, which may be repeated.
Invariant of errors: UnavailableError and ThrottledError are raised only if the request certainly changed nothing.
Invariant of a token: it is asked for once at a time, by all who wait; a request that is cancelled does not end the
renewal for others. It is renewed RENEW_BEFORE_S before it expires, while requests still use the old one.
Invariant of an answer: it is read up to what was asked for, so that a server without an end costs no more memory. No
redirect is followed, with or without a token. An error names no parameter of an address: it may be a signature.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import NamedTuple
from urllib.request import getproxies, proxy_bypass

import aiohttp
from aiohttp.abc import AbstractStreamWriter
from aiohttp.payload import Payload
from yarl import URL

from headrace.config.addresses import without_logins, without_parameters
from headrace.storage.clock import Clock
from headrace.storage.errors import (
    CorruptError,
    HeadraceError,
    InvalidError,
    NotFoundError,
    OutcomeUnknownError,
    ThrottledError,
    UnavailableError,
)
from headrace.storage.objects.store import ByteRange

SLICE_BYTES = 256 * 1024
"""Written in one piece, because the socket accepts nearly all of it directly. By default a body is first joined to its
headers, and the part the socket does not accept is copied again (`load/benchmarks/store.py` shows the cost)."""
SLOWEST_BYTES_PER_S = 4 * 1024 * 1024
"""A connection to a store is an order of magnitude faster; a slower one is given up and made again."""
OBJECT_BYTES_MAX = 2 * 1024 * 1024 * 1024
"""The limit of an object that is read whole: twice the largest compaction.file.bytes."""
ANSWER_BYTES_MAX = 8 * 1024 * 1024
"""The limit of any other answer. A listing of 1,000 keys may have 7 MB: 1,024 characters each, all of them escaped."""
REFUSAL_BYTES_MAX = 64 * 1024
"""What is behind it in a refusal is not read."""
CODE_CHARS_MAX = 100
"""The length of a server's error code in our text."""
CONNECT_TIMEOUT_S_MAX = 3.0
DELETES_AT_ONCE = 32
RENEW_BEFORE_S = 240.0
"""Google's metadata server has a new token from 5 minutes before the old one expires, as azure-identity does."""
TOKEN_WAIT_S = 30.0
"""The limit of one request's wait for a token; the renewal goes on."""
RENEWAL_PAUSE_S = 10.0
"""The pause between two renewals, while the old token is good: the first may have failed, or brought the same token."""
DISTRUST_AFTER_S = 60.0
"""A token of this age that is refused was good before: a new one is worth a request."""

logger = logging.getLogger(__name__)


class BodyOfParts(Payload):
    """The bytes of `parts`, one after another. No buffer may change until the request is finished."""

    def __init__(self, parts: Sequence[bytes | memoryview], content_type: str = "application/octet-stream") -> None:
        views = [memoryview(part).cast("B") for part in parts]
        super().__init__(views, content_type=content_type)
        self._size = sum(view.nbytes for view in views)

    async def write_with_length(self, writer: AbstractStreamWriter, content_length: int | None) -> None:
        """Called by aiohttp, after Content-Length is set to the full size."""
        self._consumed = True
        writer.send_headers()
        for view in self._value:
            for start in range(0, view.nbytes, SLICE_BYTES):
                await writer.write(view[start : start + SLICE_BYTES])

    async def write(self, writer: AbstractStreamWriter) -> None:
        await self.write_with_length(writer, None)

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        return b"".join(self._value).decode(encoding, errors)


class Answer(NamedTuple):
    """`headers` without regard to case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class StoreRequest:
    """`what`: operation, bucket and key, for errors. `size`: bytes of the answer that are asked for, if known; `limit`:
    how many there may be if not.

    `changes`: whether the request may change the store.
    """

    method: str
    url: URL
    what: str
    headers: Mapping[str, str]
    body: BodyOfParts | None = None
    size: int = 0
    changes: bool = False
    limit: int = ANSWER_BYTES_MAX


class HttpRequests:
    """Connections to one store. They are opened by the first request, on the running loop; one loop per store."""

    def __init__(self, max_connections: int, request_timeout_s: float, endpoint_setting: str) -> None:
        """`endpoint_setting` is named by errors of addresses."""
        self._max_connections = max_connections
        self._request_timeout_s = request_timeout_s
        self._endpoint_setting = endpoint_setting
        self._tls = ssl.create_default_context()  # aiohttp's own does not see SSL_CERT_FILE if that is set late
        self._session: aiohttp.ClientSession | None = None
        self._proxy: str | None = None
        self._closed = False

    async def send(self, request: StoreRequest) -> Answer:
        """Return any whole answer, also a refusal.

        UnavailableError, or OutcomeUnknownError if the request changes something and may have been sent; CorruptError
        for a body that ends early, or is longer than the limit; InvalidError for a certificate that is not trusted. A
        refusal is whole up to REFUSAL_BYTES_MAX, and a part of an object is cut where it is longer than what was asked.
        """
        size = request.size if request.body is None else request.body.size or 0
        try:
            async with asyncio.timeout(time_limit_s(self._request_timeout_s, size)):
                return await self._send(request)
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            in_doubt = request.changes and (request.body is None or request.body.consumed)
            raise _failed(error, request.what, in_doubt, self._endpoint_setting) from error

    async def close(self) -> None:
        """Requests in progress fail."""
        self._closed = True
        if self._session is not None:
            await self._session.close()

    async def _send(self, request: StoreRequest) -> Answer:
        if self._closed:
            raise UnavailableError(f"store is closed: {request.what}")
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=self._max_connections, ssl=self._tls),
                timeout=aiohttp.ClientTimeout(
                    total=None, sock_connect=min(CONNECT_TIMEOUT_S_MAX, self._request_timeout_s)
                ),
                auto_decompress=False,
                cookie_jar=aiohttp.DummyCookieJar(),
                skip_auto_headers=("User-Agent", "Content-Type"),
            )
            self._proxy = proxy_of(request.url)
        async with self._session.request(
            request.method,
            request.url,
            headers=request.headers,
            data=request.body,
            allow_redirects=False,
            proxy=self._proxy,
        ) as answer:
            is_refusal = answer.status >= HTTPStatus.MULTIPLE_CHOICES
            limit = REFUSAL_BYTES_MAX if is_refusal else request.size or request.limit
            body = await beginning(answer.content, limit)
        if len(body) > limit and not is_refusal and not request.size:
            text = f"answer is too long: {request.what} limit={limit}"
            raise OutcomeUnknownError(text) if request.changes else CorruptError(text)
        return Answer(answer.status, answer.headers, body)


async def beginning(content: aiohttp.StreamReader, limit: int) -> bytes:
    """The body, or a beginning of it that is longer than `limit`; its connection is not used again then."""
    blocks, received = [], 0
    async for block in content.iter_any():
        blocks.append(block)
        received += len(block)
        if received > limit:
            break
    return b"".join(blocks)


def proxy_of(url: URL) -> str | None:
    """Return the proxy of the environment for a store (HTTPS_PROXY, NO_PROXY); None without one. Asked once: aiohttp by
    itself reads environment and .netrc on a thread, for each request.
    """
    if url.host is None or proxy_bypass(url.host):
        return None
    return getproxies().get(url.scheme)


def time_limit_s(request_timeout_s: float, size: int) -> float:
    """Return the limit in seconds of one request with a body of `size` bytes: a large one is not given up while it
    makes progress at all.
    """
    return request_timeout_s + size / SLOWEST_BYTES_PER_S


def _failed(error: Exception, what: str, in_doubt: bool, endpoint_setting: str) -> HeadraceError:
    said = without_parameters(without_logins(str(error)))
    text = f"store unreachable: {what} error={type(error).__name__}: {said}"
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return InvalidError(f"{text} check=the server's certificate, or SSL_CERT_FILE")
    if isinstance(error, (aiohttp.ClientConnectorDNSError, socket.gaierror)):
        return UnavailableError(f"{text} check=the bucket's address, and {endpoint_setting}")
    if isinstance(error, (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError)):
        return UnavailableError(text)
    if isinstance(error, aiohttp.InvalidURL):
        return InvalidError(f"{text} check={endpoint_setting}")
    if isinstance(error, aiohttp.ClientPayloadError) and not in_doubt:
        return CorruptError(f"truncated body: {what} error={error}")
    return OutcomeUnknownError(text) if in_doubt else UnavailableError(text)


def retry_after_s(answer: Answer) -> float | None:
    """Return how long the store asks to wait; None if it names no number of seconds."""
    text = answer.headers.get("Retry-After", "")
    return float(text) if text.isdecimal() else None


def refusal(kind: type[HeadraceError] | None, text: str, answer: Answer, *, changes: bool) -> HeadraceError:
    """Return the error for a refusal; `kind` None: the store failed inside, and may have acted."""
    if kind is None:
        return OutcomeUnknownError(text) if changes else UnavailableError(text)
    if kind is ThrottledError:
        return ThrottledError(text, retry_after_s(answer))
    return kind(text)


def range_header(byte_range: ByteRange) -> str:
    """Return the value of Range."""
    return f"bytes={byte_range.start}-{byte_range.start + byte_range.length - 1}"


def check_part(key: str, byte_range: ByteRange, answer: Answer) -> None:
    """CorruptError unless the answer is exactly the range: stores truncate a range at the object's end."""
    last = byte_range.start + byte_range.length - 1
    part = answer.headers.get("Content-Range", "")
    is_part = answer.status == HTTPStatus.PARTIAL_CONTENT and part.startswith(f"bytes {byte_range.start}-{last}/")
    if not is_part or len(answer.body) != byte_range.length:
        raise CorruptError(
            f"incomplete range returned: key={key} start={byte_range.start} length={byte_range.length}"
            f" received={len(answer.body)} content_range={part!r}"
        )


async def delete_each(delete: Callable[[str], Awaitable[None]], keys: Sequence[str]) -> list[str]:
    """Delete by one request for each key, DELETES_AT_ONCE at a time. Return the keys with a confirmed deletion.

    Raises if the outcome of one is unknown, once all are answered. Neither cloud's batches save more than connections:
    accounts with folders have none, and each part of one is a request for limits and bills.
    """
    chosen = list(dict.fromkeys(keys))
    turns, confirmed = asyncio.Semaphore(DELETES_AT_ONCE), []

    async def delete_one(key: str) -> None:
        async with turns:
            await delete(key)

    outcomes = await asyncio.gather(*map(delete_one, chosen), return_exceptions=True)
    for key, outcome in zip(chosen, outcomes, strict=True):
        if outcome is None or isinstance(outcome, NotFoundError):
            confirmed.append(key)
        elif isinstance(outcome, InvalidError):
            logger.warning("delete failed: key=%s error=%s", key, outcome)
        else:
            raise outcome
    return confirmed


class Token(NamedTuple):
    """`expires_s` on the wall clock, since the epoch."""

    value: str
    expires_s: float


class SharedToken:
    """The token of one store. `fetch` asks an identity for one: its errors are InvalidError and UnavailableError."""

    def __init__(self, fetch: Callable[[], Awaitable[Token]], clock: Clock) -> None:
        self._fetch = fetch
        self._clock = clock
        self._token: Token | None = None
        self._fetched_at = 0.0
        self._renewal: asyncio.Task[HeadraceError | None] | None = None
        self._pause_until = 0.0

    async def value(self) -> str:
        """A token that is good now. Errors as `fetch`, if there is none."""
        left_s = self._left_s()
        if left_s < RENEW_BEFORE_S and self._renewal is None and (left_s <= 0 or self._may_renew()):
            self._renewal = asyncio.create_task(self._renew())
        if left_s <= 0 and (renewal := self._renewal) is not None:
            await asyncio.wait({renewal}, timeout=TOKEN_WAIT_S)  # to be cancelled here does not cancel it for others
            if not renewal.done():
                raise UnavailableError(f"no answer of the identity in {TOKEN_WAIT_S:g} s")
            if renewal.cancelled():
                raise UnavailableError("store is closed: no token was asked for")
            if (failure := renewal.result()) is not None:
                raise failure
        assert self._token is not None
        return self._token.value

    def refused(self, used: str) -> bool:
        """The store refused the token, with which `used` ends: return whether another one is worth a request, or is
        there already.
        """
        if self._token is None or not used.endswith(self._token.value):
            return True
        if self._clock.monotonic() - self._fetched_at < DISTRUST_AFTER_S:
            return False
        self._token = self._token._replace(expires_s=0.0)
        return True

    async def close(self) -> None:
        """End a renewal."""
        if self._renewal is not None:
            self._renewal.cancel()
            await asyncio.gather(self._renewal, return_exceptions=True)

    def _left_s(self) -> float:
        return 0.0 if self._token is None else self._token.expires_s - self._clock.wall_ms() / 1000

    def _may_renew(self) -> bool:
        return self._clock.monotonic() >= self._pause_until

    async def _renew(self) -> HeadraceError | None:
        """Returns the failure for those who wait, because perhaps none does any more.

        Where there was a token, an identity that has none is an outage: its endpoint fails, not the set-up.
        """
        self._pause_until = self._clock.monotonic() + RENEWAL_PAUSE_S
        try:
            self._token = await self._fetch()
            self._fetched_at = self._clock.monotonic()
        except HeadraceError as error:
            if self._token is None:
                return error
            logger.warning("token not renewed: left_s=%d error=%s", self._left_s(), error)
            return error if isinstance(error, UnavailableError) else UnavailableError(f"token not renewed: {error}")
        finally:
            self._renewal = None
        return None
