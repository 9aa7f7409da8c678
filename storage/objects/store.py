"""The protocol of every object store, and its value types.

Place: under upload (agent/produce), reads (agent/fetch), merges (compactor). Keys are relative to
the store's prefix, `/`-separated, without a leading slash.
Invariant: an object is immutable after `put` returned; a reader sees all of it or NotFoundError.
If the process crashes during a put, the object is stored completely or not at all.
Errors, for every operation: ThrottledError (slow down), UnavailableError (nothing happened, try
again), OutcomeUnknownError (a put or delete with a lost response or a failure inside the store:
both may be repeated with the same bytes), InvalidError (refused: credentials, bucket, key),
CorruptError (short or altered body).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Protocol


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
