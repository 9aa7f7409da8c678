"""Continues a table that was changed by others: a user says from where, and the table has it in its next snapshot.

Place: `headrace tables resume`. Blocks.
Invariant: offsets change only together with a snapshot, also here: so a commit that is bound to the snapshot before
cannot continue the old offsets.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping

from pyiceberg.expressions.parser import parse
from pyiceberg.table import Table

from headrace.scan.errors import OptionError
from headrace.storage.errors import UnavailableError
from headrace.tables.catalog import name_of, translated, view_of
from headrace.tables.commit.appending import Append, append
from headrace.tables.commit.committing import CommitOutcome
from headrace.tables.commit.live_files import KnownManifests
from headrace.tables.commit.snapshot_offsets import offsets_at
from headrace.tables.log.policy import Ahead
from headrace.tables.state import (
    Broken,
    Follows,
    NotBegun,
    TablePosition,
    TableProgress,
    before_positions,
    standing_of,
)
from headrace.tables.upkeep.deleting import RowDeletion, column_in
from headrace.tables.upkeep.replacing import Replacer


class Choice(enum.Enum):
    """The place from which a table continues."""

    ROWS = "rows"
    """Continue after the rows of the current snapshot: what was rolled back is appended again."""
    OFFSETS = "offsets"
    """Continue at the table's offsets: what was rolled back stays out."""
    LOG = "log"
    """Continue where the log ends: rows that the log does not have (any more) are deleted."""


def decide(table: Table, choice: Choice, letters: Table | None = None) -> dict[int, TablePosition]:
    """Commit the choice for a table that was rolled back, and return the positions at which it continues. `letters`:
    its dead-letter table, which goes back with it.

    OptionError if the table was not rolled back, or if it does not record the position of this choice.
    UnavailableError: try again.
    """
    standing = standing_of(view_of(table))
    if isinstance(standing, (Follows, NotBegun)):
        raise OptionError(f"the table's offsets are those of its rows: nothing to decide: {name_of(table)}")
    positions = None if standing.own_id is None else offsets_at(table, standing.own_id)
    if choice is Choice.OFFSETS:
        positions = None if standing.progress is None else standing.progress.positions
    if choice is Choice.LOG or positions is None:
        raise OptionError(f"the table does not say where to continue by {choice.value!r}: {standing.reason}")
    if letters is not None:
        withdraw(letters, positions)
    _commit(table, standing.progress, positions)
    return dict(positions)


def decide_letters(letters: Table, choice: Choice) -> None:
    """Continue a dead-letter table that was rolled back: what was rolled back stays out. Errors as `decide`."""
    if choice is not Choice.OFFSETS:
        raise OptionError(f"a dead-letter table continues at its offsets: say --at offsets: {name_of(letters)}")
    decide(letters, choice)


def follow_log(table: Table, ahead: Mapping[int, Ahead], letters: Table | None = None) -> dict[int, TablePosition]:
    """Delete the rows that the log does not have, and continue at its end; the positions there. Errors as `decide`."""
    standing = standing_of(view_of(table))
    if isinstance(standing, (Broken, NotBegun)):
        raise OptionError(f"the table's offsets are not those of its rows: {name_of(table)}")
    ends = {each.partition: TablePosition(each.log_end) for each in ahead.values()}
    if letters is not None:
        withdraw(letters, ends)
    _delete_behind(table, ends)
    positions = standing.progress.positions | ends
    _commit(table, standing.progress, positions)
    return positions


def withdraw(letters: Table, ends: Mapping[int, TablePosition]) -> None:
    """Delete the dead letters at and behind these positions: their table goes back there, and decides again."""
    standing = standing_of(view_of(letters))
    if isinstance(standing, Broken):
        raise OptionError(f"the dead-letter table cannot go back: {standing.reason}")
    if isinstance(standing, NotBegun):
        return
    have = standing.progress.positions
    back = {p: end for p, end in ends.items() if p in have and have[p].offset > end.offset}
    if back:
        _delete_behind(letters, back)
        _commit(letters, standing.progress, have | back)


def _delete_behind(table: Table, ends: Mapping[int, TablePosition]) -> None:
    """Delete the rows at and behind these positions; `table` is as after that. Errors as RowDeletion."""
    partition, offset = (column_in(table, name) for name in ("partition", "offset"))

    def load() -> Table:
        with translated(f"table {name_of(table)}"):
            return table.catalog.load_table(table.name())

    replacer = Replacer(load, KnownManifests())
    for number, end in ends.items():
        RowDeletion(parse(f"{partition} == {number} and {offset} >= {end.offset}")).delete(replacer)
    with translated(f"table {name_of(table)}"):
        table.refresh()


def _commit(table: Table, before: TableProgress | None, positions: Mapping[int, TablePosition]) -> None:
    dead = () if before is None else before_positions(before.dead, positions)
    made = append(table, before, Append(None, positions, dead=dead))
    if made.outcome is not CommitOutcome.COMMITTED:
        raise UnavailableError(f"the table changed meanwhile, or the catalog did not answer: {name_of(table)}")
