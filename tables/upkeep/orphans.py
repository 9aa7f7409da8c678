"""Deletes the data files that killed workers, and commits without an answer, left in a table's data folder.

    list <location>/data -> names of this table's workers, that no snapshot has -> old enough -> look again, delete

Place: a job, once a day for each table (upkeep/jobs.py). Blocks.
Invariant: no file of a commit that can still happen is deleted. A file is deleted only if the current snapshot has a
file that the store took `min_age_ms` later (both times are the store's). That snapshot is then not the one which the
older file's commit continues: its files were there before the commit began to write. A commit of a worker succeeds only
while the snapshot that it continues is the current one (committing.py), so this one fails. A rewrite may be committed
on a newer snapshot: it gives up after a half of the age (upkeep/replacing.py). The age is a margin for clocks of a
store that are not exact, and for a user who rolls the table back meanwhile. Files of other engines have other names
(file_names.py), and are never deleted, nor those outside of the table's own folder.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import pyarrow.fs
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from headrace.tables.catalog import name_of, translated
from headrace.tables.commit.committing import remove_files
from headrace.tables.commit.file_names import file_prefix

logger = logging.getLogger(__name__)
DATA_PATH = "write.data.path"
DELETED_MAX = 1_000
"""Files of one call; the next one continues."""


class WarehouseFile(NamedTuple):
    """A file below the table's data folder. `changed_ms`: when the store took it, by its clock."""

    location: str
    changed_ms: int

    @property
    def name(self) -> str:
        return name_in(self.location)


@dataclass(slots=True)
class NamedByMetadata:
    """The names of files that manifests have: each manifest is read once, and never changes."""

    _files: dict[str, frozenset[str]] = field(default_factory=dict)
    """The names, by location of the manifest."""
    _manifests: dict[int, list[str]] = field(default_factory=dict)
    """The locations of manifests, by snapshot."""

    def of_all(self, table: Table) -> set[str]:
        """Return those of every snapshot that exists."""
        return set().union(*(self.of(table, each) for each in table.metadata.snapshots))

    def of_current(self, table: Table) -> set[str]:
        """Return those of the current snapshot."""
        current = table.metadata.current_snapshot()
        return set() if current is None else self.of(table, current)

    def of(self, table: Table, snapshot: Snapshot) -> set[str]:
        """Return those of one snapshot of the table."""
        if snapshot.snapshot_id not in self._manifests:
            found = snapshot.manifests(table.io)
            for manifest in found:
                if manifest.manifest_path not in self._files:
                    entries = manifest.fetch_manifest_entry(table.io)
                    self._files[manifest.manifest_path] = frozenset(name_in(e.data_file.file_path) for e in entries)
            self._manifests[snapshot.snapshot_id] = [each.manifest_path for each in found]
        return set().union(*(self._files[path] for path in self._manifests[snapshot.snapshot_id]))


def remove_orphans(table: Table, load: Callable[[], Table], min_age_ms: int) -> int:
    """Return how many files were deleted. `load`: the table as the catalog has it now. Errors as `load`."""
    if DATA_PATH in table.properties:
        return 0  # other tables may be there
    with translated(f"table {name_of(table)}"):
        files = stored_files(table)
        named = NamedByMetadata()
        found = orphans(files, named, table, min_age_ms)
        count = 0
        for location in found[:DELETED_MAX]:
            newest = load()
            if newest.metadata.table_uuid != table.metadata.table_uuid:
                break  # dropped, and created again
            is_orphan = location in orphans(files, named, newest, min_age_ms)
            if is_orphan and remove_files(newest.io, [location], "orphan file"):
                logger.info("orphan file removed: table=%s file=%s", name_of(newest), location)
                count += 1
    return count


def orphans(files: Mapping[str, WarehouseFile], named: NamedByMetadata, table: Table, min_age_ms: int) -> list[str]:
    """The locations of files that no commit has, and no commit will have. `files`: by name."""
    prefix, known = file_prefix(table.metadata.table_uuid), named.of_all(table)
    newest_ms = newest_committed_ms(files, named.of_current(table))
    return [
        each.location
        for name, each in files.items()
        if name.startswith(prefix) and name not in known and each.changed_ms + min_age_ms <= newest_ms
    ]


def newest_committed_ms(files: Mapping[str, WarehouseFile], current: Iterable[str]) -> int:
    """Return when the store took the newest of the current snapshot's files; 0 if it has none."""
    return max((files[name].changed_ms for name in current if name in files), default=0)


def stored_files(table: Table) -> dict[str, WarehouseFile]:
    """The files below the table's data folder, by name; none if its storage is not one that pyarrow lists."""
    if not isinstance(table.io, PyArrowFileIO):
        return {}
    folder = f"{table.metadata.location.rstrip('/')}/data"
    scheme, netloc, path = table.io.parse_location(folder, table.io.properties)
    storage = table.io.fs_by_scheme(scheme, netloc)
    found = {}
    for info in storage.get_file_info(pyarrow.fs.FileSelector(path, recursive=True, allow_not_found=True)):
        if info.type == pyarrow.fs.FileType.File and info.mtime_ns is not None and info.path.startswith(f"{path}/"):
            file = WarehouseFile(folder + info.path[len(path) :], info.mtime_ns // 1_000_000)
            found[file.name] = file
    return found


def changed_ms(table: Table, location: str) -> int | None:
    """Return when the store took this file; None if it does not say, or has no such file."""
    if not isinstance(table.io, PyArrowFileIO):
        return None
    scheme, netloc, path = table.io.parse_location(location, table.io.properties)
    info = table.io.fs_by_scheme(scheme, netloc).get_file_info(path)
    return None if info.mtime_ns is None else info.mtime_ns // 1_000_000


def name_in(location: str) -> str:
    """Return the last part of a location: unique, because it has the UUID of its commit."""
    return location.rpartition("/")[2]
