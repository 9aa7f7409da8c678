"""The protocol of every object store, with its value types, keys, byte ranges, the base of its decorators.

Place: under upload (agent/produce), reads (agent/fetch), merges (compactor). open.py defines the order of the
decorators. Keys are relative to the store's prefix, `/`-separated, without a leading slash.
Invariant of keys: a valid key means the same object in S3, in a directory and in memory: no store normalises it, and
it cannot lead a directory store out of its root.
Invariant: an object is immutable after `put` returned; a reader sees all of it or NotFoundError.
If the process crashes during a put, the object is stored completely or not at all.
Errors, for every operation: ThrottledError (slow down), UnavailableError (nothing happened, try again),
OutcomeUnknownError (a put or delete with a lost response or a failure inside the store:
both may be repeated with the same bytes), InvalidError (refused: credentials, bucket, key), CorruptError (short or
altered body).
Invariant of ranges: every requested byte is in exactly one of the joined spans, for any order and overlap of the
ranges.
Invariant of decorators: `get_many` uses the decorator's `get`, so each range is retried, hedged, measured and
throttled separately: one slow range does not cause the others to be read again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from headrace.storage.errors import (
    CorruptError,
    InvalidError,
    NotFoundError,
    OutcomeUnknownError,
    RetryableError,
)

KEY_BYTES_MAX = 1024
"""S3's limit, including the store's prefix."""


def check_key(key: str) -> str:
    """`key` itself; InvalidError if it is absolute, too long, unprintable, or has an empty, `.` or `..` part."""
    if not key.isprintable():
        raise InvalidError(f"bad object key: key={key!r} reason=unprintable character")
    if len(key.encode()) > KEY_BYTES_MAX:
        raise InvalidError(f"bad object key: key={key[:40]!r}… reason=longer than {KEY_BYTES_MAX} bytes")
    if any(part in ("", ".", "..") for part in key.split("/")):
        raise InvalidError(f"bad object key: key={key!r} reason=empty or relative part")
    return key


@dataclass(frozen=True, slots=True)
class ByteRange:
    """`length` bytes from `start`; both in bytes, `length` > 0."""

    start: int
    length: int


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """The store's metadata of an object.

    `size` in bytes. `modified_ms` since the epoch on the store's clock, or on this machine's in a put's result.
    `etag` is the store's value without quotes: equal for the same put, with no other meaning.
    """

    key: str
    size: int
    modified_ms: int
    etag: str


@dataclass(frozen=True, slots=True)
class Expiration:
    """A lifecycle rule that deletes each object with this `prefix` of its key, `days` after it was written."""

    rule: str
    prefix: str
    days: int | None


@dataclass(frozen=True, slots=True)
class BucketRules:
    """What a bucket does to objects by itself.

    `versioned` and `expirations` are None where the store would not say; `refusal` then has the reason.
    `soft_delete_days`: how long deleted objects are kept, and paid for; None where the store would not say.
    """

    versioned: bool | None
    expirations: tuple[Expiration, ...] | None
    old_versions_expire: bool
    refusal: str = ""
    date: str = ""
    """The store's clock, as the Date of its answer; empty if it had none."""
    soft_delete_days: float | None = 0.0
    is_hierarchical: bool = False


class ObjectStore(Protocol):
    """All operations that Headrace needs from a bucket."""

    async def put(self, key: str, body: bytes | memoryview, *, if_absent: bool = False) -> ObjectInfo:
        """Store `body` completely: the store has confirmed all of it, so no `head` is needed afterwards.

        With `if_absent`, AlreadyExistsError if the key exists (S3 If-None-Match). The caller may change
        the buffer behind a memoryview after this returned or raised.
        """

    async def get(self, key: str, byte_range: ByteRange | None = None) -> bytes:
        """The object's bytes, or the range's. CorruptError if the range exceeds the object or the body is short."""

    def get_at_once(self, key: str, byte_range: ByteRange) -> memoryview | None:
        """The range, if this machine has it in memory; else, and for every error, None: then `get` reads it, or says
        what is wrong. Waits for nothing. What was read need not be kept: it is there again for the next reader.
        """

    async def get_many(self, key: str, ranges: Sequence[ByteRange]) -> list[bytes]:
        """One result per range, in order. The store may join close ranges into one request."""

    async def head(self, key: str) -> ObjectInfo:
        """Size and tag of the object; NotFoundError if it does not exist."""

    def list_objects(self, prefix: str = "", *, start_after: str = "") -> AsyncIterator[ObjectInfo]:
        """Every object with `prefix`, in key order, page by page. May miss objects written meanwhile."""

    async def delete_many(self, keys: Sequence[str]) -> list[str]:
        """Delete all; a missing key counts as deleted. Returns the keys with a confirmed deletion."""

    async def close(self) -> None:
        """Release connections. Operations in flight fail: UnavailableError, or OutcomeUnknownError for a sent write."""


