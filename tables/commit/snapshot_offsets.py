"""The offsets of a snapshot's commit are in its summary, or, if there are many, in its manifest list.

    summary        headrace.offsets      the offsets, as text
                   headrace.offsets-in   `manifest-list`: they are in the header of that file, under the first name
    property       headrace.progress     those of the newest commit (state.py)

Each metadata file has the summaries of all snapshots, and each commit writes it again: the offsets of 1,000 partitions
there, in a snapshot a minute, are 47 GB a day. A manifest list is written once, and goes with its snapshot. Avro's
readers pass over names in a header that they do not know.

Place: under the commits (appending.py, upkeep/replacing.py); the offsets are read where a user decides about a table
that was rolled back (resume.py).
Invariant: a snapshot of Headrace says in its summary that it has offsets, so state.py judges a table without reading a
file. A process of an older version reads those of summaries only: of a table with more partitions that was rolled
back, it says that it cannot continue after the rows, and changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyiceberg.avro.file import AvroFile
from pyiceberg.manifest import MANIFEST_LIST_FILE_SCHEMAS, ManifestFile, write_manifest_list
from pyiceberg.table import Table
from pyiceberg.table.refs import SnapshotRefType
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.update import AddSnapshotUpdate, AssertRefSnapshotId, SetSnapshotRefUpdate, UpdatesAndRequirements
from pyiceberg.table.update.snapshot import _MergeAppendFiles, _new_manifest_list_file_name, _SnapshotProducer

from headrace.tables.catalog import name_of, translated
from headrace.tables.errors import TableError
from headrace.tables.state import MANIFEST_LIST, OFFSETS, OFFSETS_IN, TablePosition, offsets_of, offsets_text

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
