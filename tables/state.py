"""What an Iceberg table says about itself: which topic it follows, how far it is, and whether that still holds. Pure.

    property headrace.topic, headrace.topic-id, ...   the definition; set when the table is created
             headrace.keyed-topic                     the same of a table with a row per key
    property headrace.progress                         how far the table is, and the snapshot that got it there
    summary  headrace.offsets, headrace.offsets-in     the same offsets, of the snapshot that has this summary, or the
                                                       place where they are (tables/commit/snapshots.py)

Place: read before each append (worker.py) and by `headrace tables`; written in each commit (committing.py).
Invariant: the property changes only in a commit that also adds a snapshot to `main`, so a commit that is bound to the
snapshot is bound to the offsets. The offsets hold while the snapshot of the property is an ancestor of the current one:
rewrites by other engines keep that, a rollback does not. After the expiry of snapshots the parent id of the oldest one
left says it; if that is gone, too, the table is only taken as unchanged if all that is left are rewrites, and the
number of records is the same.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from headrace.config.table_configs import APPEND, BINARY, RECORD_KEY, UPSERT
from headrace.tables.errors import TableError

CLUSTER_ID, TOPIC, TOPIC_ID = "headrace.cluster-id", "headrace.topic", "headrace.topic-id"
START, PROGRESS, OFFSETS, PAUSED = "headrace.start", "headrace.progress", "headrace.offsets", "headrace.paused"
OFFSETS_IN, MANIFEST_LIST = "headrace.offsets-in", "manifest-list"
VALUE_FORMAT, VALUE_SCHEMA = "headrace.value-format", "headrace.value-schema"
TOLERANCE = "headrace.errors-tolerance"
DECLARED = "headrace.declared"
"""What the topic's configs said when they made the table (declaration.py); `headrace tables create` sets none."""
KEYED_TOPIC = "headrace.keyed-topic"
"""In place of TOPIC in the properties of a table with a row per key: for versions that only append, it is not a table
of a topic."""
KEY_COLUMNS = "headrace.key-columns"
PARTITION_BY = "headrace.partition-by"
"""What the table is partitioned by, also by columns that it does not have yet (layout.py)."""
RETENTION_MS = "headrace.retention-ms"
"""Rows with an older record are deleted; without it none are (upkeep/deleting.py)."""
DETACHED = "headrace.detached"
"""The table's topic was deleted, and a user keeps the table: with its upkeep (WITH_UPKEEP), or as it is (AS_IT_IS)."""
WITH_UPKEEP, AS_IT_IS = "upkeep", "as-it-is"
DEAD_LETTERS_OF = "headrace.dead-letters-of"
"""The property of a dead-letter table with the UUID of the table that the records did not fit. It has no topic."""
UNKNOWN_EPOCH = -1
REWRITE = "replace"
"""Iceberg's name for a snapshot with the same rows in other files."""
GAPS_KEPT = 100
"""The newest gaps in the property."""


class TablePosition(NamedTuple):
    """The next offset of a partition that the table lacks, and the leader epoch of the record before it."""

    offset: int
    leader_epoch: int = UNKNOWN_EPOCH


class OffsetGap(msgspec.Struct, frozen=True):
    """Offsets [start, end) that a table does not have."""

    partition: int
    start: int
    end: int

    def until(self, end: int) -> OffsetGap:
        """Return the part before `end`, which is above `start`."""
        return self if self.end <= end else OffsetGap(self.partition, self.start, end)


class TableProgress(msgspec.Struct, frozen=True):
    """How far a table is. Stored as JSON; partitions by index."""

    positions: dict[int, TablePosition]
    snapshot_id: int = 0
    """The snapshot that got it there."""
    records: int = 0
    """Records in the table as of that snapshot; -1 if its summary did not say."""
    gaps: tuple[OffsetGap, ...] = ()
    """Removed from the log before they were appended. Newest last, at most GAPS_KEPT."""
    dead: tuple[OffsetGap, ...] = ()
    """Records of this snapshot's commit that do not fit: they are due in the dead-letter table (dead_letters.py)."""

    def text(self) -> str:
        return msgspec.json.encode(self).decode()

    @classmethod
    def of(cls, text: str) -> TableProgress:
        """Parse what `text` made. TableError if it is something else."""
        try:
            return msgspec.json.decode(text, type=cls)
        except msgspec.DecodeError as error:
            raise TableError(f"{PROGRESS} of the table is not Headrace's: {error}") from error


