"""Replaces data files of a table by others, once: the commit is bound to a snapshot in which all of them are live.

    files that were read, files that were written -> look again -> one commit: assert the snapshot, remove, add

Place: the last step of a rewrite (rewriting.py) and of a deletion of rows (deleting.py). Blocks.
Invariant: a row that was read from the replaced files is in the written ones, or was to be deleted; so the commit
neither loses nor doubles a row if, in the snapshot that it asserts, every replaced file is live, and no delete file is.
If an appender is first, both are looked up again in the newer snapshot, and the same files are committed on top of
that: a rewrite does not starve next to appends. Two workers that replace one file exclude each other: the second finds
it gone. A written file may wait only so long: the removal of orphans (orphans.py) takes a file for abandoned once the
current snapshot has one that the store took `tables.orphan.min.age.ms` later. So a newer snapshot is only asserted
while none of its new files is more than a half of that later than the first written file.
The offsets' property goes along: it names this snapshot and its number of records (decision 81), so the replaced files
can expire, also of a table that gets no records, and other engines may expire what is older.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import msgspec
from pyiceberg.exceptions import CommitFailedException, ValidationException
from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile, ManifestContent, ManifestEntry, ManifestEntryStatus, ManifestFile
from pyiceberg.table import Table, Transaction
from pyiceberg.table.snapshots import Operation, Summary
from pyiceberg.table.update.snapshot import _ManifestMergeManager, _OverwriteFiles

from headrace.scan.tables.appending import NO_RETRIES, CommitOutcome, WrittenFiles, name_of
from headrace.scan.tables.catalog import RETRIES, snapshot_view, translated, view_of
from headrace.scan.tables.orphans import changed_ms
from headrace.scan.tables.state import OFFSETS, PROGRESS, Broken, Follows, offsets_text, standing_of
from headrace.scan.tables.upkeep.live_files import KnownManifests, LiveTable

logger = logging.getLogger(__name__)

ATTEMPTS = 20
"""Commits that a replacement may lose against appends."""
MANIFEST_BYTES = 8 * 1024 * 1024
MANIFESTS_MIN = 8
"""So many manifests below that size become one."""
ORPHAN_AGE_MS = 86_400_000
"""The default of tables.orphan.min.age.ms; counts also if that is longer, or 0."""
FORMAT_VERSION_MAX = 2
"""Version 3 has an id for each row, which a rewrite would have to keep."""


@dataclass(frozen=True, slots=True)
class Replacement:
    """`replaced`: live files of the table as it was read; `added`: what is written instead, of the same partitions.

    `deletes_rows`: not all rows of the first are in the second.
    """

    replaced: tuple[DataFile, ...]
    added: tuple[DataFile, ...]
    deletes_rows: bool = False


@dataclass(slots=True)
class Replacer:
    """Commits to one table. `load`: the table as the catalog has it now."""

    load: Callable[[], Table]
    known: KnownManifests
    orphan_min_age_ms: int = ORPHAN_AGE_MS
    """Of the processes that remove orphans; 0: as the default."""

    @property
    def _wait_max_ms(self) -> int:
        return min(self.orphan_min_age_ms or ORPHAN_AGE_MS, ORPHAN_AGE_MS) // 2

    def replace(self, base: Table, what: Replacement) -> CommitOutcome:
        """CONFLICT: it did not happen, and what was written is removed. `base`: the table as it was read.

        UnavailableError, TableError, NotFoundError as `load`: nothing was committed.
        """
        written = WrittenFiles(base.io, [each.file_path for each in what.added])
        try:
            outcome = self._replace(base, self.known.live(base), what)
        except Exception:  # before a commit was sent: what becomes of that is an outcome
            written.remove()
            raise
        if outcome is CommitOutcome.CONFLICT:
            written.remove()
        return outcome

    def _replace(self, base: Table, read: LiveTable, what: Replacement) -> CommitOutcome:
        table, uuid = base, base.metadata.table_uuid
        for attempt in range(ATTEMPTS):
            if attempt:
                table = self.load()
                if table.metadata.table_uuid != uuid or table.metadata.default_spec_id != base.metadata.default_spec_id:
                    return CommitOutcome.CONFLICT
            live = self.known.live(table)
            if why := self._why_not(table, live, read, what):
                logger.info("files are not replaced: table=%s reason=%s", name_of(table), why)
                return CommitOutcome.CONFLICT
            outcome = self._commit(table, what)
            if outcome is not CommitOutcome.CONFLICT:
                return outcome
        return CommitOutcome.CONFLICT

    def _why_not(self, table: Table, live: LiveTable, read: LiveTable, what: Replacement) -> str:
        """Return why the snapshot of `table` cannot be asserted; empty: it can."""
        if reason := why_untouched(table, live):
            return reason
        if gone := [each.file_path for each in what.replaced if each.file_path not in live.files]:
            return f"a file is not part of the table any more: {gone[0]}"
        new = live.files.keys() - read.files.keys()
        if not new or not what.added:
            return ""
        ours = [changed_ms(table, each.file_path) for each in what.added]
        others = [changed_ms(table, path) for path in new]
        if any(at is None for at in (*ours, *others)):
            return "the store does not say when it took the files"
        first, last = min(at or 0 for at in ours), max(at or 0 for at in others)
        return "the written files are too old" if last - first > self._wait_max_ms else ""

    def _commit(self, table: Table, what: Replacement) -> CommitOutcome:
        table.metadata.properties[RETRIES] = NO_RETRIES  # in memory only
        storage, files = table.io, WrittenFiles(table.io)
        table.io = files
        try:
            with translated(f"table {name_of(table)}"):
                change = self._staged(table, what)
        except BaseException:
            files.remove()
            raise
        try:
            change.commit_transaction()
        except (CommitFailedException, ValidationException) as error:
            logger.info("table has another snapshot: table=%s error=%s", name_of(table), error)
            files.remove()
            return CommitOutcome.CONFLICT
        except Exception as error:
            logger.warning("commit without an answer: table=%s error=%r", name_of(table), error)
            return CommitOutcome.UNKNOWN
        finally:
            table.io = storage
        return CommitOutcome.COMMITTED

    def _staged(self, table: Table, what: Replacement) -> Transaction:
        """The commit with its manifests written, and nothing sent to the catalog."""
        change = table.transaction()
        standing = standing_of(view_of(table))
        assert isinstance(standing, Follows), "looked at before"
        operation = Operation.REPLACE
        if what.deletes_rows:
            operation = Operation.OVERWRITE if what.added else Operation.DELETE
        summary = {OFFSETS: offsets_text(standing.progress.positions)}
        with ReplaceFiles(operation, change, table.io, self.known, summary) as replaced:
            for each in what.replaced:
                replaced.delete_data_file(each)
            for each in what.added:
                replaced.append_data_file(each)
        snapshot = change.table_metadata.current_snapshot()
        assert snapshot is not None, "a replacement adds a snapshot"
        records = snapshot_view(snapshot).records
        progress = msgspec.structs.replace(standing.progress, snapshot_id=snapshot.snapshot_id, records=records)
        change.set_properties({PROGRESS: progress.text()})
        return change


def why_untouched(table: Table, live: LiveTable) -> str:
    """Return why files of this table are not replaced here; empty: they can be."""
    if table.metadata.format_version > FORMAT_VERSION_MAX:
        return f"format version {table.metadata.format_version}: only Iceberg's own rewrites keep the ids of rows"
    if live.has_deletes:
        return "another engine wrote delete files: only its rewrites apply them"
    match standing_of(view_of(table)):
        case Broken(reason=reason):
            return reason
        case Follows():
            return ""
    return "it has no row"


class ReplaceFiles(_OverwriteFiles):
    """Adds one snapshot without the replaced files, and with small manifests merged.

    pyiceberg has no rewrite: its own operation finds the files by the values of their partitions, keeps manifests
    without files, and cannot say that no row changed.
    """

    def __init__(
        self,
        operation: Operation,
        transaction: Transaction,
        io: FileIO,
        known: KnownManifests,
        summary: Mapping[str, str],
    ) -> None:
        super().__init__(operation, transaction, io, snapshot_properties=dict(summary))
        self._known = known

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
                continue  # none of them has a live file
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
            merge_enabled=True,
            snapshot_producer=self,
        )
        return merging.merge_manifests(manifests)

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
