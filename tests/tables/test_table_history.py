"""Faults of worker and catalog, changes by others: the table has each record once, and planted bugs are caught."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest

pytest.importorskip("pyiceberg", reason="pyiceberg is needed: make setup")

from pyiceberg.table import Table

from headrace.tables import dead_letters, looking, worker
from headrace.tables.commit import appending, committing
from headrace.tables.commit.committing import CommitOutcome
from headrace.tables.log import chunks
from headrace.tables.state import Follows, NotBegun, TableProgress, TableView, offsets_of
from tests.planted import PlantedBugs, Trial
from tests.scan.thrown_away import ThrownAway
from tests.spark.world import ScanWorld
from tests.tables.history import AppendHistory
from tests.tables.world import Tables

pytestmark = pytest.mark.requirement("X11")


async def histories(world: ScanWorld, tables: Tables, seeds: Iterable[int], *, is_valued: bool = False) -> None:
    for seed in seeds:
        await AppendHistory(world, tables, random.Random(seed), is_valued=is_valued).tell()


SEEDS = pytest.mark.parametrize(
    "seeds", [range(3), pytest.param(range(3, 12), marks=pytest.mark.slow)], ids=["few", "more"]
)


@SEEDS
async def test_the_table_has_each_committed_record_once(world: ScanWorld, tables: Tables, seeds: range) -> None:
    await histories(world, tables, seeds)


@SEEDS
async def test_each_record_is_in_the_table_or_in_its_dead_letters(
    world: ScanWorld, tables: Tables, seeds: range
) -> None:
    await histories(world, tables, seeds, is_valued=True)


def _offsets_of_the_newest_snapshot(view: TableView) -> Any:
    """Offsets only in the summary: another engine's snapshot has none."""
    current = view.snapshots.get(view.current_id) if view.current_id is not None else None
    if current is None or current.offsets is None:
        return NotBegun()
    return Follows(TableProgress(offsets_of(current.offsets), current.snapshot_id))


def bound_to_the_newest(table: Table, before: Any, add: Any) -> Any:
    """The commit asserts the newest snapshot, not the one that it continues."""
    catalog: Any = table.catalog
    first, catalog.before_commit = catalog.before_commit, None
    if first is not None:
        first()
    table.refresh()
    return _append(table, before, add)


def lost_is_committed_again(*args: Any) -> Any:
    """Send what had no answer once more, on what the table has by then."""
    made = _append(*args)
    if made.outcome is CommitOutcome.UNKNOWN:
        table, before, add = args
        table.refresh()
        return _append(table, before, add)
    return made


def _forgets_ends(*args: Any) -> chunks.RowsWithin:
    """The records behind the limit of opened bytes are left out."""
    return chunks.RowsWithin(_rows_within(*args).rows, {})


async def _forgets_cuts(*args: Any) -> Any:
    """The records that were left to the next chunk are left out."""
    *before, opened = args
    return await _reached(*before, replace(opened, cuts={}))


_rows_within, _reached = chunks.rows_within, worker.TableWorker._reached
_append = appending.append
BUGS: dict[str, tuple[Any, str, Any]] = {
    "the library's retry is on": (committing, "NO_RETRIES", "4"),
    "offsets are only in the summary": (looking, "standing_of", _offsets_of_the_newest_snapshot),
    "two workers do not exclude each other": (worker, "append", bound_to_the_newest),
    "a lost answer is sent again": (worker, "append", lost_is_committed_again),
    "a chunk that ends early counts as read": (chunks, "rows_within", _forgets_ends),
}
PLANTED = PlantedBugs("iceberg tables", most=100)


def _not_what_fits_by_now(raw: Any, opener: Any) -> Any:
    """What is due is decided again by the worker that appends it."""
    rows = _with_reasons(raw, opener)
    return rows.filter(pc.field("reason") != dead_letters.FITS_BY_NOW)


class _KnowsOnlyItsOwn:
    """Dead letters are only appended by the process that committed to the table, right after."""

    def __init__(self) -> None:
        self._is_after_a_commit = False

    async def advance(self, this: Any, name: str, look: Any, *more: Any) -> Any:
        done = await _advance(this, name, look, *more)
        if done.outcome is CommitOutcome.COMMITTED and done.has_more:
            self._is_after_a_commit = True
            try:
                look = await this.tables.look(name)
            finally:
                self._is_after_a_commit = False
            if look.letters.due:
                return await this._bury(name, look, look.topic)
        return done

    def due(self, *args: Any) -> Any:
        return _dead_letters_due(*args) if self._is_after_a_commit else dead_letters.DeadLetters(None, None, ())


_with_reasons, _dead_letters_due = dead_letters._with_reasons, dead_letters.dead_letters_due
_advance, _own = worker.TableWorker._advance, _KnowsOnlyItsOwn()
BUGS_OF_DEAD_LETTERS: dict[str, list[tuple[Any, str, Any]]] = {
    "what is due is decided again": [(dead_letters, "_with_reasons", _not_what_fits_by_now)],
    "two workers do not exclude each other": [(dead_letters, "append", bound_to_the_newest)],
    "a lost answer is sent again": [(dead_letters, "append", lost_is_committed_again)],
    "a record for the next chunk is left out": [(worker.TableWorker, "_reached", _forgets_cuts)],
    "dead letters of a worker that was killed are forgotten": [
        (worker.TableWorker, "_advance", lambda *args: _own.advance(*args)),
        (looking, "dead_letters_due", _own.due),
    ],
}
PLANTED_IN_DEAD_LETTERS = PlantedBugs("dead letters of iceberg tables", most=100)


@PLANTED.cases(BUGS)
async def test_each_planted_bug_is_caught(bug: str, trial: Trial, thrown_away: ThrownAway) -> None:
    trial.plant(*BUGS[bug])
    await thrown_away.look_for(trial, partial(_history, is_valued=False))


@PLANTED_IN_DEAD_LETTERS.cases(BUGS_OF_DEAD_LETTERS)
async def test_each_planted_bug_of_dead_letters_is_caught(bug: str, trial: Trial, thrown_away: ThrownAway) -> None:
    for replaced in BUGS_OF_DEAD_LETTERS[bug]:
        trial.plant(*replaced)
    await thrown_away.look_for(trial, partial(_history, is_valued=True))


async def _history(world: ScanWorld, folder: Path, seed: int, *, is_valued: bool) -> None:
    await histories(world, Tables(world, folder), [seed], is_valued=is_valued)
