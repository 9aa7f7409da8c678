"""Deletes rows of a table by a condition: files without a row that stays are dropped, others are written again.

    condition -> files that may have such rows -> what stays of each -> one commit for some of them (replacing.py)

Place: retention, a step of upkeep (steps.py), and `headrace tables delete-rows`. Blocks.
Invariant: a row goes only if the condition is true for it, not if it is null; every other row stays, in its order. Rows
that were in the table when it began are gone when it ends, also if files are rewritten or appended meanwhile: it ends
with a look that finds no file with such a row. The deletion is in the current snapshot at once. Older snapshots have
the rows until they expire, and their files are deleted (expiry.py). The offsets do not change, so nothing is appended
again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.expressions import BooleanExpression, EqualTo, LessThan
from pyiceberg.expressions.parser import parse
from pyiceberg.expressions.visitors import _InclusiveMetricsEvaluator, bind
from pyiceberg.io.pyarrow import expression_to_pyarrow
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table

from headrace.scan.errors import OptionError
from headrace.storage.errors import UnavailableError
from headrace.tables.catalog import name_of, translated
from headrace.tables.commit.committing import CommitOutcome
from headrace.tables.commit.data_files import DataFilePlace, read_files, with_bounds, write_files
from headrace.tables.commit.snapshots import KnownManifests
from headrace.tables.errors import TableError
from headrace.tables.upkeep.replacing import ATTEMPTS, Replacement, Replacer, why_untouched
from headrace.tables.upkeep.rewriting import COMMIT_BYTES, remove
from headrace.tables.values.columns import KAFKA

logger = logging.getLogger(__name__)

DAY_MS = 86_400_000


class DeletedRows(NamedTuple):
    """What was deleted. `dropped`: files without a row that stays; `rewritten`: the others."""

    rows: int = 0
    dropped: int = 0
    rewritten: int = 0


def condition_of(table: Table, text: str) -> BooleanExpression:
    """Return the condition, as pyiceberg reads it. OptionError for one that is none, or that this table cannot have."""
    try:
        found = parse(text)
        bind(table.schema(), found, case_sensitive=True)
    except Exception as error:  # of pyparsing and pyiceberg: the text is a user's
        raise OptionError(f"not a condition on rows of {name_of(table)}: {text}: {error}") from error
    return found


def with_key(table: Table, key: bytes) -> BooleanExpression:
    """Return the condition that a row is of a record with this key."""
    return _comparison(EqualTo, table, "key", key)


def older_than(table: Table, before_ms: int) -> BooleanExpression:
    """Return the condition that a row's record has an earlier time. `before_ms`: since the epoch."""
    return _comparison(LessThan, table, "timestamp", before_ms * 1_000)


def _comparison(kind: Any, table: Table, name: str, value: object) -> BooleanExpression:
    """Compare a record's column. `kind` of pyiceberg: its arguments are declared for JSON."""
    found: BooleanExpression = kind(column_in(table, name), value)
    return found


def column_in(table: Table, name: str) -> str:
    """Return the path of a record's column, of a table with a schema or without."""
    return f"{KAFKA}.{name}" if any(field.name == KAFKA for field in table.schema().fields) else name


def count_rows(table: Table, condition: BooleanExpression) -> DeletedRows:
    """Return what RowDeletion would delete now; nothing is changed. TableError as RowDeletion.delete."""
    with translated(f"table {name_of(table)}"):
        if reason := why_untouched(table, KnownManifests().live(table)):
            raise TableError(f"rows of {name_of(table)} are not deleted: {reason}")
        found = [_kept_of(table, condition, task.file) for task in table.scan(row_filter=condition).plan_files()]
    return DeletedRows(
        sum(gone for _, gone in found),
        sum(1 for rows, gone in found if rows is None and gone),
        sum(1 for rows, gone in found if rows is not None and gone),
    )


