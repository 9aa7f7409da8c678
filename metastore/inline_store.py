"""The object store of a process that has a metastore: inline files are read there, everything else in the bucket.

Place: outermost around the bucket's store, made where both are opened; so every reader (fetch, merge, audit) reads a
file by its key and does not ask where its bytes are. Writes go past it: a commit stores an inline file.
Invariant: an inline file's row is looked for first. Without a row the file is dead, and what was live of it in another
file: its reader gets NotFoundError and locates it again. Only where a life of the metastore lost the row, the bucket
may have the bytes, from an agent that still had them (agent/fetch/loss_notes.py): so it is asked then. Reads that wait
share one statement, of at most RANGES_MAX ranges and about BYTES_MAX bytes, and at most STATEMENTS_MAX are under way:
many slow readers take no more connections and no more memory than few.
"""

from __future__ import annotations

import asyncio
import uuid
from collections import deque
from collections.abc import Sequence

from prometheus_client import Counter

from headrace.metastore.api.inline import InlineApi, InlineRange
from headrace.storage.errors import HeadraceError
from headrace.storage.file_id import SEGMENTS, born_ms, file_id_of, is_inline
from headrace.storage.objects.store import ByteRange, ObjectInfo, ObjectStore, StoreDecorator, check_inside, check_range

READ_BYTES = Counter(
    "headrace_inline_read_bytes_total",
    "Bytes of small files that this process read from the metastore, for merges and for readers: they cross zones if"
    " Postgres is in another one",
)
RANGES_MAX = 256
BYTES_MAX = 4 << 20
STATEMENTS_MAX = 2


class _Read:
    """A range that waits for its statement."""

    __slots__ = ("future", "wanted")

    def __init__(self, wanted: InlineRange, future: asyncio.Future[bytes | None]) -> None:
        self.wanted, self.future = wanted, future


class InlineStore(StoreDecorator):
    """One per process and event loop."""

    def __init__(self, inner: ObjectStore, api: InlineApi) -> None:
        super().__init__(inner)
        self._api = api
        self._waiting: deque[_Read] = deque()
        self._statements: set[asyncio.Task[None]] = set()

    async def get(self, key: str, byte_range: ByteRange | None = None) -> bytes:
        file_id = inline_id_of(key)
        if file_id is None:
            return await self._inner.get(key, byte_range)
        if byte_range is not None:
            check_range(byte_range)
        wanted = InlineRange(file_id, *((0, 0) if byte_range is None else (byte_range.start, byte_range.length)))
        body = await self._read(wanted)
        if body is None:
            return await self._inner.get(key, byte_range)
        if byte_range is not None:
            check_inside(key, byte_range, byte_range.start + len(body))
        return body

    def get_at_once(self, key: str, byte_range: ByteRange) -> memoryview | None:
        return None if inline_id_of(key) is not None else self._inner.get_at_once(key, byte_range)

    async def get_many(self, key: str, ranges: Sequence[ByteRange]) -> list[bytes]:
        if inline_id_of(key) is None:
            return await self._inner.get_many(key, ranges)
        return await super().get_many(key, ranges)

    async def head(self, key: str) -> ObjectInfo:
        file_id = inline_id_of(key)
        if file_id is None:
            return await self._inner.head(key)
        body = await self._read(InlineRange(file_id, 0, 0))
        return await self._inner.head(key) if body is None else ObjectInfo(key, len(body), born_ms(file_id), "")

    async def close(self) -> None:
        statements = list(self._statements)
        for statement in statements:
            statement.cancel()
        await asyncio.gather(*statements, return_exceptions=True)
        await self._inner.close()

    async def _read(self, wanted: InlineRange) -> bytes | None:
        read = _Read(wanted, asyncio.get_running_loop().create_future())
        self._waiting.append(read)
        self._begin()
        return await read.future

    def _begin(self) -> None:
        while self._waiting and len(self._statements) < STATEMENTS_MAX:
            statement = asyncio.create_task(self._send(), name="inline-read")
            self._statements.add(statement)
            statement.add_done_callback(self._ended)
            if len(self._statements) * RANGES_MAX >= len(self._waiting):
                return  # those that begin now take all that waits

    def _ended(self, statement: asyncio.Task[None]) -> None:
        self._statements.discard(statement)
        self._begin()

    async def _send(self) -> None:
        """Read some of what waits by now."""
        reads = self._next()
        if not reads:
            return
        try:
            bodies = await self._api.read_inline([read.wanted for read in reads])
        except BaseException as error:
            for read in reads:
                if not read.future.done():
                    if isinstance(error, HeadraceError):
                        read.future.set_exception(error)
                    else:
                        read.future.cancel()
            if not isinstance(error, HeadraceError):
                raise
            return
        READ_BYTES.inc(sum(map(len, filter(None, bodies))))
        for read, body in zip(reads, bodies, strict=True):
            if not read.future.done():
                read.future.set_result(body)

    def _next(self) -> list[_Read]:
        reads: list[_Read] = []
        size = 0
        while self._waiting and len(reads) < RANGES_MAX and (not reads or size < BYTES_MAX):
            read = self._waiting.popleft()
            if not read.future.done():
                reads.append(read)
                size += read.wanted.length or BYTES_MAX
        return reads


def inline_id_of(key: str) -> uuid.UUID | None:
    """Return the id of the inline file with this key; None for any other key."""
    if not key.startswith(SEGMENTS):
        return None
    try:
        file_id = file_id_of(key)
    except ValueError:
        return None
    return file_id if is_inline(file_id) else None
