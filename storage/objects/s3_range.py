"""GETs of large ranges from S3, received without a copy into the buffer that is returned.

Place: under S3Store.get, for ranges of LARGE_BYTES and more; everything else is sent and signed by aioboto3.
load/benchmarks/store.py shows what it saves: aioboto3 needs about 1 ms of CPU for each request, and 0.8 s/GB for
bodies.
Invariant of signatures: pure; method, path and headers are signed as they are sent. The signing key of a day is
derived once.
Source: "Authenticating Requests (AWS Signature Version 4)", Amazon S3 API reference.
Invariant: only the expected answer is accepted: 206, with exactly the range's length and Content-Range. For
everything else (a refusal, a redirect, chunks, a proxy between) the answer is `None` and aioboto3 sends the request
again: it knows all errors. Only a request to slow down is raised at once. A connection is used again after a whole
answer only. A request is sent once more if its connection broke before an answer began: the server may have closed
an idle one.
Invariant of the choice between both ways: aioboto3 decides where the bucket is and finds the credentials, also
renewed ones. What its rules may add to a request (a proxy, a directory bucket, no credentials) leaves all to it.
After REFUSED_MAX answers in a row that were not as expected although aioboto3 then got the range, this server is not
asked so again.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import os
import ssl
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, NamedTuple
from urllib.parse import quote, urlsplit

import numpy as np
from botocore.httpsession import get_cert_path
from botocore.utils import get_environ_proxies

from headrace.storage.clock import Clock
from headrace.storage.errors import CorruptError, ThrottledError
from headrace.storage.objects.s3_client import CONNECT_TIMEOUT_S_MAX, S3Options
from headrace.storage.objects.store import ByteRange

UNSIGNED = "UNSIGNED-PAYLOAD"
_ALGORITHM = "AWS4-HMAC-SHA256"


class S3Keys(NamedTuple):
    """As the AWS chain has them now. `token`: of a session; None without one."""

    access_key: str
    secret_key: str
    token: str | None


def signed_get(
    path: str, host: str, region: str, credentials: S3Keys, now_ms: int, more: dict[str, str] | None = None
) -> dict[str, str]:
    """Return the headers of a GET of `path`, which is quoted already. `more`: further headers, in lower case."""
    time = datetime.fromtimestamp(now_ms / 1000, UTC).strftime("%Y%m%dT%H%M%SZ")
    headers = {"host": host, "x-amz-content-sha256": UNSIGNED, "x-amz-date": time, **(more or {})}
    if credentials.token:
        headers["x-amz-security-token"] = credentials.token
    names = sorted(headers)
    signed = ";".join(names)
    lines = "".join(f"{name}:{headers[name]}\n" for name in names)
    scope = f"{time[:8]}/{region}/s3/aws4_request"
    digest = hashlib.sha256(f"GET\n{path}\n\n{lines}\n{signed}\n{UNSIGNED}".encode()).hexdigest()
    text = f"{_ALGORITHM}\n{time}\n{scope}\n{digest}"
    signature = hmac.digest(_key(credentials.secret_key, time[:8], region), text.encode(), "sha256").hex()
    headers["authorization"] = (
        f"{_ALGORITHM} Credential={credentials.access_key}/{scope},SignedHeaders={signed},Signature={signature}"
    )
    return headers


def quoted(name: str) -> str:
    """Return an object's name as it is in a path."""
    return quote(name, safe="/-_.~")


@lru_cache(maxsize=8)
def _key(secret_key: str, day: str, region: str) -> bytes:
    key = f"AWS4{secret_key}".encode()
    for part in (day, region, "s3", "aws4_request"):
        key = hmac.digest(key, part.encode(), "sha256")
    return key


LARGE_BYTES = 256 * 1024
HEAD_BYTES_MAX = 16 * 1024
PARTIAL, SLOW_DOWN, TOO_MANY = 206, 503, 429


class Place(NamedTuple):
    """The place of a bucket: `prefix` is what precedes a key in the path."""

    scheme: str
    host: str
    prefix: str


def place_of(url: str, key: str) -> Place:
    """Return the place in a URL of the object `key`, as botocore addresses it."""
    parts = urlsplit(url)
    return Place(parts.scheme, parts.netloc, parts.path.removesuffix(key))


