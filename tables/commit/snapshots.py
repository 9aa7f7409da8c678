"""What a table's snapshot consists of: its data files, its manifests, the offsets of its commit.

Place: under the commits that add or replace files (appending.py, upkeep/replacing.py), and read before each step of
upkeep. The offsets are also read where a user decides about a table that was rolled back (open_tables.py). Blocks.
Invariant of reads: reads only. A manifest never changes, so it is read once, however often the table is looked at.

    summary        headrace.offsets      the offsets, as text
                   headrace.offsets-in   `manifest-list`: they are in the header of that file, under the first name
    property       headrace.progress     those of the newest commit (state.py)

Each metadata file has the summaries of all snapshots, and each commit writes it again: the offsets of 1,000
partitions there, in a snapshot a minute, are 47 GB a day. A manifest list is written once, and goes with its
snapshot. Avro's readers pass over names in a header that they do not know.

Invariant of offsets: a snapshot of Headrace says in its summary that it has offsets, so state.py judges a table
without reading a file. A process of an older version reads those of summaries only: of a table with more partitions
that was rolled back, it says that it cannot continue after the rows, and changes nothing.

    manifests of the snapshot before -> their entries, without the replaced files -> manifests of the new snapshot

Invariant of manifests: the new snapshot has each data file of the one before it but the replaced ones, each once,
and the added ones. If one of the replaced files is not part of the snapshot before, there is no new one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pyiceberg.avro.file import AvroFile
from pyiceberg.io import FileIO
from pyiceberg.manifest import (
    MANIFEST_LIST_FILE_SCHEMAS,
    DataFile,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    write_manifest_list,
)
from pyiceberg.table import Table, Transaction
from pyiceberg.table.refs import SnapshotRefType
from pyiceberg.table.snapshots import Operation, Snapshot, Summary
from pyiceberg.table.update import AddSnapshotUpdate, AssertRefSnapshotId, SetSnapshotRefUpdate, UpdatesAndRequirements
from pyiceberg.table.update.snapshot import (
    _ManifestMergeManager,
    _MergeAppendFiles,
    _new_manifest_list_file_name,
    _OverwriteFiles,
    _SnapshotProducer,
)

from headrace.tables.catalog import name_of, translated
from headrace.tables.errors import TableError
from headrace.tables.state import MANIFEST_LIST, OFFSETS, OFFSETS_IN, TablePosition, offsets_of, offsets_text


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


SUMMARY_BYTES_MAX = 1_000
"""Longer texts are in the manifest list: those of about 40 partitions and more."""


def summary_of(positions: Mapping[int, TablePosition]) -> dict[str, str]:
    """Return what the summary of a snapshot with these offsets says."""
    text = offsets_text(positions)
    return {OFFSETS: text} if len(text) <= SUMMARY_BYTES_MAX else {OFFSETS_IN: MANIFEST_LIST}


class WithOffsets(_SnapshotProducer[Any]):
    """A snapshot with offsets. `offsets`: set before it is committed."""

    offsets: Mapping[int, TablePosition]

    def _commit(self) -> UpdatesAndRequirements:
        """Commit as pyiceberg does, which gives no way to write more into the header of the manifest list."""
        metadata, branch = self._transaction.table_metadata, self._target_branch
        assert branch is not None, "offsets are those of a branch"
        manifests, sequence_number = self._manifests(), metadata.next_sequence_number()
        summary = self._summary({**self.snapshot_properties, **summary_of(self.offsets)})
        name = _new_manifest_list_file_name(snapshot_id=self._snapshot_id, attempt=0, commit_uuid=self.commit_uuid)
        location = self._transaction._table.location_provider().new_metadata_location(name)
        self._written_manifest_lists.append(location)
        writer = write_manifest_list(
            format_version=metadata.format_version,
            output_file=self._io.new_output(location),
            snapshot_id=self._snapshot_id,
            parent_snapshot_id=self._parent_snapshot_id,
            sequence_number=sequence_number,
            avro_compression=self._compression,
        )
        if OFFSETS_IN in summary.additional_properties:
            writer._meta[OFFSETS] = offsets_text(self.offsets)
        with writer:
            writer.add_manifests(manifests)
        snapshot = Snapshot(  # type: ignore[call-arg]
            snapshot_id=self._snapshot_id,
            parent_snapshot_id=self._parent_snapshot_id,
            manifest_list=location,
            sequence_number=sequence_number,
            summary=summary,
            schema_id=metadata.current_schema_id,
            first_row_id=getattr(metadata, "next_row_id", None),
        )
        before = metadata.refs.get(branch)
        return (
            (
                AddSnapshotUpdate(snapshot=snapshot),
                SetSnapshotRefUpdate(  # type: ignore[call-arg]
                    snapshot_id=self._snapshot_id,
                    parent_snapshot_id=self._parent_snapshot_id,
                    ref_name=branch,
                    type=SnapshotRefType.BRANCH,
                ),
            ),
            (AssertRefSnapshotId(ref=branch, snapshot_id=before and before.snapshot_id),),  # type: ignore[call-arg]
        )


class AppendWithOffsets(WithOffsets, _MergeAppendFiles):
    """Adds files, or none."""


def offsets_at(table: Table, snapshot_id: int) -> dict[int, TablePosition]:
    """Return the offsets of a snapshot that has some. TableError if they are damaged, or were lost: a tool that copies
    tables may write manifest lists again. UnavailableError.
    """
    snapshot = table.metadata.snapshot_by_id(snapshot_id)
    if snapshot is None or snapshot.summary is None:
        raise TableError(f"{name_of(table)} has no snapshot {snapshot_id} any more")
    text = snapshot.summary.additional_properties.get(OFFSETS)
    if text is None:
        with translated(f"table {name_of(table)}"):
            text = _header(table, snapshot).get(OFFSETS)
    if text is None:
        raise TableError(f"snapshot {snapshot_id} of {name_of(table)} has lost its offsets: {snapshot.manifest_list}")
    return offsets_of(text)


def _header(table: Table, snapshot: Snapshot) -> dict[str, str]:
    with AvroFile[ManifestFile](table.io.new_input(snapshot.manifest_list), MANIFEST_LIST_FILE_SCHEMAS[2]) as opened:
        return opened.header.meta


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