@dataclass(slots=True)
class RowDeletion:
    """Deletes rows of one table. `candidates`: only files that may have such rows are looked at; None: as `condition`.

    `whole_before_ms`: only files of which every row has an earlier time, by their bounds alone.
    """

    condition: BooleanExpression
    candidates: BooleanExpression | None = None
    whole_before_ms: int | None = None
    is_stopped: Callable[[], bool] = lambda: False
    _seen: set[str] = field(default_factory=set)
    """Files without such a row."""
    _replaced: set[str] = field(default_factory=set)
    """Files that a commit of this deletion took out."""

    def delete(self, replacer: Replacer) -> DeletedRows:
        """Delete, commit after commit. UnavailableError: the table changed again and again, or the catalog does not
        answer: what was committed stays. TableError: the table cannot be changed here, or a file that a commit took out
        is in it again (rolled back by another engine).
        """
        total, lost = DeletedRows(), 0
        while not self.is_stopped():
            table = replacer.load()
            with translated(f"table {name_of(table)}"):
                if reason := why_untouched(table, replacer.known.live(table)):
                    raise TableError(f"rows of {name_of(table)} are not deleted: {reason}")
                found = self._batch(table)
            if found is None:
                break
            what, done = found
            outcome = replacer.replace(table, what)
            if outcome is CommitOutcome.COMMITTED:
                total = DeletedRows(*(have + more for have, more in zip(total, done, strict=True)))
                self._seen |= {each.file_path for each in what.added}
                self._replaced |= {each.file_path for each in what.replaced}
            elif outcome is CommitOutcome.UNKNOWN:
                raise UnavailableError(f"the catalog did not answer: {name_of(table)}: try again")
            elif (lost := lost + 1) == ATTEMPTS:
                raise UnavailableError(f"the table changed {ATTEMPTS} times meanwhile: {name_of(table)}")
        return total

    def _batch(self, table: Table) -> tuple[Replacement, DeletedRows] | None:
        """Return what one commit replaces; None if there is no such row."""
        gone: list[DataFile] = []
        added: list[DataFile] = []
        rows = rewritten = size = 0
        try:
            for file in self._files(table):
                if file.file_path in self._replaced:
                    raise TableError(f"{name_of(table)} has a file again that was taken out of it: {file.file_path}")
                kept, deleted = self._judged(table, file)
                if not deleted:
                    self._seen.add(file.file_path)
                    continue
                gone.append(file)
                rows, size = rows + deleted, size + file.file_size_in_bytes
                if kept is not None:
                    rewritten += 1
                    metadata = DataFilePlace.of(table).open()
                    added += write_files(metadata, table.io, kept)
                if size >= COMMIT_BYTES:
                    break
        except BaseException:
            remove(table.io, added)
            raise
        if not gone:
            return None
        return Replacement(tuple(gone), tuple(added), True), DeletedRows(rows, len(gone) - rewritten, rewritten)

    def _judged(self, table: Table, file: DataFile) -> tuple[pa.Table | None, int]:
        """Return as _kept_of. Files are read only if they may have a row of `candidates`."""
        if self.whole_before_ms is not None:
            return _all_older(table, self.whole_before_ms, with_bounds(table.metadata, table.io, file))
        if self.candidates is not None:
            known = with_bounds(table.metadata, table.io, file)
            if not _InclusiveMetricsEvaluator(table.schema(), self.candidates).eval(known):
                return None, 0
        return _kept_of(table, self.condition, file)

    def _files(self, table: Table) -> Iterable[DataFile]:
        tasks = table.scan(row_filter=self.candidates or self.condition).plan_files()
        return [task.file for task in tasks if task.file.file_path not in self._seen]


def _kept_of(table: Table, condition: BooleanExpression, file: DataFile) -> tuple[pa.Table | None, int]:
    """Return the rows of a file that stay, None if none does or nothing changes, and how many go.

    pyiceberg's own complement keeps a row with a null next to `or`, and its metrics take null for different.
    """
    schema = table.schema()
    rows = read_files(table.metadata, table.io, [file])
    is_true = expression_to_pyarrow(bind(schema, condition, case_sensitive=True), schema)
    kept = rows.filter(~pc.coalesce(is_true, pc.scalar(False)))
    return (kept if 0 < kept.num_rows < rows.num_rows else None), rows.num_rows - kept.num_rows


def _all_older(table: Table, before_ms: int, file: DataFile) -> tuple[None, int]:
    """Return the same by the file's bounds alone: all of its rows have an earlier time, or none goes. pyiceberg's own
    judgement knows no fields of structs.
    """
    field = table.schema().find_field(column_in(table, "timestamp"))
    upper, nulls = (file.upper_bounds or {}).get(field.field_id), (file.null_value_counts or {}).get(field.field_id)
    goes = upper is not None and nulls == 0 and _microseconds(upper) < before_ms * 1_000
    return None, file.record_count if goes else 0


def _microseconds(bound: bytes) -> int:
    """Read a bound of a timestamp: Iceberg's serialization of a single value."""
    return int.from_bytes(bound, "little", signed=True)


def retain(replacer: Replacer, retention_ms: int, now_ms: int, is_stopped: Callable[[], bool]) -> DeletedRows:
    """Delete rows that are older than `retention_ms`, by whole files; a file with younger rows, too, is written again
    once its oldest row has been due for a tenth of that, or a day. Errors as RowDeletion.delete.
    """
    table = replacer.load()
    due, late = now_ms - retention_ms, now_ms - retention_ms - min(DAY_MS, retention_ms // 10)
    old, older = older_than(table, due), older_than(table, late)
    whole = RowDeletion(old, whole_before_ms=due, is_stopped=is_stopped).delete(replacer)
    part = RowDeletion(old, candidates=older, is_stopped=is_stopped).delete(replacer)
    return DeletedRows(*(one + other for one, other in zip(whole, part, strict=True)))
