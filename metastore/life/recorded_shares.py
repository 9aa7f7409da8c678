"""What the bucket records of share groups: how far each is, by the life of the metastore in which it got there.

Place: written by the job of compactor/share_record.py every few seconds, from Postgres, and by agents when a life is
over or they stop (agent/groups/share/answered.py); read by `headrace audit --lost`.
Invariant: an object has only states that were stored, so that members may have heard of them. A state that is missing
makes the list of lost acknowledgements shorter, not wrong.
Layout: `metastore/share-states/` + the life + `/stored.json` or `/agent-` + a node id + `.json`. Each is replaced by
later ones of the same name.
"""

from __future__ import annotations

import msgspec

from headrace.metastore.api.groups import ShareState
from headrace.storage.errors import CorruptError, NotFoundError
from headrace.storage.objects.agreed import read_agreed
from headrace.storage.objects.store import ObjectStore

PREFIX = "metastore/share-states/"
STORED = "stored"
"""The writer that has seen all groups."""


class RecordedShares(msgspec.Struct, frozen=True):
    """One object. `noted_ms`: of the wall clock of who wrote it; `epoch`: of
    the job that wrote STORED.
    """

    noted_ms: int
    states: list[ShareState]
    epoch: int = 0
    life: int = 0
    writer: str = ""


def agent_writer(node_id: int) -> str:
    """Return the name under which an agent writes."""
    return f"agent-{node_id}"


async def write_recorded(store: ObjectStore, recorded: RecordedShares) -> None:
    """Replace what this writer recorded in this life."""
    await store.put(_key(recorded.life, recorded.writer), msgspec.json.encode(recorded))


async def read_stored(store: ObjectStore, life: int) -> RecordedShares | None:
    """Return the states of all groups that were recorded last in this life; None if none were."""
    try:
        return _decoded(_key(life, STORED), await read_agreed(store, _key(life, STORED)))
    except NotFoundError:
        return None


async def read_recorded(store: ObjectStore, below_life: int) -> list[RecordedShares]:
    """Return what was recorded before this life. CorruptError if an object is damaged."""
    found = []
    async for info in store.list_objects(PREFIX):
        life, _, _ = info.key.removeprefix(PREFIX).partition("/")
        if int(life) < below_life:
            found.append(_decoded(info.key, await read_agreed(store, info.key)))
    return found


def _key(life: int, writer: str) -> str:
    return f"{PREFIX}{life:010}/{writer}.json"


def _decoded(key: str, data: bytes) -> RecordedShares:
    try:
        return msgspec.json.decode(data, type=RecordedShares)
    except msgspec.MsgspecError as error:
        raise CorruptError(f"the bucket's record of share groups is damaged: key={key} {error}") from error