def check_range(byte_range: ByteRange) -> None:
    """InvalidError for a range that starts before 0 or is empty: a bug of the caller."""
    if byte_range.start < 0 or byte_range.length <= 0:
        raise InvalidError(f"bad byte range: start={byte_range.start} length={byte_range.length}")


def check_inside(key: str, byte_range: ByteRange, size: int) -> None:
    """CorruptError if an object of `size` bytes is too short for the range: the caller expected a longer object."""
    check_range(byte_range)
    if byte_range.start + byte_range.length > size:
        raise CorruptError(
            f"range exceeds the object: key={key} start={byte_range.start} length={byte_range.length} size={size}"
        )


def merge_ranges(ranges: Sequence[ByteRange], gap_bytes: int) -> list[ByteRange]:
    """The fewest spans that cover `ranges` without reading more than `gap_bytes` unneeded bytes in a row.

    In order of start. O(n log n).
    """
    spans: list[ByteRange] = []
    for asked in sorted(ranges, key=lambda r: r.start):
        check_range(asked)
        if spans and asked.start <= spans[-1].start + spans[-1].length + gap_bytes:
            last = spans.pop()
            end = max(last.start + last.length, asked.start + asked.length)
            spans.append(ByteRange(last.start, end - last.start))
        else:
            spans.append(asked)
    return spans


class PageMarkers:
    """The markers of one listing's pages. A server that gives one again would be asked without end."""

    def __init__(self, what: str) -> None:
        """`what`: bucket and prefix, for errors."""
        self._what = what
        self._seen: set[int] = set()

    def new(self, marker: object) -> str:
        """The marker of the next page. CorruptError for one that this listing had, or that is none."""
        if not isinstance(marker, str) or not marker:
            raise CorruptError(f"bad listing: {self._what} error=no marker of the next page")
        if (number := hash(marker)) in self._seen:
            raise CorruptError(f"bad listing: {self._what} error=a page comes again")
        self._seen.add(number)
        return marker


async def check_length(head: Callable[[str], Awaitable[ObjectInfo]], key: str, sent: int) -> None:
    """CorruptError unless the store has `sent` bytes of an object that was just put; OutcomeUnknownError, as for any
    put, if the length is unknown.
    """
    try:
        stored = (await head(key)).size
    except NotFoundError:
        stored = 0
    except RetryableError as error:
        raise OutcomeUnknownError(f"put sent, but its length could not be checked: key={key} error={error}") from error
    if stored != sent:
        raise CorruptError(f"stored length differs: key={key} sent={sent} stored={stored}")


async def read_each(
    get: Callable[[str, ByteRange], Awaitable[bytes]], key: str, ranges: Sequence[ByteRange]
) -> list[bytes]:
    """One `get` per range, in parallel; the first failure cancels the others and is raised."""
    reads = [asyncio.ensure_future(get(key, byte_range)) for byte_range in ranges]
    try:
        return list(await asyncio.gather(*reads))
    finally:
        for read in reads:
            read.cancel()
        await asyncio.gather(*reads, return_exceptions=True)


class StoreDecorator:
    """Forwards every operation to `inner`. Contracts and errors are the protocol's."""

    def __init__(self, inner: ObjectStore) -> None:
        self._inner = inner

    async def put(self, key: str, body: bytes | memoryview, *, if_absent: bool = False) -> ObjectInfo:
        return await self._inner.put(key, body, if_absent=if_absent)

    async def get(self, key: str, byte_range: ByteRange | None = None) -> bytes:
        return await self._inner.get(key, byte_range)

    def get_at_once(self, key: str, byte_range: ByteRange) -> memoryview | None:
        return self._inner.get_at_once(key, byte_range)

    async def get_many(self, key: str, ranges: Sequence[ByteRange]) -> list[bytes]:
        return await read_each(self.get, key, ranges)

    async def head(self, key: str) -> ObjectInfo:
        return await self._inner.head(key)

    def list_objects(self, prefix: str = "", *, start_after: str = "") -> AsyncIterator[ObjectInfo]:
        return self._inner.list_objects(prefix, start_after=start_after)

    async def delete_many(self, keys: Sequence[str]) -> list[str]:
        return await self._inner.delete_many(keys)

    async def close(self) -> None:
        await self._inner.close()
