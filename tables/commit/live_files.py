"""What a table's current snapshot consists of: its data files with the partition and the age of each, its manifests.

Place: read before each step of upkeep, and again before each of its commits (upkeep/replacing.py); the entries also by
each commit that replaces files (manifests.py). Blocks.
Invariant: reads only. A manifest never changes, so it is read once, however often the table is looked at.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pyiceberg.manifest import DataFile, ManifestContent, ManifestEntry, ManifestFile
from pyiceberg.table import Table


class LiveFile(NamedTuple):
    """A data file of the current snapshot. `added_ms`: when its snapshot was committed; None: that has expired."""

    file: DataFile
    sequence: int
    added_ms: int | None

    @property
    def place(self) -> tuple[Any, ...]:
        """The values of its partition."""
        partition = self.file.partition
        return tuple(partition[n] for n in range(len(partition)))


class LiveTable(NamedTuple):
    """The files of one snapshot. `has_deletes`: other engines wrote delete files."""

    files: Mapping[str, LiveFile]
    manifests: list[ManifestFile]
    has_deletes: bool


@dataclass(slots=True)
class KnownManifests:
    """The live entries of manifests, by location."""

    _entries: dict[str, list[ManifestEntry]] = field(default_factory=dict)

    def entries(self, table: Table, manifest: ManifestFile) -> list[ManifestEntry]:
        """Return the manifest's files that were not deleted."""
        if (found := self._entries.get(manifest.manifest_path)) is None:
            found = manifest.fetch_manifest_entry(table.io, discard_deleted=True)
            self._entries[manifest.manifest_path] = found
        return found

    def live(self, table: Table) -> LiveTable:
        """Return the files of the current snapshot; none if there is no snapshot."""
        snapshot = table.metadata.current_snapshot()
        manifests = [] if snapshot is None else snapshot.manifests(table.io)
        times = {each.snapshot_id: each.timestamp_ms for each in table.metadata.snapshots}
        files = {}
        for manifest in manifests:
            if manifest.content == ManifestContent.DATA:
                for entry in self.entries(table, manifest):
                    added = None if entry.snapshot_id is None else times.get(entry.snapshot_id)
                    files[entry.data_file.file_path] = LiveFile(entry.data_file, entry.sequence_number or 0, added)
        has_deletes = any(has_live(each) for each in manifests if each.content == ManifestContent.DELETES)
        return LiveTable(files, manifests, has_deletes)


def has_live(manifest: ManifestFile) -> bool:
    """Return whether the manifest has a file that was not deleted, as far as its counts say."""
    return bool(manifest.has_added_files() or manifest.has_existing_files())
