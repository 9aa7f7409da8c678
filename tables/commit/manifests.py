"""Writes the manifests of a snapshot in which some data files are replaced by others.

    manifests of the snapshot before -> their entries, without the replaced files -> manifests of the new snapshot

Place: the part of a commit (committing.py) that replaces files: of keyed tables (appending.py), and of upkeep
(upkeep/replacing.py). Blocks.
Invariant: the new snapshot has each data file of the one before it but the replaced ones, each once, and the added
ones. If one of the replaced files is not part of the snapshot before, there is no new one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile, ManifestContent, ManifestEntry, ManifestEntryStatus, ManifestFile
from pyiceberg.table import Transaction
from pyiceberg.table.snapshots import Operation, Summary
from pyiceberg.table.update.snapshot import _ManifestMergeManager, _OverwriteFiles

from headrace.tables.commit.live_files import KnownManifests, has_live
from headrace.tables.commit.snapshot_offsets import WithOffsets
from headrace.tables.state import TablePosition

MANIFEST_BYTES = 8 * 1024 * 1024
MANIFESTS_MIN = 8
"""So many manifests below that size become one."""


class ReplaceFiles(WithOffsets, _OverwriteFiles):
    """Adds one snapshot without the replaced files; `merges`: and with small manifests merged.

    pyiceberg has no rewrite: its own operation finds the files by the values of their partitions, keeps manifests
    without files, and cannot say that no row changed.
    """

    def __init__(
        self,
        operation: Operation,
        transaction: Transaction,
        io: FileIO,
        known: KnownManifests,
        offsets: Mapping[int, TablePosition],
        *,
        merges: bool,
    ) -> None:
        super().__init__(operation, transaction, io)
        self.offsets, self._known, self._merges = offsets, known, merges

    def replace(self, removed: Iterable[DataFile], added: Iterable[DataFile]) -> None:
        """Write the snapshot. ValidationException if a removed file is not part of the table."""
        with self:
            for each in removed:
                self.delete_data_file(each)
            for each in added:
                self.append_data_file(each)

    def _build_delete_files_partition_predicate(self) -> None:
        """Do nothing: files are found by their names."""

    def _parent_manifests(self) -> list[ManifestFile]:
        snapshot = self._transaction.table_metadata.current_snapshot()
        return [] if snapshot is None else snapshot.manifests(self._io)

    def _entries(self, manifest: ManifestFile) -> list[ManifestEntry]:
        return self._known.entries(self._transaction._table, manifest)

    def _existing_manifests(self) -> list[ManifestFile]:
        existing = []
        for manifest in self._parent_manifests():
            if manifest.content != ManifestContent.DATA:
                existing += [manifest] if has_live(manifest) else []
                continue
            entries = self._entries(manifest)
            kept = [each for each in entries if each.data_file not in self._deleted_data_files]
            if len(kept) == len(entries):
                existing += [manifest] if entries else []
            elif kept:
                with self.new_manifest_writer(self.spec(manifest.partition_spec_id)) as writer:
                    for each in kept:
                        writer.add_entry(_with_status(each, ManifestEntryStatus.EXISTING, each.snapshot_id))
                existing.append(writer.to_manifest_file())
        return existing

    def _deleted_entries(self) -> list[ManifestEntry]:
        deleted = [
            _with_status(entry, ManifestEntryStatus.DELETED, self._snapshot_id)
            for manifest in self._parent_manifests()
            if manifest.content == ManifestContent.DATA
            for entry in self._entries(manifest)
            if entry.data_file in self._deleted_data_files
        ]
        self._validate_required_deletes(deleted)
        return deleted

    def _process_manifests(self, manifests: list[ManifestFile]) -> list[ManifestFile]:
        """Merge small ones, as an append of pyiceberg does."""
        merging = _ManifestMergeManager(
            target_size_bytes=MANIFEST_BYTES,
            min_count_to_merge=MANIFESTS_MIN,
            merge_enabled=self._merges,
            snapshot_producer=self,
        )
        data = [each for each in manifests if each.content == ManifestContent.DATA]
        return merging.merge_manifests(data) + [each for each in manifests if each.content != ManifestContent.DATA]

    def _summary(self, snapshot_properties: Mapping[str, str] = {}) -> Summary:
        wanted, self._operation = self._operation, Operation.OVERWRITE  # pyiceberg's sums know no replacement
        try:
            made = super()._summary(dict(snapshot_properties))
        finally:
            self._operation = wanted
        return Summary(operation=wanted, **made.additional_properties)


def _with_status(entry: ManifestEntry, status: ManifestEntryStatus, snapshot_id: int | None) -> ManifestEntry:
    return ManifestEntry.from_args(
        status=status,
        snapshot_id=snapshot_id,
        sequence_number=entry.sequence_number,
        file_sequence_number=entry.file_sequence_number,
        data_file=entry.data_file,
    )


def small_manifests(manifests: Sequence[ManifestFile]) -> int:
    """Return how many manifests are small enough to be merged."""
    return sum(each.manifest_length < MANIFEST_BYTES // 2 for each in manifests)
