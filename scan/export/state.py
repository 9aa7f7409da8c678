"""How far an export is: the object `_headrace/state.json` of its target. Pure, but for reading and writing it.

Place: written before and after each chunk of one partition.
Invariant: `done` is the offset below which all records of a partition are in files of the target. While `writing` has
a partition, the files of its chunk [done, writing) may be there, complete or not: the next run writes exactly that
again, under the same names, so no record is there twice. An object is stored completely or not at all.
"""

from __future__ import annotations

import uuid

import msgspec

from headrace.scan.errors import OptionError
from headrace.storage.errors import NotFoundError
from headrace.storage.objects.store import ObjectStore

STATE_KEY = "_headrace/state.json"
VERSION = 2
"""2: `infer_json`, and columns of JSON text. A target of version 1 stays one."""


class ExportState(msgspec.Struct):
    """Stored as JSON; partitions by index."""

    cluster_id: str
    topic: str
    topic_id: uuid.UUID
    done: dict[int, int] = {}
    writing: dict[int, int] = {}
    value_schema: str | None = None
    """The schema of JSON values: an Arrow schema, in base64."""
    version: int = VERSION
    infer_json: bool | None = None
    """Whether values are JSON; None in version 1, where only the schema says so."""

    @property
    def has_json(self) -> bool:
        """Whether the values of the target's files are JSON."""
        return self.value_schema is not None if self.infer_json is None else self.infer_json

    def begin(self, partition: int, end: int) -> None:
        """A chunk up to `end` is about to be written."""
        self.writing[partition] = end

    def finish(self, partition: int) -> None:
        """The chunk's files are stored."""
        self.done[partition] = self.writing.pop(partition)


async def load_state(store: ObjectStore, fresh: ExportState) -> ExportState:
    """The target's state, or `fresh`. OptionError if the target is of another topic or cluster."""
    try:
        found = msgspec.json.decode(await store.get(STATE_KEY), type=ExportState)
    except NotFoundError:
        return fresh
    except msgspec.DecodeError as error:
        raise OptionError(f"{STATE_KEY} of the target is not an export's state: {error}") from error
    if found.version not in (1, VERSION):
        raise OptionError(f"the target was written by another version: version={found.version} known={VERSION}")
    for name in ("cluster_id", "topic", "topic_id"):
        if getattr(found, name) != getattr(fresh, name):
            raise OptionError(
                f"the target has an export of another {name.replace('_', ' ')}: {getattr(found, name)},"
                f" not {getattr(fresh, name)}: choose another --to"
            )
    return found


async def save_state(store: ObjectStore, state: ExportState) -> None:
    """Replace the state."""
    await store.put(STATE_KEY, msgspec.json.encode(state))