class _Connection(asyncio.BufferedProtocol):
    """Receives one answer at a time: its head into a small buffer, its body into the caller's."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport
        self._head = bytearray(HEAD_BYTES_MAX)
        self._received = 0
        self._body: memoryview | None = None
        self._wanted = ByteRange(0, 1)
        self._done: asyncio.Future[memoryview | int] | None = None
        self.is_open = True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_open = False
        if self._done is not None and not self._done.done():
            if self._body is not None:
                wanted = self._wanted
                self._done.set_exception(
                    CorruptError(f"truncated body: start={wanted.start} length={wanted.length} got={self._received}")
                )
            elif self._received:
                self._done.set_result(0)
            else:
                self._done.set_exception(exc or ConnectionResetError("connection lost before an answer"))

    async def ask(self, request: bytes, wanted: ByteRange) -> memoryview | int:
        """The body of the expected answer, or the status of another one, after which the connection is closed."""
        self._wanted, self._received, self._body = wanted, 0, None
        self._done = asyncio.get_running_loop().create_future()
        self.transport.write(request)
        try:
            answer = await self._done
        except BaseException:
            self.transport.abort()
            raise
        if isinstance(answer, int):
            self.transport.abort()
        return answer

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._done is None or self._done.done():
            return memoryview(self._head)  # never empty: TLS would take that for the end
        if self._body is None:
            return memoryview(self._head)[self._received :]
        return self._body[self._received :]

    def buffer_updated(self, nbytes: int) -> None:
        self._received += nbytes
        if self._done is None or self._done.done():
            self.is_open = False  # bytes without a request
            self.transport.abort()
        elif self._body is not None:
            if self._received == len(self._body):
                self._done.set_result(self._body)
        else:
            self._read_head(self._done)

    def _read_head(self, done: asyncio.Future[memoryview | int]) -> None:
        end = self._head.find(b"\r\n\r\n", 0, self._received)
        if end < 0:
            if self._received == HEAD_BYTES_MAX:
                done.set_result(0)
            return
        status = judge_head(bytes(self._head[:end]), self._wanted)
        early = self._received - end - 4
        if status != PARTIAL or early > self._wanted.length:
            done.set_result(status if status != PARTIAL else 0)
            return
        self._body = np.empty(self._wanted.length, np.uint8).data
        self._body[:early] = memoryview(self._head)[end + 4 : self._received]
        self._received = early
        if early == len(self._body):
            done.set_result(self._body)


def judge_head(head: bytes, wanted: ByteRange) -> int:
    """Return PARTIAL for the expected answer; the status of another one; 0 if it is none. Pure."""
    first, *lines = head.decode("latin-1").split("\r\n")
    version, _, rest = first.partition(" ")
    status = int(rest[:3]) if rest[:3].isdecimal() else 0
    if status != PARTIAL:
        return status
    headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    last = wanted.start + wanted.length - 1
    is_expected = (
        version == "HTTP/1.1"
        and headers.get("content-length") == str(wanted.length)
        and headers.get("content-range", "").startswith(f"bytes {wanted.start}-{last}/")
        and headers.get("connection", "keep-alive").lower() == "keep-alive"
        and "transfer-encoding" not in headers
        and headers.get("content-encoding", "identity") in ("", "identity")
    )
    return PARTIAL if is_expected else 0


class S3RangeReader:
    """Connections to one host, at most `connections`; more GETs wait."""

    def __init__(
        self, place: Place, context: ssl.SSLContext | None, connections: int, connect_timeout_s: float
    ) -> None:
        self.place = place
        self._context = context
        self._connect_timeout_s = connect_timeout_s
        self._turns = asyncio.Semaphore(connections)
        self._idle: list[_Connection] = []
        self._opened: set[_Connection] = set()

    async def get(self, path: str, headers: Mapping[str, str], wanted: ByteRange) -> memoryview | None:
        """The range; None if aioboto3 has to ask. OSError, CorruptError (a truncated body), ThrottledError."""
        last = wanted.start + wanted.length - 1
        asked = {**headers, "range": f"bytes={wanted.start}-{last}", "accept-encoding": "identity"}
        lines = "".join(f"{name}: {value}\r\n" for name, value in asked.items())
        request = f"GET {path} HTTP/1.1\r\n{lines}\r\n"
        async with self._turns:
            answer = await self._ask(request.encode(), wanted)
        if answer in (SLOW_DOWN, TOO_MANY):
            raise ThrottledError(f"store refused: operation=get path={path} status={answer}")
        return None if isinstance(answer, int) else answer

    async def _ask(self, request: bytes, wanted: ByteRange) -> memoryview | int:
        while self._idle:
            connection = self._idle.pop()
            if connection.is_open:
                try:
                    return await self._ask_on(connection, request, wanted)
                except ConnectionResetError:
                    break  # it was closed while it was idle
        return await self._ask_on(await self._connect(), request, wanted)

    async def _ask_on(self, connection: _Connection, request: bytes, wanted: ByteRange) -> memoryview | int:
        try:
            answer = await connection.ask(request, wanted)
        except BaseException:
            self._opened.discard(connection)
            raise
        if isinstance(answer, int):
            self._opened.discard(connection)
        else:
            self._idle.append(connection)
        return answer

    async def _connect(self) -> _Connection:
        address = urlsplit(f"//{self.place.host}")
        port = address.port or (443 if self.place.scheme == "https" else 80)
        async with asyncio.timeout(self._connect_timeout_s):
            _, connection = await asyncio.get_running_loop().create_connection(
                _Connection, str(address.hostname), port, ssl=self._context
            )
        self._opened.add(connection)
        return connection

    def close(self) -> None:
        """Close all connections; requests in progress fail."""
        for connection in self._opened:
            connection.transport.abort()


REFUSED_MAX = 3
DIRECTORY_BUCKET = "--x-s3"
"""How names of S3 Express end: its requests are signed for a session."""
_ANY_KEY = "k"

logger = logging.getLogger(__name__)


class LargeRanges:
    """One bucket. `session` is aioboto3's; its client is passed to each call."""

    def __init__(self, options: S3Options, session: Any, clock: Clock) -> None:
        self._options = options
        self._session = session
        self._clock = clock
        self._is_usable = not options.bucket.endswith(DIRECTORY_BUCKET)
        self._refused = 0
        self._reader: S3RangeReader | None = None
        owner = options.expected_owner
        self._more = {"x-amz-expected-bucket-owner": owner} if owner else {}

    def takes(self, byte_range: ByteRange | None) -> bool:
        """Return whether to ask here first."""
        return self._is_usable and byte_range is not None and byte_range.length >= LARGE_BYTES

    async def get(self, client: Any, name: str, byte_range: ByteRange) -> bytes | None:
        """The range of the object with this name; None if aioboto3 has to ask. Errors as S3RangeReader.get."""
        credentials = await self._credentials()
        reader = self._reader = self._reader or await self._open(client)
        if credentials is None or reader is None:
            self._give_up("no credentials, or a proxy")
            return None
        path, now_ms = f"{reader.place.prefix}{quoted(name)}", self._clock.wall_ms()
        headers = signed_get(path, reader.place.host, client.meta.region_name, credentials, now_ms, self._more)
        try:
            body = await reader.get(path, headers, byte_range)
        except ssl.SSLError as error:
            self._give_up(f"TLS: {error}")
            return None
        if body is not None:
            self._refused = 0
        return None if body is None else bytes(body)

    def answered_otherwise(self) -> None:
        """aioboto3 got what `get` did not."""
        self._refused += 1
        if self._refused >= REFUSED_MAX:
            self._give_up("the server's answers are not as expected")

    def close(self) -> None:
        """Close the connections."""
        if self._reader is not None:
            self._reader.close()

    async def _credentials(self) -> S3Keys | None:
        found = await self._session.get_credentials()
        if found is None:
            return None
        frozen = await found.get_frozen_credentials()
        return S3Keys(frozen.access_key, frozen.secret_key, frozen.token)

    async def _open(self, client: Any) -> S3RangeReader | None:
        url = await client.generate_presigned_url(
            "get_object", Params={"Bucket": self._options.bucket, "Key": _ANY_KEY}
        )
        if get_environ_proxies(url):
            return None
        place = place_of(url, _ANY_KEY)
        context = None
        if place.scheme == "https":
            context = ssl.create_default_context(cafile=os.environ.get("AWS_CA_BUNDLE") or get_cert_path(True))
        timeout_s = min(CONNECT_TIMEOUT_S_MAX, self._options.request_timeout_s)
        return S3RangeReader(place, context, max(self._options.max_connections // 2, 1), timeout_s)

    def _give_up(self, reason: str) -> None:
        if self._is_usable:
            self._is_usable = False
            logger.info("large ranges are read by aioboto3: bucket=%s reason=%s", self._options.bucket, reason)
