"""The protocol that every object store keeps, and the values it speaks in.

Place: under upload (agent/produce), reads (agent/fetch), merges (compactor). Keys are relative to
the store's own prefix, `/`-separated, without a leading slash.
Invariant: an object is immutable once `put` returned; a reader sees all of it or NotFoundError.
If the process dies in a put, the object is there whole or not at all: never half.
Errors, for every operation: ThrottledError (slow down), UnavailableError (nothing happened, try
again), OutcomeUnknownError (a put or delete whose answer was lost, or was a failure inside the store:
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
    """What the store knows of an object without reading it.

    `size` in bytes. `modified_ms` since the epoch on the store's clock, or on ours in a put's answer. `etag`
    is the store's own, without quotes: equal for the same put, and of no other meaning.
    """

    key: str
    size: int
    modified_ms: int
    etag: str


class ObjectStore(Protocol):
    """Everything Headrace asks of a bucket."""

    async def put(self, key: str, body: bytes | memoryview, *, if_absent: bool = False) -> ObjectInfo:
        """Store `body` whole: the answer is the store's word that it has all of it, so no `head` is needed after it.

        With `if_absent`, AlreadyExistsError when the key is taken (S3 If-None-Match). The caller may change
        the buffer behind a memoryview once this returned or raised.
        """

    async def get(self, key: str, byte_range: ByteRange | None = None) -> bytes:
        """The object's bytes, or the range's. CorruptError when the range lies past the end or the body is short."""

    async def get_many(self, key: str, ranges: Sequence[ByteRange]) -> list[bytes]:
        """One result per range, in order. The store may merge near ranges into one request."""

    async def head(self, key: str) -> ObjectInfo:
        """Size and tag of the object; NotFoundError when there is none."""

    def list_objects(self, prefix: str = "", *, start_after: str = "") -> AsyncIterator[ObjectInfo]:
        """Every object below `prefix`, in key order, page by page. May miss objects written meanwhile."""

    async def delete_many(self, keys: Sequence[str]) -> list[str]:
        """Delete all; a missing key counts as deleted. Returns the keys whose deletion is confirmed."""

    async def close(self) -> None:
        """Release connections. Operations in flight fail: UnavailableError, or OutcomeUnknownError for a sent write."""
