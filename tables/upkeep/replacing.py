"""Replaces data files of a table by others, once: the commit is bound to a snapshot in which all of them are live.

    files that were read, files that were written -> look again -> one commit (committing.py): assert the snapshot,
    remove, add

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
from collections.abc import Callable
from dataclasses import dataclass

from pyiceberg.manifest import DataFile
from pyiceberg.table import Table, Transaction
from pyiceberg.table.snapshots import Operation

from headrace.tables.catalog import name_of, view_of
from headrace.tables.commit.committing import CommitOutcome, WrittenFiles, commit, set_progress
from headrace.tables.commit.snapshots import KnownManifests, LiveTable, ReplaceFiles
from headrace.tables.state import Broken, Follows, standing_of
from headrace.tables.upkeep.orphans import changed_ms

logger = logging.getLogger(__name__)

ATTEMPTS = 20
"""Commits that a replacement may lose against appends."""
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
        return commit(table, lambda: self._staged(table, what)).outcome

    def _staged(self, table: Table, what: Replacement) -> Transaction:
        """Return the commit with its manifests written, and nothing sent to the catalog."""
        change = table.transaction()
        standing = standing_of(view_of(table))
        assert isinstance(standing, Follows), "looked at before"
        operation = Operation.REPLACE
        if what.deletes_rows:
            operation = Operation.OVERWRITE if what.added else Operation.DELETE
        replaced = ReplaceFiles(operation, change, table.io, self.known, standing.progress.positions, merges=True)
        replaced.replace(what.replaced, what.added)
        set_progress(change, standing.progress)
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
