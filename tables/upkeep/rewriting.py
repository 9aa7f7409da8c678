"""Makes larger files of a table's small ones.

Place: a step of upkeep (steps.py), by the local worker here and by tasks of Spark (spark/tables/application.py).
Blocks. The plan of which files become one is pure.

    files of one partition -> tiers of similar size -> groups of neighbours -> each group becomes one file

Invariant of the plan: a group has files of one partition, in the order in which they were added, and at most
`target_bytes`. Each file of a group is below three quarters of that, and a group has at least two of them: so
repeated plans come to an end. While a partition gets files, a group has `files_min` files of one tier: a row is
rewritten about once per tier, however often a plan is made. Once it gets none, what is left becomes as few files as
fit.

    live files -> groups -> rows in offset order -> one file per group -> one commit (replacing.py)

Invariant: the rows of a group are those of its files, each once, ordered by the topic's partition and the offset,
and in the same partition of the table; they are written by commit/data_files.py. What cannot be kept so is left
alone: files of an earlier partitioning, files that another engine sorted otherwise, and tables with delete files.
Memory: the rows of one group, opened, at most about OPENED_BYTES_MAX; a group with more is divided.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from pyiceberg.io import FileIO, load_file_io
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata

from headrace.tables.catalog import name_of
from headrace.tables.commit.committing import CommitOutcome, building, remove_files
from headrace.tables.commit.data_files import DataFilePlace, read_files, write_files
from headrace.tables.commit.snapshots import MANIFESTS_MIN, LiveFile, LiveTable, small_manifests
from headrace.tables.errors import TableError
from headrace.tables.upkeep.replacing import Replacement, Replacer, why_untouched
from headrace.tables.values.columns import KAFKA

TIERS_MAX = 8
"""Files below `target_bytes` / TIER_FACTOR ** 3 are all of the lowest tier."""
TIER_FACTOR = 8
_LOWEST_PART = TIER_FACTOR**3


class SmallFile(NamedTuple):
    """A data file. `place`: the values of its partition; `sequence`: rises with each commit."""

    path: str
    place: tuple[Any, ...]
    size_bytes: int
    sequence: int
    is_recent: bool
    """Its partition may still get files."""


class RewriteLimits(NamedTuple):
    """`target_bytes`: the size of a file that is large enough. `files_min`: fewer files of a tier wait for more."""

    target_bytes: int
    files_min: int

    @property
    def small_bytes(self) -> int:
        """A file of this size stays."""
        return self.target_bytes * 3 // 4


def plan_rewrites(files: Iterable[SmallFile], limits: RewriteLimits) -> list[list[SmallFile]]:
    """Return the groups; those of the oldest files first."""
    small = [each for each in files if each.size_bytes < limits.small_bytes]
    small.sort(key=lambda each: (repr(each.place), each.sequence, each.path))
    groups: list[list[SmallFile]] = []
    for _, found in groupby(small, key=lambda each: each.place):
        neighbours = list(found)
        if any(each.is_recent for each in neighbours):
            groups += _of_growing(neighbours, limits)
        else:
            groups += [group for group in _packed(neighbours, limits.target_bytes) if len(group) > 1]
    return sorted(groups, key=lambda group: (group[0].sequence, group[0].path))


def _of_growing(files: Sequence[SmallFile], limits: RewriteLimits) -> list[list[SmallFile]]:
    tiers: dict[int, list[SmallFile]] = {}
    for each in files:
        tiers.setdefault(tier_of(each.size_bytes, limits.target_bytes), []).append(each)
    return [
        group
        for _, same in sorted(tiers.items())
        for group in _packed(same, limits.target_bytes)
        if len(group) > 1 and (len(group) >= limits.files_min or _bytes_of(group) >= limits.small_bytes)
    ]


def tier_of(size_bytes: int, target_bytes: int) -> int:
    """Return how often TIER_FACTOR files of the lowest tier's size had to become one for this size."""
    bound, tier = max(1, target_bytes // _LOWEST_PART), 0
    while size_bytes >= bound and tier < TIERS_MAX:
        bound, tier = bound * TIER_FACTOR, tier + 1
    return tier


def _packed(files: Sequence[SmallFile], target_bytes: int) -> list[list[SmallFile]]:
    """Group neighbouring files; a group has at most `target_bytes`, or one file that is larger."""
    groups: list[list[SmallFile]] = []
    size = 0
    for each in files:
        if not groups or size + each.size_bytes > target_bytes:
            groups.append([])
            size = 0
        groups[-1].append(each)
        size += each.size_bytes
    return groups


def _bytes_of(group: Sequence[SmallFile]) -> int:
    return sum(each.size_bytes for each in group)


logger = logging.getLogger(__name__)

TARGET_BYTES = "write.target-file-size-bytes"
TARGET_BYTES_DEFAULT = 512 * 1024 * 1024
COMMIT_BYTES = 256 * 1024 * 1024
"""Stored bytes that one commit replaces, at most about."""
OPENED_BYTES_MAX = 512 * 1024 * 1024
"""Opened bytes of one group: RewriteLimits.target_bytes limits only what is stored."""
SETTLED_MS = 86_400_000
"""A partition that got no file for so long is taken to get none."""

Group = Sequence[DataFile]


class Rewritten(NamedTuple):
    """What a rewrite did. `manifests`: small ones that were merged without a file."""

    replaced: int = 0
    written: int = 0
    manifests: int = 0


@dataclass(slots=True)
class TableRewriter:
    """Rewrites the files of one table. `write`: groups become files, in their order; None for one that is too large."""

    limits: RewriteLimits
    write: Callable[[DataFilePlace, Sequence[Group]], list[DataFile | None]]
    batch_bytes: int = COMMIT_BYTES
    is_stopped: Callable[[], bool] = lambda: False
    """The lease was lost, or the process ends: nothing more is begun."""

    def rewrite(self, replacer: Replacer, table: Table, now_ms: int) -> Rewritten:
        """Rewrite what the plan chooses, commit after commit. `now_ms`: since the epoch.

        Errors as `write` and Replacer.replace: commits before it stay.
        """
        with building(f"table {name_of(table)}"):
            live = replacer.known.live(table)
        if reason := why_untouched(table, live):
            logger.info("table is not rewritten: table=%s reason=%s", name_of(table), reason)
            return Rewritten()
        replaced = written = 0
        for batch in self._batches(table, live, now_ms):
            if self.is_stopped():
                break
            done = self._one(replacer, batch)
            if done is None:
                break  # the next run plans again
            replaced, written = replaced + done.replaced, written + done.written
        manifests = 0 if replaced or self.is_stopped() else self._merge_manifests(replacer, table, live)
        return Rewritten(replaced, written, manifests)

    def _batches(self, table: Table, live: LiveTable, now_ms: int) -> list[list[Group]]:
        """The groups of each commit."""
        target = int(table.properties.get(TARGET_BYTES, TARGET_BYTES_DEFAULT))
        limits = self.limits._replace(target_bytes=max(1, min(self.limits.target_bytes, target)))
        spec = table.metadata.default_spec_id
        files = [
            _small(each, now_ms - SETTLED_MS)
            for each in live.files.values()
            if each.file.spec_id == spec and not each.file.sort_order_id
        ]
        batches: list[list[Group]] = []
        size = 0
        for group in plan_rewrites(files, limits):
            if not batches or size >= self.batch_bytes:
                batches.append([])
                size = 0
            batches[-1].append([live.files[each.path].file for each in group])
            size += sum(each.size_bytes for each in group)
        return batches

    def _one(self, replacer: Replacer, groups: Sequence[Group]) -> Rewritten | None:
        """One commit, on top of the table as it is now; None if it did not happen."""
        table = replacer.load()
        live = replacer.known.live(table)
        files = [file for group in groups for file in group]
        if any(each.file_path not in live.files for each in files) or why_untouched(table, live):
            return None
        what = self._written(table, groups)
        if self.is_stopped():
            remove(table.io, what.added)
            return None
        if what.added and replacer.replace(table, what) is not CommitOutcome.COMMITTED:
            return None
        return Rewritten(len(what.replaced), len(what.added))

    def _written(self, table: Table, groups: Sequence[Group]) -> Replacement:
        """Write the groups, and the halves of those that are too large."""
        replaced, made, left = list[DataFile](), list[DataFile](), list(groups)
        try:
            while left:
                written, groups, left = self.write(DataFilePlace.of(table), left), left, []
                for group, file in zip(groups, written, strict=True):
                    if file is not None:
                        replaced += group
                        made.append(file)
                    else:
                        middle = len(group) // 2
                        left += [part for part in (group[:middle], group[middle:]) if len(part) > 1]
        except BaseException:
            remove(table.io, made)
            raise
        return Replacement(tuple(replaced), tuple(made))

    def _merge_manifests(self, replacer: Replacer, table: Table, live: LiveTable) -> int:
        small = small_manifests(live.manifests)
        if small < MANIFESTS_MIN:
            return 0
        outcome = replacer.replace(table, Replacement((), ()))
        return small if outcome is CommitOutcome.COMMITTED else 0


def _small(live: LiveFile, settled_before_ms: int) -> SmallFile:
    """Return what the plan judges. `settled_before_ms`: what was added later is recent."""
    is_recent = live.added_ms is not None and live.added_ms >= settled_before_ms
    return SmallFile(live.file.file_path, live.place, live.file.file_size_in_bytes, live.sequence, is_recent)


def write_here(place: DataFilePlace, groups: Sequence[Group]) -> list[DataFile | None]:
    """Write one file for each group, one after the other. Errors as `write_group`."""
    made: list[DataFile | None] = []
    try:
        for group in groups:
            made += [write_group(place, group)]
    except BaseException:
        remove(load_file_io(place.storage, place.open().location), [each for each in made if each is not None])
        raise
    return made


def write_group(place: DataFilePlace, group: Group) -> DataFile | None:
    """Write the rows of these files as one; None if they are too many for memory. UnavailableError: the storage does
    not answer, or a file was replaced meanwhile and is gone; TableError: the rows are not those that the table's
    metadata names.
    """
    metadata = place.open()
    metadata.properties[TARGET_BYTES] = str(sys.maxsize)  # in memory only: pyiceberg counts opened bytes
    with building(f"storage of {metadata.location}"):
        storage = load_file_io(place.storage, metadata.location)
        read = read_within(metadata, storage, group, OPENED_BYTES_MAX)
        if read is None:
            return None
        rows = in_offset_order(read)
        wanted = sum(each.record_count for each in group)
        if rows.num_rows != wanted:
            raise TableError(f"files of {metadata.location} have {rows.num_rows} rows, and its metadata says {wanted}")
        made = write_files(metadata, storage, rows)
    same_place = all(each.partition == group[0].partition for each in made)
    if sum(each.record_count for each in made) != wanted or len(made) != 1 or not same_place:
        remove(storage, made)
        raise TableError(f"rows of {metadata.location} are not in the partition of their file: {group[0].file_path}")
    return made[0]


def read_within(metadata: TableMetadata, storage: FileIO, files: Group, opened_bytes: int) -> pa.Table | None:
    """Return the rows as `read_files`; None if they have more bytes than that, by what the files before had for each
    stored byte.
    """
    found: list[pa.Table] = []
    opened = stored = 0
    for file in files:
        expected = file.file_size_in_bytes * opened / stored if stored else 0
        if found and opened + expected > opened_bytes:
            return None
        found.append(read_files(metadata, storage, [file]))
        opened, stored = opened + found[-1].nbytes, stored + file.file_size_in_bytes
    return pa.concat_tables(found)


def in_offset_order(rows: pa.Table) -> pa.Table:
    """Return the rows by the topic's partition and the offset, as an append has them."""
    places = rows.select([KAFKA]).flatten() if KAFKA in rows.column_names else rows
    prefix = f"{KAFKA}." if KAFKA in rows.column_names else ""
    partitions, offsets = (places.column(f"{prefix}{name}").to_numpy() for name in ("partition", "offset"))
    order = np.lexsort((offsets, partitions))
    if np.array_equal(order, np.arange(len(order))):
        return rows
    return rows.take(pa.array(order))


def remove(storage: FileIO, files: Sequence[DataFile]) -> None:
    """Delete files that no commit has. What cannot be deleted stays as an orphan."""
    remove_files(storage, [each.file_path for each in files], "file")
