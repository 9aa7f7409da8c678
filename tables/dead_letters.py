"""Records that do not fit their table, in a second table: each record is in one of the two, once.

    table          commit n: rows that fit, and in its progress the offsets of those that do not (`dead`)
    dead letters   a commit with these records; its positions say up to which offsets it has what is due
    table          commit n+1: only once the dead letters of commit n are there

Place: a step of worker.py before it appends, and of `headrace tables resume`.
Invariant: only a commit to the table decides which records are dead letters, so two workers, or a worker before and
after a crash, cannot decide differently. The dead-letter table follows that decision: its commits are bound to its
snapshots as those of the table are, and a worker that finds its positions behind appends what is due, from the log.
What retention removed in between is a gap in its progress.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple, Protocol

import numpy as np
import pyarrow as pa
from pyiceberg.table import Table

from headrace.metastore.log.image import TopicImage
from headrace.scan.plan import WantedOffsets
from headrace.tables.catalog import TableCatalog, view_of
from headrace.tables.commit.appending import Append, append
from headrace.tables.commit.committing import CommitResult
from headrace.tables.log.chunks import ChunkReader
from headrace.tables.log.ranges import log_ranges
from headrace.tables.state import (
    Broken,
    Definition,
    Follows,
    OffsetGap,
    TablePosition,
    TableProgress,
    ranges_of,
    standing_of,
)

logger = logging.getLogger(__name__)
FITS_BY_NOW = "the record did not fit when it was read; by now it would"


class DeadLetters(NamedTuple):
    """The dead-letter table next to what is due. `table` None: it does not exist yet."""

    table: Table | None
    progress: TableProgress | None
    due: tuple[OffsetGap, ...]
    broken: str = ""
    """Why it cannot be continued."""


NOTHING_DUE = DeadLetters(None, None, ())


class DeadLetterJudge(Protocol):
    """Says why records do not fit."""

    def reasons(self, raw: pa.Table) -> list[str]:
        """Return the reason of each record; empty: it would fit by now. Errors as ValueFormat."""


class Buried(NamedTuple):
    """What a commit to the dead-letter table did."""

    made: CommitResult
    records: int
    missing: int


def dead_letters_due(catalog: TableCatalog, table: Table, progress: TableProgress) -> DeadLetters:
    """Look. Blocks. NameTakenError: another table has the name."""
    if not progress.dead:
        return NOTHING_DUE
    letters = catalog.load_dead_letters(table)
    if letters is None:
        return DeadLetters(None, None, progress.dead)
    standing = standing_of(view_of(letters))
    if isinstance(standing, Broken):
        return DeadLetters(letters, standing.progress, (), f"the dead-letter table: {standing.reason}")
    buried = standing.progress if isinstance(standing, Follows) else None
    return DeadLetters(letters, buried, still_due(progress.dead, {} if buried is None else buried.positions))


def still_due(dead: Sequence[OffsetGap], positions: Mapping[int, TablePosition]) -> tuple[OffsetGap, ...]:
    """Return the ranges that a dead-letter table with these positions lacks."""
    return tuple(each for each in dead if each.end > positions.get(each.partition, TablePosition(0)).offset)


@dataclass(slots=True)
class DeadLetterWriter:
    """Appends what is due."""

    catalog: TableCatalog
    chunks: ChunkReader

    async def bury(
        self, table: Table, definition: Definition, letters: DeadLetters, judge: DeadLetterJudge, topic: TopicImage
    ) -> Buried:
        """One commit. Errors as ChunkReader."""
        target = letters.table
        if target is None:
            target = await asyncio.to_thread(self.catalog.create_dead_letters, table, definition)
        partitions, log = await log_ranges(self.chunks.cluster.metastore, topic, {})
        ranges = {
            partitions[p]: WantedOffsets(max(min(r.start for r in due), log[p].start), max(r.end for r in due))
            for p, due in _by_partition(letters.due).items()
        }
        left = {partition: wanted for partition, wanted in ranges.items() if wanted.start < wanted.end}
        raw = _only(await self.chunks.read_ranges(left), letters.due)
        rows = await asyncio.to_thread(_with_reasons, raw, judge)
        gaps = _missing(raw, letters.due)
        positions = {} if letters.progress is None else dict(letters.progress.positions)
        positions |= {p: TablePosition(max(r.end for r in due)) for p, due in _by_partition(letters.due).items()}
        made = await asyncio.to_thread(append, target, letters.progress, Append(rows, positions, gaps))
        return Buried(made, rows.num_rows, sum(gap.end - gap.start for gap in gaps))


def _by_partition(due: Sequence[OffsetGap]) -> dict[int, list[OffsetGap]]:
    ordered = sorted(due, key=lambda each: each.partition)
    return {partition: list(each) for partition, each in groupby(ordered, key=lambda each: each.partition)}


def _only(raw: pa.Table, due: Sequence[OffsetGap]) -> pa.Table:
    """The rows that are due, of a reading that also has what is between them."""
    partitions, offsets = raw.column("partition").to_numpy(), raw.column("offset").to_numpy()
    wanted = np.zeros(len(offsets), dtype=bool)
    for partition, each in _by_partition(due).items():
        starts = np.array([one.start for one in sorted(each, key=lambda one: one.start)])
        ends = np.array([one.end for one in sorted(each, key=lambda one: one.start)])
        before = np.searchsorted(starts, offsets, side="right") - 1
        wanted |= (partitions == partition) & (before >= 0) & (offsets < ends[before])
    return raw.filter(pa.array(wanted))


def _missing(raw: pa.Table, due: Sequence[OffsetGap]) -> tuple[OffsetGap, ...]:
    found = set(zip(raw.column("partition").to_pylist(), raw.column("offset").to_pylist(), strict=True))
    places = ((each.partition, offset) for each in due for offset in range(each.start, each.end))
    return tuple(ranges_of(place for place in places if place not in found))


def _with_reasons(raw: pa.Table, judge: DeadLetterJudge) -> pa.Table:
    reasons = [reason or FITS_BY_NOW for reason in judge.reasons(raw)]
    return raw.append_column(pa.field("reason", pa.string()), pa.array(reasons, pa.string()))
