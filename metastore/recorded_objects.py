"""Objects with what only the metastore knows otherwise: how transactions ended, which bulk writes were decided.

Place: written by a job of the compactors (compactor/outcomes.py) while the cluster runs, and by Spark's driver
before the first chunk of a bulk write (scan/bulk/commit.py); read by a rebuild (compactor/rebuild.py), when nothing
else is left.
Invariant: an object is written once. A life takes over what earlier ones wrote, without what they lost: it writes
the rest again, then says so. From then on a reader takes its objects and later ones only. The earlier ones stay
until deletion is allowed (compactor/permit.py): if the life turns out to be the wrong restore, they are all there.
Layout: a prefix + the life of the metastore + `/` + the number of entries + a random name + the CRC-32C, JSON: a
list of entries. Objects of earlier releases have no CRC-32C: they are read until two reads agree. The prefix without
its `/` + `-taken-over/` + a life, empty: that life took over.
Invariant of bulk writes: once the object RECORDED is there, each file of an attempt that was decided is in the
metastore or in an object, as long as the index has it. Files of attempts that were never decided are in none. An
entry is a file id.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar

import crc32c
import msgspec

from headrace.storage.errors import CorruptError, NotFoundError
from headrace.storage.objects.agreed import read_agreed
from headrace.storage.objects.store import ObjectStore

T = TypeVar("T")
_CRC_DIGITS = 8
"""The last part of a name without one has 12: it is that of a UUID."""


class RecordedObject(NamedTuple):
    """An object, by what its key says."""

    key: str
    life: int
    entries: int
    """Their number."""


async def write_entries(
    store: ObjectStore, prefix: str, life: int, name: uuid.UUID, entries: Sequence[Any]
) -> RecordedObject:
    """One object."""
    body = msgspec.json.encode(entries)
    key = f"{prefix}{life:010}/{len(entries):08}-{name}-{crc32c.crc32c(body):08x}.json"
    recorded = RecordedObject(key, life, len(entries))
    await store.put(key, body)
    return recorded


async def list_recorded(store: ObjectStore, prefix: str) -> list[RecordedObject]:
    """All objects."""
    found = []
    async for info in store.list_objects(prefix):
        life, _, name = info.key.removeprefix(prefix).partition("/")
        found.append(RecordedObject(info.key, int(life), int(name[:8])))
    return found


async def note_taken_over(store: ObjectStore, prefix: str, life: int) -> None:
    """All that this life knows of earlier ones is in its objects."""
    await store.put(f"{_taken_over(prefix)}{life:010}", b"")


async def newest_taken_over(store: ObjectStore, prefix: str) -> int:
    """Return the newest life that took over; -1 if none did: then all objects count."""
    marks = [info.key async for info in store.list_objects(_taken_over(prefix))]
    return max((int(key.removeprefix(_taken_over(prefix))) for key in marks), default=-1)


async def list_in_force(store: ObjectStore, prefix: str) -> list[RecordedObject]:
    """Return the objects that say what is known: not those that a later life took over."""
    newest = await newest_taken_over(store, prefix)
    return [found for found in await list_recorded(store, prefix) if newest < 0 or found.life >= newest]


def _taken_over(prefix: str) -> str:
    return f"{prefix.removesuffix('/')}-taken-over/"


async def read_entries(store: ObjectStore, key: str, kind: type[T]) -> list[T]:
    """Return what one object says, each entry of this kind. Errors as read_agreed, and CorruptError."""
    try:
        return msgspec.json.decode(await read_agreed(store, key, _crc_of(key)), type=list[kind])  # type: ignore[valid-type]
    except msgspec.MsgspecError as error:
        raise CorruptError(f"an object of the bucket's records is damaged: key={key} {error}") from error


def _crc_of(key: str) -> int | None:
    """The CRC-32C that the key says; None for an object of an earlier release."""
    last = key.removesuffix(".json").rpartition("-")[2]
    return int(last, 16) if len(last) == _CRC_DIGITS else None


PREFIX = "metastore/bulk-writes/"
RECORDED = "metastore/bulk-writes-are-recorded"
"""An object that is there once all decided attempts were recorded: a bucket of an older version has none."""
FILES_PER_OBJECT = 20_000


async def are_recorded(store: ObjectStore) -> bool:
    """Return whether the bucket knows the decided attempts."""
    try:
        await store.get(RECORDED)
    except NotFoundError:
        return False
    return True
