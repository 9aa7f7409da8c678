"""What agents knew of a life that is over: the extents that they forgot when the feed went back or changed its life.

Place: written by each agent before it continues (agent/fetch/loss_notes.py), read by `headrace audit --lost`.
Invariant: an object has extents as the metastore committed and fed them: offsets and file. An extent here of a file
that no row names any more was committed, so its records were acknowledged or were about to be, and are lost.
Layout: `metastore/extents/` + a random name + `.json`, a list of [file id, partition key, base offset, last offset].
"""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from headrace.metastore.api.read import Extent
from headrace.storage.errors import CorruptError
from headrace.storage.objects.agreed import read_agreed
from headrace.storage.objects.store import ObjectStore

PREFIX = "metastore/extents/"


class OffsetRange(NamedTuple):
    """Both ends included."""

    partition_key: int
    base_offset: int
    last_offset: int


_ROWS = list[tuple[uuid.UUID, int, int, int]]


async def write_forgotten(store: ObjectStore, name: uuid.UUID, extents: Iterable[Extent]) -> None:
    """One object; the same name replaces it."""
    rows = [
        (extent.source, *OffsetRange(extent.partition_key, extent.base_offset, extent.last_offset))
        for extent in extents
    ]
    await store.put(f"{PREFIX}{name}.json", msgspec.json.encode(rows))


async def read_forgotten(store: ObjectStore) -> dict[uuid.UUID, set[OffsetRange]]:
    """Read what agents forgot, by file, over all objects. CorruptError if one is damaged."""
    found: dict[uuid.UUID, set[OffsetRange]] = defaultdict(set)
    async for info in store.list_objects(PREFIX):
        try:
            rows = msgspec.json.decode(await read_agreed(store, info.key), type=_ROWS)
        except msgspec.MsgspecError as error:
            raise CorruptError(f"the bucket's record of extents is damaged: key={info.key} {error}") from error
        for file_id, *place in rows:
            found[file_id].add(OffsetRange(*place))
    return found
