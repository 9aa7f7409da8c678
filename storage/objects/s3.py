"""Objects in S3 or an S3-compatible store.

Place: under the decorators; sends all requests to a bucket, but for large ranges (s3_range.py). aiohttp reads the
body of a PUT through botocore, which treats it as a file; it is not copied.
Invariant of a PUT's body, and of what is read of an answer: that of http_requests.py.
Invariant: a put that returned is complete in the store, confirmed by the store. S3 answers 200 only after it read
Content-Length bytes (else 400 IncompleteBody) with the CRC32C that was sent (else 400 BadDigest), and its response
contains that CRC32C, which is compared here: this proves that the object is complete, at no extra cost. A server
that returns no CRC32C may have ignored it, so this store then checks the object's length with one HEAD per put.
Objects are put in one request, regardless of their size: there are no multi-part uploads. If the process crashes
during a put, S3 drops the incomplete body.
Timeouts: `request_timeout_s` covers a whole request, including the wait for a pooled connection, and a large body
gets the time that SLOWEST_BYTES_PER_S needs in addition.
S3 general purpose buckets list keys in key order; directory buckets (S3 Express) list them in no order.
"""

from __future__ import annotations

import asyncio
import base64
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import datetime
from typing import Any

import aioboto3
import crc32c

from headrace.storage.clock import Clock
from headrace.storage.errors import (
    CorruptError,
    InvalidError,
    UnavailableError,
)
from headrace.storage.objects.http_requests import OBJECT_BYTES_MAX, BodyOfParts, beginning, time_limit_s
from headrace.storage.objects.s3_client import S3Options, new_client, of_each_put, of_each_request, send_bodies_at_once
from headrace.storage.objects.s3_errors import REQUEST_FAILURES, lacks_delete_objects, translate
from headrace.storage.objects.s3_range import LargeRanges
from headrace.storage.objects.store import (
    ByteRange,
    ObjectInfo,
    PageMarkers,
    check_key,
    check_length,
    check_range,
    read_each,
)


class RequestBody(BodyOfParts):
    """The bytes of `view`, as botocore takes a file. The buffer must not change until the request is finished."""

    def __init__(self, view: memoryview) -> None:
        super().__init__([view])

    def read(self, size: int = -1) -> bytes:
        """Botocore checks that this method exists; a call means that botocore hashes the body in Python."""
        raise RuntimeError("a put's body must not be read before it is sent: signing or checksums changed in botocore")

    def seek(self, offset: int, whence: int = 0) -> int:
        """Botocore rewinds a body that it sends again; every write starts at the beginning anyway."""
        return 0

    def tell(self) -> int:
        return 0


PAGE_KEYS = 1000
"""Keys per listing or deletion request: S3's limit."""
DELETES_AT_ONCE = 16
"""Requests in parallel, to a store that has no DeleteObjects."""

logger = logging.getLogger(__name__)


def _never() -> bool:
    return False


def _always() -> bool:
    return True


