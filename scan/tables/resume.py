"""Continues a table that was changed by others: a user says from where, and the table has it in its next snapshot.

Place: `headrace tables resume`. Blocks.
Invariant: offsets change only together with a snapshot, also here: so a commit that is bound to the snapshot before
cannot continue the old offsets.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping

from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import Table

from headrace.scan.errors import OptionError
from headrace.scan.tables.appending import Append, CommitOutcome, append, name_of
from headrace.scan.tables.catalog import translated, view_of
from headrace.scan.tables.policy import Ahead
from headrace.scan.tables.state import Broken, Follows, NotBegun, TablePosition, TableProgress, standing_of
from headrace.storage.errors import UnavailableError


class Choice(enum.Enum):
    """The place from which a table continues."""

    ROWS = "rows"
    """Continue after the rows of the current snapshot: what was rolled back is appended again."""
    OFFSETS = "offsets"
    """Continue at the table's offsets: what was rolled back stays out."""
    LOG = "log"
    """Continue where the log ends: rows that the log does not have (any more) are deleted."""


def decide(table: Table, choice: Choice) -> dict[int, TablePosition]:
    """Commit the choice for a table that was rolled back; the positions at which it continues. OptionError if there is
    nothing to decide, or not this way. UnavailableError: try again.
    """
    standing = standing_of(view_of(table))
    if isinstance(standing, (Follows, NotBegun)):
        raise OptionError(f"the table's offsets are those of its rows: nothing to decide: {name_of(table)}")
    positions = standing.in_table
    if choice is Choice.OFFSETS:
        positions = None if standing.progress is None else standing.progress.positions
    if choice is Choice.LOG or positions is None:
        raise OptionError(f"the table does not say where to continue by {choice.value!r}: {standing.reason}")
    _commit(table, standing.progress, positions)
    return dict(positions)


def follow_log(table: Table, ahead: Mapping[int, Ahead]) -> dict[int, TablePosition]:
    """Delete the rows that the log does not have, and continue at its end; the positions there. Errors as `decide`."""
    standing = standing_of(view_of(table))
    if isinstance(standing, (Broken, NotBegun)):
        raise OptionError(f"the table's offsets are not those of its rows: {name_of(table)}")
    positions = dict(standing.progress.positions)
    for each in ahead.values():
        lost = f"partition == {each.partition} and offset >= {each.log_end}"
        with translated(f"table {name_of(table)}"):
            try:
                table.delete(lost)
            except CommitFailedException as error:
                raise UnavailableError(f"the table changed meanwhile: {name_of(table)}") from error
        positions[each.partition] = TablePosition(each.log_end)
    _commit(table, standing.progress, positions)
    return positions


def _commit(table: Table, before: TableProgress | None, positions: Mapping[int, TablePosition]) -> None:
    made = append(table, before, Append(None, positions))
    if made.outcome is not CommitOutcome.COMMITTED:
        raise UnavailableError(f"the table changed meanwhile, or the catalog did not answer: {name_of(table)}")