def ranges_of(places: Iterable[tuple[int, int]]) -> list[OffsetGap]:
    """Return the ranges of offsets that follow each other. `places`: partition and offset, in order."""
    found: list[OffsetGap] = []
    for partition, offset in places:
        last = found[-1] if found else None
        if last is not None and (last.partition, last.end) == (partition, offset):
            found[-1] = OffsetGap(partition, last.start, offset + 1)
        else:
            found.append(OffsetGap(partition, offset, offset + 1))
    return found


def before_positions(dead: Sequence[OffsetGap], positions: Mapping[int, TablePosition]) -> tuple[OffsetGap, ...]:
    """Return what is left of these ranges below the positions."""
    cut = [(each, min(each.end, positions.get(each.partition, TablePosition(0)).offset)) for each in dead]
    return tuple(OffsetGap(each.partition, each.start, end) for each, end in cut if each.start < end)


def offsets_text(positions: Mapping[int, TablePosition]) -> str:
    """Return the offsets for a snapshot's summary."""
    return msgspec.json.encode(dict(positions)).decode()


def offsets_of(text: str) -> dict[int, TablePosition]:
    """Return what `offsets_text` made. TableError if it is something else."""
    try:
        return msgspec.json.decode(text, type=dict[int, TablePosition])
    except msgspec.DecodeError as error:
        raise TableError(f"{OFFSETS} of a snapshot is not Headrace's: {error}") from error


class TableEnd(NamedTuple):
    """The place where a table ends and the rest of its topic begins."""

    snapshot_id: int
    """The snapshot that has each committed record below the offsets."""
    starting_offsets: str
    """JSON for Spark's option startingOffsets, of Kafka and of headrace: {"orders": {"0": 23, "1": 7}}."""


def table_end(properties: Mapping[str, str]) -> TableEnd:
    """Return where a table with these properties ends: who reads that snapshot, and the topic from these offsets on,
    misses no record and gets none twice. TableError if the table says no offsets.
    """
    definition, text = definition_of(properties), properties.get(PROGRESS)
    if definition is None or text is None:
        raise TableError("the table has no offsets: it is not of a topic, or no worker has begun it")
    progress = TableProgress.of(text)
    offsets = {definition.topic: {str(p): each.offset for p, each in sorted(progress.positions.items())}}
    return TableEnd(progress.snapshot_id, msgspec.json.encode(offsets).decode())


class SnapshotView(NamedTuple):
    """A snapshot of a table, as far as it matters here. `offsets`: the text in its summary. `has_offsets`: there, or
    in its manifest list.
    """

    snapshot_id: int
    parent_id: int | None
    operation: str
    sequence_number: int
    records: int
    offsets: str | None = None
    has_offsets: bool = False

    @property
    def is_first(self) -> bool:
        """Whether no snapshot was before it. pyiceberg removes the parent ids of snapshots that it expires, others
        keep them."""
        return self.parent_id is None and self.sequence_number <= 1


@dataclass(frozen=True, slots=True)
class TableView:
    """A table's metadata, as far as it matters here."""

    properties: Mapping[str, str]
    snapshots: Mapping[int, SnapshotView] = field(default_factory=dict)
    current_id: int | None = None

    def lineage(self) -> Iterator[SnapshotView]:
        """Return the current snapshot and its ancestors, as far as they are kept."""
        each = self.snapshots.get(self.current_id) if self.current_id is not None else None
        while each is not None:
            yield each
            each = self.snapshots.get(each.parent_id) if each.parent_id is not None else None


