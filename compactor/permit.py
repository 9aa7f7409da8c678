"""Decides whether objects may be deleted: not after the metastore was restored from a backup, until an audit allows
it.

Place: called at the beginning of every job that deletes objects.
Invariant: the metastore counts generations of deletion, and the bucket stores the highest number and the metastore's
incarnation id (object `janitor.properties`). The metastore increments before the bucket's object is written, so
within one incarnation the bucket is never ahead. After a restore it is: the metastore has another incarnation id, or
a lower number. Then files that were committed after the backup look like orphans, and no object may be deleted. After
a crash between the two writes the bucket is behind, which does not count as a restore.
"""

from __future__ import annotations

import logging
import uuid
from dataclasses import dataclass

from headrace.metastore.api.files import FileApi, JanitorState
from headrace.metastore.api.jobs import JobToken
from headrace.storage.errors import CorruptError, NotFoundError
from headrace.storage.objects.store import ObjectStore

logger = logging.getLogger(__name__)

OBJECT_KEY = "janitor.properties"
VERSION = "1"


@dataclass(frozen=True, slots=True)
class Mark:
    """The content of the bucket's object."""

    incarnation_id: uuid.UUID
    generation: int

    def render(self) -> bytes:
        """The object's bytes."""
        return f"generation={self.generation}\nincarnation.id={self.incarnation_id}\nversion={VERSION}\n".encode()

    @classmethod
    def parse(cls, data: bytes) -> Mark:
        """CorruptError unless these are the bytes of a mark of this version."""
        try:
            values = dict(line.split("=", 1) for line in data.decode().splitlines())
            if values["version"] != VERSION:
                raise CorruptError(f"{OBJECT_KEY} has an unknown version: {values['version']}")
            return cls(uuid.UUID(values["incarnation.id"]), int(values["generation"]))
        except (KeyError, ValueError) as error:
            raise CorruptError(f"{OBJECT_KEY} is damaged: {error!r}") from error


async def read_mark(store: ObjectStore) -> Mark | None:
    """The bucket's mark; None before the first deletion."""
    try:
        return Mark.parse(await store.get(OBJECT_KEY))
    except NotFoundError:
        return None


async def write_mark(store: ObjectStore, mark: Mark) -> None:
    """Replace the bucket's mark."""
    await store.put(OBJECT_KEY, mark.render())


def refusal(state: JanitorState, mark: Mark | None) -> str:
    """The reason why nothing may be deleted; empty if deletion is allowed."""
    if mark is None:
        return "" if state.generation == 0 else "the bucket lost its mark"
    if mark.incarnation_id != state.incarnation_id:
        return "the metastore and the bucket have different incarnation ids"
    if mark.generation > state.generation:
        return "the metastore is behind the bucket: it was restored from a backup"
    return ""


async def permit(api: FileApi, store: ObjectStore, token: JobToken) -> uuid.UUID | None:
    """The incarnation id for the deletion; None, with a log line, if nothing may be deleted."""
    state, mark = await api.janitor_state(), await read_mark(store)
    reason = refusal(state, mark)
    if reason:
        logger.error("deletion is stopped until `headrace audit --resume-janitor`: reason=%s", reason)
        return None
    if mark is None:  # before the metastore increments: a later missing mark was lost
        await write_mark(store, Mark(state.incarnation_id, state.generation))
    generation = await api.begin_generation(token, state.incarnation_id)
    await write_mark(store, Mark(state.incarnation_id, generation))
    return state.incarnation_id