class S3Store:
    """One bucket and prefix. Connects with the first request, on the running loop; one loop per store."""

    def __init__(self, options: S3Options, clock: Clock) -> None:
        """`clock` is used only for `modified_ms` in a put's result, because S3's response contains no time."""
        self._options = options
        self._clock = clock
        self._bucket = options.bucket
        self._target, self._encryption = of_each_request(options), of_each_put(options)
        self._prefix = f"{options.prefix}/" if options.prefix else ""
        self._connecting = asyncio.Lock()
        self._connections = AsyncExitStack()
        self._client: Any = None
        self._session = aioboto3.Session()
        self._large = LargeRanges(options, self._session, clock)
        self._closed = False
        self._names_no_checksums = False
        self._deletes_one_by_one = False

    async def put(self, key: str, body: bytes | memoryview, *, if_absent: bool = False) -> ObjectInfo:
        view = memoryview(body).cast("B")
        checksum = base64.b64encode(crc32c.crc32c(view).to_bytes(4, "big")).decode()
        content = RequestBody(view)
        condition = {"IfNoneMatch": "*"} if if_absent else {}
        async with self._request("put", key, size=view.nbytes, in_doubt=lambda: content.consumed) as client:
            answer = await client.put_object(
                **self._target,
                **self._encryption,
                Key=self._name(key),
                Body=content,
                ContentLength=view.nbytes,
                ChecksumCRC32C=checksum,
                **condition,
            )
        if self._encryption and answer.get("ServerSideEncryption") != self._options.encryption:
            raise InvalidError(
                f"the store did not encrypt an object as s3.server.side.encryption says: key={key}"
                f" asked={self._options.encryption} done={answer.get('ServerSideEncryption')}"
            )
        if (stored := answer.get("ChecksumCRC32C")) is None:
            await self._check_length(key, view.nbytes)
        elif stored != checksum:
            raise CorruptError(f"stored body differs from what was sent: key={key} crc32c={stored} sent={checksum}")
        return ObjectInfo(key, view.nbytes, self._clock.wall_ms(), _etag(answer))

    async def get(self, key: str, byte_range: ByteRange | None = None) -> bytes:
        asked = {}
        if byte_range is not None:
            check_range(byte_range)
            asked["Range"] = f"bytes={byte_range.start}-{byte_range.start + byte_range.length - 1}"
        size = 0 if byte_range is None else byte_range.length
        is_large = self._large.takes(byte_range)
        async with self._request("get", key, size=size) as client:
            if is_large and byte_range is not None:
                large = await self._large.get(client, self._name(key), byte_range)
                if large is not None:
                    return large
            answer = await client.get_object(**self._target, Key=self._name(key), **asked)
            async with answer["Body"] as stream:
                body = await beginning(stream.content, size or OBJECT_BYTES_MAX)
        if byte_range is None and len(body) > OBJECT_BYTES_MAX:
            raise CorruptError(f"object is too long: key={key} limit={OBJECT_BYTES_MAX}")
        if byte_range is not None:
            _check_part(key, byte_range, answer.get("ContentRange", ""), len(body))
        if is_large:
            self._large.answered_otherwise()
        return body

    def get_at_once(self, key: str, byte_range: ByteRange) -> memoryview | None:
        """Everything is remote."""
        return None

    async def get_many(self, key: str, ranges: Sequence[ByteRange]) -> list[bytes]:
        """One request per range, in parallel up to `max_connections`; MergingStore joins close ranges."""
        return await read_each(self.get, key, ranges)

    async def head(self, key: str) -> ObjectInfo:
        async with self._request("head", key) as client:
            answer = await client.head_object(**self._target, Key=self._name(key))
        try:
            return ObjectInfo(key, answer["ContentLength"], _modified_ms(answer), _etag(answer))
        except _NOT_AS_TOLD as error:
            raise CorruptError(f"bad answer: operation=head key={key} error={error!r}") from error

    async def list_objects(self, prefix: str = "", *, start_after: str = "") -> AsyncIterator[ObjectInfo]:
        query: dict[str, Any] = {**self._target, "Prefix": self._prefix + prefix, "MaxKeys": PAGE_KEYS}
        if start_after:
            query["StartAfter"] = self._prefix + start_after
        what = f"bucket={self._bucket} prefix={prefix}"
        markers = PageMarkers(what)
        while True:
            try:
                async with self._request("list", prefix) as client:
                    page = await client.list_objects_v2(**query)
                found = [self._listed(entry) for entry in page.get("Contents", ())]
            except _NOT_AS_TOLD as error:
                raise CorruptError(f"bad listing: {what} error={error!r}") from error
            for info in found:
                yield info
            if not page.get("IsTruncated"):
                return
            query["ContinuationToken"] = markers.new(page.get("NextContinuationToken"))

    async def delete_many(self, keys: Sequence[str]) -> list[str]:
        """Delete objects in requests of 1,000 keys, or of one key if the store has no DeleteObjects.

        Keys that the store refuses to delete are logged and left out of the result.
        """
        names = list(dict.fromkeys(self._name(key) for key in keys))
        confirmed: list[str] = []
        for start in range(0, len(names), PAGE_KEYS):
            confirmed += await self._delete(names[start : start + PAGE_KEYS])
        return confirmed

    async def close(self) -> None:
        self._closed = True
        self._large.close()
        await self._connections.aclose()

    async def _check_length(self, key: str, sent: int) -> None:
        """CorruptError unless the store has `sent` bytes; OutcomeUnknownError, as for any put, if the length is
        unknown.
        """
        if not self._names_no_checksums:
            self._names_no_checksums = True
            logger.warning(
                "store returns no crc32c, so each put is checked with a HEAD request: bucket=%s", self._bucket
            )
        await check_length(self.head, key, sent)

    async def _delete(self, names: list[str]) -> list[str]:
        if not self._deletes_one_by_one:
            try:
                return await self._delete_together(names)
            except InvalidError as error:
                if not lacks_delete_objects(error.__cause__):
                    raise
                self._deletes_one_by_one = True
                logger.warning("store has no DeleteObjects, so each object is deleted by a request: error=%s", error)
        deleted: list[str] = []
        for start in range(0, len(names), DELETES_AT_ONCE):
            deleted += await self._delete_each(names[start : start + DELETES_AT_ONCE])
        return deleted

    async def _delete_each(self, names: list[str]) -> list[str]:
        """Raises if the outcome of one is unknown, or if the store has no such request either."""
        outcomes = await asyncio.gather(*map(self._delete_one, names), return_exceptions=True)
        refused = [(name, outcome) for name, outcome in zip(names, outcomes, strict=True) if outcome is not None]
        for name, error in refused:
            if not isinstance(error, InvalidError) or lacks_delete_objects(error.__cause__):
                raise error
            logger.warning("delete failed: key=%s error=%s", name, error)
        kept = {name for name, _ in refused}
        return [name.removeprefix(self._prefix) for name in names if name not in kept]

    async def _delete_one(self, name: str) -> None:
        async with self._request("delete", name, in_doubt=_always) as client:
            await client.delete_object(**self._target, Key=name)

    async def _delete_together(self, names: list[str]) -> list[str]:
        objects = [{"Key": name} for name in names]
        async with self._request("delete", names[0], in_doubt=_always) as client:
            answer = await client.delete_objects(**self._target, Delete={"Objects": objects, "Quiet": False})
        deleted = {entry["Key"] for entry in answer.get("Deleted", ())}
        for refusal in answer.get("Errors", ()):
            if refusal.get("Code") == "NoSuchKey":
                deleted.add(refusal["Key"])
            else:
                logger.warning("delete failed: key=%s code=%s", refusal.get("Key"), refusal.get("Code"))
        return [name.removeprefix(self._prefix) for name in names if name in deleted]

    def _listed(self, entry: dict[str, Any]) -> ObjectInfo:
        key = entry["Key"].removeprefix(self._prefix)
        return ObjectInfo(key, entry["Size"], _modified_ms(entry), _etag(entry))

    def _name(self, key: str) -> str:
        return check_key(self._prefix + check_key(key))

    @asynccontextmanager
    async def _request(
        self, operation: str, key: str, *, size: int = 0, in_doubt: Callable[[], bool] = _never
    ) -> AsyncIterator[Any]:
        """The client, for one request within its time limit; converts errors to Headrace's errors.

        `size`: bytes of the body that is sent or asked for; 0 if it is small or unknown. `in_doubt` is called after a
        failure: it says whether the request may have changed the store.
        """
        try:
            async with asyncio.timeout(time_limit_s(self._options.request_timeout_s, size)):
                yield await self._connected()
        except REQUEST_FAILURES as error:
            request = f"operation={operation} bucket={self._bucket} key={key}"
            raise translate(error, request, in_doubt=in_doubt()) from error

    async def _connected(self) -> Any:
        async with self._connecting:
            if self._closed:
                raise UnavailableError(f"store is closed: bucket={self._bucket}")
            if self._client is None:
                self._client = await self._connections.enter_async_context(new_client(self._options, self._session))
                send_bodies_at_once(self._client)
        return self._client


_NOT_AS_TOLD = (KeyError, OverflowError, TypeError, ValueError)
"""What botocore raises for the parts of an answer that is not as S3 documents it, and what its parts raise here."""


def _check_part(key: str, byte_range: ByteRange, content_range: str, received: int) -> None:
    """CorruptError unless the response is exactly the requested range: S3 truncates a range at the object's end."""
    last = byte_range.start + byte_range.length - 1
    if received != byte_range.length or not content_range.startswith(f"bytes {byte_range.start}-{last}/"):
        raise CorruptError(
            f"incomplete range returned: key={key} start={byte_range.start} length={byte_range.length} "
            f"received={received} content_range={content_range!r}"
        )


def _etag(answer: dict[str, Any]) -> str:
    return str(answer.get("ETag", "")).strip('"')


def _modified_ms(answer: dict[str, Any]) -> int:
    modified: datetime = answer["LastModified"]
    return round(modified.timestamp() * 1000)
