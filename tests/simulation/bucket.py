"""The bucket that all agents share, and one process's faulty way to it.

Fault model: as remote.py, and besides: 503 SlowDown, bodies cut short on the way (CorruptError), or altered,
new objects kept short, which their length tells (what is there whole stays whole), lists that lack what was
just written or still show what was just deleted, deletes that are confirmed for some keys only, and a
sweeper that condemns a file in the very instant in which it was put.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING

from headrace.storage.errors import CorruptError
from headrace.storage.file_id import SEGMENTS, file_id_of, is_inline, object_key
from headrace.storage.objects.memory import MemoryStore
from headrace.storage.objects.store import ByteRange, ObjectInfo, StoreDecorator
from tests.simulation.faults import Fault
from tests.simulation.problems import Kind
from tests.simulation.remote import READS, WRITES, Remote, run_at_once

if TYPE_CHECKING:
    from tests.simulation.agents import Process
    from tests.simulation.world import World

LATENCY = (0.003, 0.06)
PUT_MENU = (*WRITES, Fault.THROTTLED)
GET_MENU = (*READS, Fault.THROTTLED)


class Bucket:
    """What is stored, by file id; every change is instantaneous."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.objects = MemoryStore(world.clock)
        """Segment files."""
        self.notes = MemoryStore(world.clock)
        """What agents record in addition: each life of the metastore, and extents that they forgot."""
        self.ever_put: dict[uuid.UUID, bytes] = {}
        self.sent_inline: dict[uuid.UUID, bytes] = {}
        """What commits of inline files were sent with."""

    def put(self, key: str, body: bytes, kept: int | None = None) -> ObjectInfo:
        """Store the body's first `kept` bytes, or all of them."""
        self.ever_put[file_id_of(key)] = body
        if is_inline(file_id_of(key)):
            self._judge_saved(file_id_of(key), body)
        info: ObjectInfo = run_at_once(self.objects.put(key, body[:kept]))
        if self._world.faults.strikes(Fault.CONDEMNED_AT_STEP):
            self._world.sweeper.take(file_id_of(key))
        return info

    def _judge_saved(self, file_id: uuid.UUID, body: bytes) -> None:
        """Only what a server has committed is saved here, when its life is over (agent/fetch/loss_notes.py)."""
        servers = (self._world.database, *self._world.past)
        if not any(server.has_committed(file_id) for server in servers) or body != self.sent_inline.get(file_id):
            self._world.report(Kind.UNACCOUNTED, f"an inline file is put into the bucket: file={file_id}")

    def read(self, file_id: uuid.UUID) -> bytes | None:
        """The file's bytes; None when it is not there."""
        stored = self.objects._objects.get(object_key(file_id))
        return stored.body if stored else None

    def remove(self, file_id: uuid.UUID) -> None:
        run_at_once(self.objects.delete_many([object_key(file_id)]))

    def file_ids(self) -> list[uuid.UUID]:
        return [file_id_of(key) for key in sorted(self.objects._objects)]


class BucketLine(StoreDecorator):
    """An ObjectStore for one process."""

    def __init__(self, world: World, process: Process, rng: random.Random) -> None:
        super().__init__(world.bucket.objects)
        self._world = world
        self._remote = Remote(world, process, "bucket", LATENCY, rng)
        self._rng = rng

    async def put(self, key: str, body: bytes | memoryview, *, if_absent: bool = False) -> ObjectInfo:
        content = bytes(body)
        if not key.startswith(SEGMENTS):
            notes = self._world.bucket.notes
            return await self._remote.call(lambda: run_at_once(notes.put(key, content, if_absent=if_absent)), PUT_MENU)
        assert not if_absent, "segment files are put under fresh ids"
        return await self._remote.call(lambda: self._put(key, content), PUT_MENU)

    def _put(self, key: str, body: bytes) -> ObjectInfo:
        is_new = self._world.bucket.read(file_id_of(key)) is None
        is_short = is_new and self._world.faults.strikes(Fault.KEPT_SHORT)
        return self._world.bucket.put(key, body, self._rng.randrange(len(body)) if is_short else None)

    async def get(self, key: str, byte_range: ByteRange | None = None) -> bytes:
        is_note = not key.startswith(SEGMENTS)
        store = self._world.bucket.notes if is_note else self._inner
        body: bytes = await self._remote.call(lambda: run_at_once(store.get(key, byte_range)), GET_MENU)
        if self._world.faults.strikes(Fault.TRUNCATED):
            got = self._rng.randrange(len(body) + 1)
            raise CorruptError(f"simulated: short body: key={key} wanted={len(body)} got={got}")
        if body and not is_note and self._world.faults.strikes(Fault.ALTERED):  # notes have no checksum of ours
            return flipped(body, self._rng)
        return body

    async def head(self, key: str) -> ObjectInfo:
        info: ObjectInfo = await self._remote.call(lambda: run_at_once(self._inner.head(key)), GET_MENU)
        return info

    async def list_objects(self, prefix: str = "", *, start_after: str = "") -> AsyncIterator[ObjectInfo]:
        assert not SEGMENTS.startswith(prefix), "no agent lists the segment files"
        notes = self._world.bucket.notes

        def listed() -> list[ObjectInfo]:
            return [notes._objects[key].info for key in sorted(notes._objects) if key.startswith(prefix)]

        for info in await self._remote.call(listed, GET_MENU):
            yield info

    async def delete_many(self, keys: Sequence[str]) -> list[str]:
        raise NotImplementedError("no agent deletes from the bucket")


def flipped(data: bytes, rng: random.Random) -> bytes:
    """One bit is another."""
    at = rng.randrange(len(data))
    return data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :]
