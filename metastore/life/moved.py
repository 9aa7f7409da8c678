"""Which inline files a merged file has the records of: it names them in an object next to it.

Place: written when a merge of inline files is stored (compactor/take_over.py), read by `headrace audit --lost`
(compactor/moved.py), and deleted with the merged file.
Invariant: the object is there before the first extent of its merged file is swapped in. So if a life of the metastore
loses the rows of an inline file that was moved, the bucket says in which merged file its records are, at which offsets,
and in which life they were committed: a merge reads what is committed, and nothing else.
Layout: `metastore/moved/` + the id of the merged file + `.json`: id of an inline file -> a list of [partition key, base
offset, last offset, leader epoch]. Releases before this one neither write nor read it.
"""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from headrace.metastore.api.compaction import Swap
from headrace.storage.errors import CorruptError, NotFoundError
from headrace.storage.file_id import is_inline, level_of, object_key
from headrace.storage.objects.agreed import read_agreed
from headrace.storage.objects.store import ObjectStore

PREFIX = "metastore/moved/"
MOVED_LEVEL = 1
"""The level of the files that inline files are moved to: their batches are copies, each of one commit."""


class MovedRange(NamedTuple):
    """Records of one commit in one partition; both offsets included."""

    source: uuid.UUID
    """The inline file that the commit named."""
    partition_key: int
    base_offset: int
    last_offset: int
    leader_epoch: int
    """The leader epoch of the commit, which says in which life it was."""


_Places = dict[uuid.UUID, list[tuple[int, int, int, int]]]


def moved_key(merged_id: uuid.UUID) -> str:
    """Return the key of the object that names the inline files of this merged file."""
    return f"{PREFIX}{merged_id}.json"


def keys_of(file_id: uuid.UUID) -> list[str]:
    """Return the keys of what is deleted with a file: its object, and what names the inline files that it may have."""
    return [object_key(file_id), *([moved_key(file_id)] if level_of(file_id) == MOVED_LEVEL else ())]


def moved_ranges(swaps: Iterable[Swap]) -> list[MovedRange]:
    """Return what the swaps of a merged file take from inline files."""
    found: list[MovedRange] = []
    for swap in swaps:
        base = swap.base_offset
        for old in swap.inputs:
            if is_inline(old.file_id):
                found.append(MovedRange(old.file_id, swap.partition_key, base, old.last_offset, swap.leader_epoch))
            base = old.last_offset + 1
    return found


async def write_moved(store: ObjectStore, merged_id: uuid.UUID, ranges: Iterable[MovedRange]) -> None:
    """One object, unless there are none. Errors as the store."""
    places: _Places = defaultdict(list)
    for source, *place in ranges:
        places[source].append((place[0], place[1], place[2], place[3]))
    if places:
        await store.put(moved_key(merged_id), msgspec.json.encode(places))


async def read_moved(store: ObjectStore, merged_id: uuid.UUID) -> list[MovedRange]:
    """Return what the merged file names; nothing if it has no such object. CorruptError if that is damaged."""
    key = moved_key(merged_id)
    try:
        places = msgspec.json.decode(await read_agreed(store, key), type=_Places)
    except NotFoundError:
        return []
    except msgspec.MsgspecError as error:
        raise CorruptError(f"the names of inline files are damaged: key={key} {error}") from error
    return [MovedRange(source, *place) for source, found in places.items() for place in found]
