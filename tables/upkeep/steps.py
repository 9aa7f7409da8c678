"""The upkeep of one table, and of its dead-letter table: rows that are too old, small files, old snapshots.

    look -> retention (deleting.py) -> rewrite and manifests (rewriting.py) -> expiry (expiry.py)

Place: the work of a job (jobs.py), of the role `tables` and of `headrace-spark-tables`. Blocks.
Invariant: every step is a commit that is bound to a snapshot, so it may end at any point, be repeated, and run next to
appends and to itself: the lease of its job only saves work. A table that is stopped is left as it is: what was rolled
back may be what a user wants back.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pyiceberg.manifest import DataFile
from pyiceberg.table import Table

from headrace.config.settings import Settings
from headrace.tables.catalog import TableCatalog, name_of, translated, view_of
from headrace.tables.commit.data_files import DataFilePlace
from headrace.tables.commit.snapshots import KnownManifests
from headrace.tables.state import Broken, Definition, standing_of
from headrace.tables.upkeep.deleting import DeletedRows, retain
from headrace.tables.upkeep.expiry import expire
from headrace.tables.upkeep.orphans import remove_orphans
from headrace.tables.upkeep.replacing import Replacer, why_untouched
from headrace.tables.upkeep.rewriting import COMMIT_BYTES, Group, RewriteLimits, Rewritten, TableRewriter, write_here

logger = logging.getLogger(__name__)

WriteGroups = Callable[[DataFilePlace, Sequence[Group]], list[DataFile | None]]


class UpkeepReport(NamedTuple):
    """What upkeep did to a table and its dead-letter table, and what they consist of afterwards."""

    deleted: DeletedRows = DeletedRows()
    rewritten: Rewritten = Rewritten()
    expired: int = 0
    """Snapshots."""
    files: int = 0
    manifests: int = 0

    def plus(self, other: UpkeepReport) -> UpkeepReport:
        """Return the sum of both."""
        return UpkeepReport(
            DeletedRows(*map(sum, zip(self.deleted, other.deleted, strict=True))),
            Rewritten(*map(sum, zip(self.rewritten, other.rewritten, strict=True))),
            expired=self.expired + other.expired,
            files=self.files + other.files,
            manifests=self.manifests + other.manifests,
        )

    def __str__(self) -> str:
        return (
            f"deleted_rows={self.deleted.rows} replaced_files={self.rewritten.replaced}"
            f" written_files={self.rewritten.written} expired_snapshots={self.expired} files={self.files}"
            f" manifests={self.manifests}"
        )


class UpkeepTerms(NamedTuple):
    """The settings of upkeep; 0 in `files_min`, `snapshot_max_age_ms` or `orphan_min_age_ms`: that is not done."""

    files_min: int = 8
    rewrite_bytes: int = 64 * 1024 * 1024
    snapshot_max_age_ms: int = 0
    orphan_min_age_ms: int = 0

    @classmethod
    def of(cls, settings: Settings) -> UpkeepTerms:
        return cls(
            settings.tables_rewrite_min_files,
            rewrite_bytes=settings.tables_rewrite_max_bytes,
            snapshot_max_age_ms=settings.tables_snapshot_max_age_ms,
            orphan_min_age_ms=settings.tables_orphan_min_age_ms,
        )


@dataclass(frozen=True, slots=True)
class TableUpkeep:
    """The upkeep of the tables of one catalog. `write`: makes files of groups, here or on Spark."""

    catalog: TableCatalog
    terms: UpkeepTerms
    write: WriteGroups = write_here
    batch_bytes: int = COMMIT_BYTES

    def keep(self, name: str, now_ms: int, is_stopped: Callable[[], bool] = lambda: False) -> UpkeepReport:
        """Do what is due. NotFoundError, ForeignTableError as load_own; UnavailableError: do it again.

        `now_ms`: since the epoch. `is_stopped`: begin nothing more.
        """
        report = UpkeepReport()
        for definition, load in self._tables(name):
            report = report.plus(self._keep(load, definition, now_ms, is_stopped))
        return report

    def remove_orphans(self, name: str) -> int:
        """Delete files that workers left; how many. Errors as `keep`."""
        age_ms = self.terms.orphan_min_age_ms
        return sum(remove_orphans(load(), load, age_ms) for _, load in self._tables(name)) if age_ms else 0

    def _tables(self, name: str) -> Iterator[tuple[Definition, Callable[[], Table]]]:
        table, definition = self.catalog.load_own(name)
        yield definition, lambda: self.catalog.load(name)
        letters = self.catalog.own_dead_letters(table) if definition.has_dead_letters else None
        if letters is not None:
            yield definition, lambda: self.catalog.load(letters.name()[-1])

    def _keep(
        self, load: Callable[[], Table], definition: Definition, now_ms: int, is_stopped: Callable[[], bool]
    ) -> UpkeepReport:
        replacer = Replacer(load, KnownManifests(), self.terms.orphan_min_age_ms)
        table = load()
        if isinstance(standing_of(view_of(table)), Broken):
            return UpkeepReport()
        with translated(f"table {name_of(table)}"):
            reason = why_untouched(table, replacer.known.live(table))
        deleted, rewritten = DeletedRows(), Rewritten()
        if reason:
            logger.info("files are left as they are: table=%s reason=%s", name_of(table), reason)
        else:
            if definition.retention_ms >= 0:
                deleted = retain(replacer, definition.retention_ms, now_ms, is_stopped)
            if self.terms.files_min:
                limits = RewriteLimits(self.terms.rewrite_bytes, self.terms.files_min)
                rewriter = TableRewriter(limits, self.write, self.batch_bytes, is_stopped)
                rewritten = rewriter.rewrite(replacer, load(), now_ms)
        expired = 0
        if self.terms.snapshot_max_age_ms and not is_stopped():
            expired = expire(load(), now_ms - self.terms.snapshot_max_age_ms)
        table = load()
        with translated(f"table {name_of(table)}"):
            live = replacer.known.live(table)
        return UpkeepReport(deleted, rewritten, expired, len(live.files), len(live.manifests))
