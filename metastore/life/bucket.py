"""What the bucket records of each life of the metastore: an immutable object, and how far it got.

Place: read and written by keeper.py only.
Invariant: a life's object is written once, by a conditional PUT: of all processes that want to begin the next life,
one succeeds. Its position is replaced every few seconds and may be late, never ahead of Postgres.
Layout below `metastore/life/`: `0000000007.json` and `0000000007.position.json`, JSON with the fields of the classes.
`0000000007.database` completes the first for a life that the release before began: it does not know the field.
"""

from __future__ import annotations

import uuid
from typing import TypeVar

import msgspec

from headrace.metastore.api.life import ServerLife
from headrace.storage.errors import AlreadyExistsError, CorruptError, NotFoundError
from headrace.storage.objects.agreed import read_agreed
from headrace.storage.objects.store import ObjectStore

PREFIX = "metastore/life/"
_SUFFIX = ".json"
_POSITION = ".position.json"
_DATABASE = ".database"
"""Not .json: the release before takes each other name of that kind for a life."""

T = TypeVar("T")


class LifeRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=False):
    """A life, as it was begun."""

    cluster_id: str
    life: int
    incarnation_id: uuid.UUID
    system_identifier: int
    timeline: int
    reason: str
    """Why the life before it ended, for people."""
    begun_ms: int
    """Milliseconds since the epoch, by the clock of the process that wrote it."""
    wal_bytes: int
    feed_sum: int
    """The server's position then, as far as it was known to be flushed; 0 if none was."""
    database: int = 0
    """The oid of its database; 0: the release before wrote this, and DatabaseRecord has it."""


class DatabaseRecord(msgspec.Struct, frozen=True):
    """The oid of a life's database, where the life's own object has none."""

    database: int


class Position(msgspec.Struct, frozen=True):
    """How far a life got at least: a position in the bucket is flushed (FlushedPosition)."""

    life: int
    timeline: int
    wal_bytes: int
    feed_sum: int
    metadata_head: int
    is_flushed: bool = False
    """Whether all of it is flushed, as the bucket says: False if an agent of the release before wrote it, which
    notes what a crash may take back.
    """

    def __str__(self) -> str:
        return (
            f"life={self.life} timeline={self.timeline} wal_bytes={self.wal_bytes} feed_sum={self.feed_sum}"
            f" metadata_head={self.metadata_head}"
        )

    @classmethod
    def of(cls, found: ServerLife) -> Position:
        return cls(found.life, found.server.timeline, found.wal_bytes, found.feed_sum, found.metadata_head)


async def newest_life(store: ObjectStore, known: LifeRecord | None) -> LifeRecord | None:
    """The record of the newest life; None before the first was recorded. One request if it is still `known`."""
    if known is None:
        keys = [info.key async for info in store.list_objects(PREFIX) if _is_life(info.key)]
        if not keys:
            return None
        known = await _read_life(store, max(keys))
    while True:
        try:
            known = await _read_life(store, _key(known.life + 1, _SUFFIX))
        except NotFoundError:
            return known


async def record_life(store: ObjectStore, record: LifeRecord) -> bool:
    """Name the next life; False if another process named it first."""
    try:
        await store.put(_key(record.life, _SUFFIX), msgspec.json.encode(record), if_absent=True)
    except AlreadyExistsError:
        return False
    return True


async def record_database(store: ObjectStore, life: int, database: int) -> bool:
    """Name the database of a life that has a record without one; False if another process named one first."""
    try:
        await store.put(_key(life, _DATABASE), msgspec.json.encode(DatabaseRecord(database)), if_absent=True)
    except AlreadyExistsError:
        return False
    return True


async def with_database(store: ObjectStore, record: LifeRecord) -> LifeRecord:
    """Return the record with the life's database, if the bucket has it. No request if the record names it."""
    if record.database:
        return record
    try:
        found = _decoded(await store.get(_key(record.life, _DATABASE)), DatabaseRecord)
    except NotFoundError:
        return record
    return msgspec.structs.replace(record, database=found.database)


async def read_position(store: ObjectStore, life: int) -> Position | None:
    """The newest position that was recorded in this life, and flushed."""
    try:
        position = _decoded(await read_agreed(store, _key(life, _POSITION)), Position)
    except NotFoundError:
        return None
    return position if position.is_flushed else None


async def position_changed_ms(store: ObjectStore, life: int) -> int:
    """Return when the position of this life was replaced last, by the store's clock; if it has none yet, when the life
    was recorded.
    """
    try:
        return (await store.head(_key(life, _POSITION))).modified_ms
    except NotFoundError:
        return (await store.head(_key(life, _SUFFIX))).modified_ms


async def write_position(store: ObjectStore, position: Position) -> None:
    """Replace the life's position by one that was flushed."""
    flushed = msgspec.structs.replace(position, is_flushed=True)
    await store.put(_key(position.life, _POSITION), msgspec.json.encode(flushed))


def _key(life: int, suffix: str) -> str:
    return f"{PREFIX}{life:010}{suffix}"


def _is_life(key: str) -> bool:
    return key.endswith(_SUFFIX) and not key.endswith(_POSITION)


async def _read_life(store: ObjectStore, key: str) -> LifeRecord:
    return _decoded(await read_agreed(store, key), LifeRecord)


def _decoded(data: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.MsgspecError as error:
        raise CorruptError(f"the bucket's record of a life is damaged: kind={kind.__name__} {error}") from error