@dataclass(frozen=True, slots=True)
class Definition:
    """What a table follows."""

    cluster_id: str
    topic: str
    topic_id: uuid.UUID
    start: str
    paused: str
    """Why a user, or its worker, paused it; empty: it is not."""
    value_format: str = BINARY
    """One of values/formats.py."""
    value_schema: str = ""
    """The text of a schema that was given as a file."""
    tolerance: str = "invalid_data"
    """The errors that do not pause it (values/open.py)."""
    declared: str = ""
    """What topic configs declared; empty: a user created the table."""
    layout: tuple[str, ...] = field(default=(), kw_only=True)
    """What it is partitioned by, as its creator said it."""
    retention_ms: int = field(default=-1, kw_only=True)
    """-1: rows stay."""
    is_keyed: bool = field(default=False, kw_only=True)
    """Whether it has a row per key (`table.mode=upsert`) instead of one per record."""
    key_columns: tuple[str, ...] = field(default=(), kw_only=True)
    """The columns that make the key, as its creator said them; empty: the record's key."""

    detached: str = field(default="", kw_only=True)
    """WITH_UPKEEP or AS_IT_IS; empty: it follows its topic."""

    @property
    def is_detached(self) -> bool:
        """Whether a user keeps it without its topic."""
        return bool(self.detached)

    @property
    def mode(self) -> str:
        """The table's mode, as `table.mode` has it."""
        return UPSERT if self.is_keyed else APPEND

    @property
    def has_column_key(self) -> bool:
        """Whether columns of the value are in the key."""
        return any(each != RECORD_KEY for each in self.key_columns)

    @property
    def has_dead_letters(self) -> bool:
        """Whether a record may not fit: its value may not, or it may have no key."""
        return self.is_keyed or self.value_format != BINARY


def definition_of(properties: Mapping[str, str]) -> Definition | None:
    """The definition; None for a table that Headrace does not keep. TableError if a part of it is damaged."""
    is_keyed = KEYED_TOPIC in properties
    if not is_keyed and TOPIC not in properties:
        return None
    try:
        topic, topic_id = properties[KEYED_TOPIC if is_keyed else TOPIC], uuid.UUID(properties[TOPIC_ID])
        return Definition(
            properties[CLUSTER_ID],
            topic,
            topic_id,
            start=properties[START],
            paused=properties.get(PAUSED, ""),
            value_format=properties.get(VALUE_FORMAT, BINARY),
            value_schema=properties.get(VALUE_SCHEMA, ""),
            tolerance=properties.get(TOLERANCE, "invalid_data"),
            declared=properties.get(DECLARED, ""),
            layout=_items(properties, PARTITION_BY),
            is_keyed=is_keyed,
            key_columns=_items(properties, KEY_COLUMNS),
            retention_ms=int(properties.get(RETENTION_MS, "-1")),
            detached=properties.get(DETACHED, ""),
        )
    except (KeyError, ValueError) as error:
        raise TableError(f"a property that Headrace set is missing or damaged: {error}") from error


def _items(properties: Mapping[str, str], name: str) -> tuple[str, ...]:
    return tuple(each for each in properties.get(name, "").split(",") if each)


class NotBegun(NamedTuple):
    """Nothing was appended: the table has no snapshot."""


class Follows(NamedTuple):
    """The table has each record below these offsets."""

    progress: TableProgress


class Broken(NamedTuple):
    """The table is not what Headrace made of it. `own_id`: the current snapshot's nearest commit of ours, which has
    offsets (commit/snapshots.py).
    """

    reason: str
    progress: TableProgress | None
    own_id: int | None


Standing = NotBegun | Follows | Broken


def standing_of(view: TableView) -> Standing:
    """Return whether the offsets in the property are those of the current snapshot."""
    text = view.properties.get(PROGRESS)
    lineage = list(view.lineage())
    own = next((each.snapshot_id for each in lineage if each.has_offsets), None)
    if text is None:
        if view.current_id is None:
            return NotBegun()
        return Broken(f"the table has snapshots, but no property {PROGRESS}", None, own)
    progress = TableProgress.of(text)
    if any(progress.snapshot_id in (each.snapshot_id, each.parent_id) for each in lineage):
        return Follows(progress)
    if not lineage:
        return Broken("the table has no current snapshot any more", progress, own)
    if lineage[-1].is_first or progress.snapshot_id in view.snapshots or own is not None:
        return Broken(
            f"the table was rolled back: snapshot {progress.snapshot_id} is not part of the current"
            f" snapshot {lineage[0].snapshot_id}",
            progress,
            own_id=own,
        )
    if all(each.operation == REWRITE for each in lineage) and lineage[0].records == progress.records >= 0:
        return Follows(progress)
    return Broken(
        f"the snapshots between {progress.snapshot_id} and the current one, {lineage[0].snapshot_id}, have expired,"
        " and not all of the rest are rewrites with the same number of records",
        progress,
        own_id=own,
    )
