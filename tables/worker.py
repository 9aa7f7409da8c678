"""Keeps one table: reads where it is, reads what the topic has beyond that, and appends it.

    table (catalog) -> offsets (state.py) -> step (policy.py) -> chunk -> pin, plan, rows -> commit (appending.py)
    values with a schema: rows -> columns (values/), dead letters (dead_letters.py)

Place: called again and again by follower.py in the role `tables`. Stateless, but for files of commits without an
answer.
Invariant: everything that decides what is appended is read from the table in the same round, so a worker that was
killed, two workers, or a lost answer cost repeated work and no row. Rows of a partition are appended in offset order.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import pyarrow as pa
from pyiceberg.manifest import DataFile

from headrace.metastore.log.image import TopicImage
from headrace.scan.errors import DataLossError, OptionError
from headrace.scan.read import SplitReader
from headrace.tables.catalog import dead_letters_of
from headrace.tables.commit.appending import Append, append, widen
from headrace.tables.commit.committing import CommitOutcome, CommitResult
from headrace.tables.commit.limits import FILES_MAX, WritableJudge, cuts_for, without, without_faults
from headrace.tables.dead_letters import DeadLetterJudge, DeadLetterWriter
from headrace.tables.declaration import DISABLED, Declaration
from headrace.tables.errors import BuildingError, SchemaError
from headrace.tables.keyed.opener import NO_COLUMNS, OpenedChanges, keyed_opener, value_opener
from headrace.tables.log.chunks import CHUNK_BYTES, OPENED_BYTES, ChunkReader, Reach
from headrace.tables.log.policy import AppendStep, after
from headrace.tables.log.ranges import start_positions
from headrace.tables.looking import Condition, TableLook, TableReader
from headrace.tables.state import PAUSED, RETENTION_MS, TOLERANCE, OffsetGap, TablePosition, TableProgress
from headrace.tables.values.formats import ValueFormats
from headrace.tables.values.open import REASON_CHARACTERS_MAX, OpenedChunk

logger = logging.getLogger(__name__)
KEPT_BY_SPARK = "headrace-spark-tables merges its records: a row per key"
"""What a worker that only appends says of a table with a row per key."""


class TableRound(NamedTuple):
    """What one round found and did. `lag`: offsets that are committed and not in the table, by partition."""

    condition: Condition
    reason: str = ""
    outcome: CommitOutcome | None = None
    """None: there was nothing to append."""
    rows: int = 0
    missing: int = 0
    """Offsets of new gaps."""
    dead_letters: int = 0
    """Records appended to the dead-letter table."""
    lag: Mapping[int, int] = {}
    has_more: bool = False
    interval_ms: int | None = None
    """The pause until the next round; None: that of the process."""


def _after(outcome: CommitOutcome, look: TableLook) -> TableRound:
    """The round that ends with this commit. Without an answer the next one waits: a catalog that is away, or refuses
    without saying so, would get one set of files after the other.
    """
    is_answered = outcome is not CommitOutcome.UNKNOWN
    return TableRound(Condition.FOLLOWING, outcome=outcome, lag=look.lag, has_more=is_answered)


class Made(NamedTuple):
    """What a commit appends: how many rows, records that are due as dead letters, and the rows or their files."""

    records: int
    dead: tuple[OffsetGap, ...]
    rows: pa.Table | None = None
    files: tuple[DataFile, ...] = ()
    removed: tuple[DataFile, ...] = ()
    """Data files that `files` replace."""


class ReadChunk(NamedTuple):
    """What was read for one commit. `columns`: of values, that the table has."""

    step: AppendStep
    progress: TableProgress
    reach: Mapping[int, Reach]
    columns: pa.StructType


@dataclass(slots=True)
class TableWorker:
    """Keeps the tables of one catalog. `chunk_bytes` as CHUNK_BYTES, `opened_bytes` as OPENED_BYTES."""

    tables: TableReader
    reader: SplitReader
    chunk_bytes: int = CHUNK_BYTES
    opened_bytes: int = OPENED_BYTES
    formats: ValueFormats = field(default_factory=ValueFormats)
    looked: Callable[[str, TableLook], None] = lambda name, look: None
    """Called with what each round finds, also if the round fails then."""
    merges_keys: bool = False
    """Whether it keeps tables with a row per key: only on Spark. A worker that appends never adds a record to one."""
    _unanswered: dict[str, list[CommitResult]] = field(default_factory=dict)
    """Commits without an answer, by table, since the last one with an answer."""

    @property
    def _chunks(self) -> ChunkReader:
        return ChunkReader(self.tables.cluster, self.reader, self.chunk_bytes, self.opened_bytes)

    async def keep(self, name: str) -> TableRound:
        """One round: at most one commit. Errors of catalog, bucket, metastore and registry; nothing is lost by them."""
        look = await self.tables.look(name)
        self.looked(name, look)
        if look.declared is not None:
            done = await self._follow_configs(name, look, look.declared) or await self._built(name, look)
            return done._replace(interval_ms=look.declared.interval_ms)
        return await self._built(name, look)

    async def _built(self, name: str, look: TableLook) -> TableRound:
        """Make the round; a change that cannot be built pauses the table."""
        try:
            return await self._round(name, look)
        except BuildingError as error:
            return await self._pause(name, look, str(error))

    async def _follow_configs(self, name: str, look: TableLook, declared: Declaration) -> TableRound | None:
        """Set what the topic's configs say now; None if the table has it already."""
        wanted = {}
        if declared.is_enabled:
            if look.definition.paused == DISABLED:
                wanted[PAUSED] = ""
            if look.definition.tolerance != declared.tolerance and look.definition.has_dead_letters:
                wanted[TOLERANCE] = declared.tolerance
            if look.definition.retention_ms != declared.retention_ms:
                wanted[RETENTION_MS] = "" if declared.retention_ms < 0 else str(declared.retention_ms)
        elif not look.definition.paused:
            wanted[PAUSED] = DISABLED
        for key, value in wanted.items():
            await asyncio.to_thread(self.tables.catalog.set_property, name, key, value)
        if not wanted:
            return None
        if not declared.is_enabled:
            return TableRound(Condition.PAUSED, DISABLED, lag=look.lag)
        return TableRound(Condition.FOLLOWING, lag=look.lag, has_more=True)

    async def _round(self, name: str, look: TableLook) -> TableRound:
        if look.condition is not Condition.FOLLOWING:
            return TableRound(look.condition, look.reason, lag=look.lag)
        assert look.topic is not None, "a table that follows has a topic"
        if look.step is None or look.progress is None:
            positions = await start_positions(self.tables.cluster, look.topic, look.definition.start)
            made = await asyncio.to_thread(append, look.table, None, Append(None, positions))
            self._settle(name, made)
            return _after(made.outcome, look)
        if look.definition.is_keyed and not self.merges_keys:
            return TableRound(Condition.FOLLOWING, KEPT_BY_SPARK, lag=look.lag)
        try:
            if look.letters.due:
                return await self._bury(name, look, look.topic)
            if not look.step.wanted and not look.step.gaps:
                return TableRound(Condition.FOLLOWING, lag=look.lag)
            return await self._advance(name, look, look.step, look.progress)
        except DataLossError as error:  # the log start moved meanwhile: the next round names the gap
            logger.info("log changed during a round: table=%s error=%s", name, error)
            return TableRound(Condition.FOLLOWING, lag=look.lag, has_more=True)

    async def _bury(self, name: str, look: TableLook, topic: TopicImage) -> TableRound:
        """Append the dead letters of the table's newest commit: nothing is appended to the table before."""
        judge = self._judge(look)
        assert judge is not None, "a table without a schema has no dead letters"
        writer = DeadLetterWriter(self.tables.catalog, self._chunks)
        buried = await writer.bury(look.table, look.definition, look.letters, judge, topic)
        self._settle(dead_letters_of(name), buried.made)
        if buried.made.outcome is not CommitOutcome.COMMITTED:
            return _after(buried.made.outcome, look)
        return TableRound(
            Condition.FOLLOWING,
            outcome=buried.made.outcome,
            missing=buried.missing,
            dead_letters=buried.records,
            lag=look.lag,
            has_more=True,
        )

    async def _advance(self, name: str, look: TableLook, step: AppendStep, progress: TableProgress) -> TableRound:
        reach, rows = await self._chunks.read(step, look.partitions)
        opener = value_opener(look.definition, look.table.schema(), self.formats)
        if opener is None:
            columns, opened = NO_COLUMNS, OpenedChunk(NO_COLUMNS, rows, (), {})
        else:
            columns, opened = opener.columns, await asyncio.to_thread(opener.open, rows)
        opened = await asyncio.to_thread(self._limited, name, look, opened)
        chunk = ReadChunk(step, progress, reach, columns)
        try:
            return await self._append(name, look, chunk, opened)
        except BuildingError as error:
            fitting = await asyncio.to_thread(without_faults, look.table.metadata, look.definition, opened)
            if fitting is None:
                raise
            logger.warning("rows cannot be written: table=%s error=%s", name, error)
            return await self._append(name, look, chunk, fitting)

    async def _append(self, name: str, look: TableLook, chunk: ReadChunk, opened: OpenedChunk) -> TableRound:
        reached = await self._reached(name, look, chunk.step, chunk.reach, chunk.columns, opened)
        if isinstance(reached, TableRound):
            return reached
        made = Made(opened.rows.num_rows, opened.dead, rows=opened.rows)
        return await self._commit(name, look, chunk.step, chunk.progress, reached, made)

    def _limited(self, name: str, look: TableLook, opened: OpenedChunk) -> OpenedChunk:
        """Return what of the chunk is in few enough files for one commit."""
        found = cuts_for(look.table.metadata, opened.rows)
        if not found:
            return opened
        logger.warning(
            "a commit is cut: table=%s files=%d rows=%d: it is partitioned by a column with many values",
            name,
            FILES_MAX,
            len(opened.rows),
        )
        cuts = {p: min(cut, opened.cuts.get(p, cut), key=lambda each: each.offset) for p, cut in found.items()}
        ends = {partition: TablePosition(cut.offset) for partition, cut in cuts.items()}
        dead = tuple(
            each if end is None else each.until(end.offset)
            for each in opened.dead
            if (end := ends.get(each.partition)) is None or each.start < end.offset
        )
        return OpenedChunk(opened.columns, without(opened.rows, cuts), dead, opened.cuts | cuts)

    async def _reached(
        self,
        name: str,
        look: TableLook,
        step: AppendStep,
        reach: Mapping[int, Reach],
        columns: pa.StructType,
        opened: OpenedChunk | OpenedChanges,
        keys: Sequence[str] = (),
    ) -> Mapping[int, TablePosition] | TableRound:
        """Return how far the opened records reach. If the table lacks columns, or a record pauses it: what the round
        did instead. `columns`: those that the table has; `keys`: those of the key, as `widen`.
        """
        if opened.columns != columns:
            try:
                outcome = await asyncio.to_thread(widen, look.table, opened.columns, look.definition.layout, keys)
            except (OptionError, SchemaError) as error:
                return await self._pause(name, look, str(error))
            return _after(outcome, look)
        reached = {partition: each.position for partition, each in reach.items()}
        for partition, cut in opened.cuts.items():
            if cut.offset > step.wanted[partition].start:
                reached[partition] = reach[partition].cut(cut.offset)
            elif cut.reason:
                return await self._pause(name, look, cut.reason)
            else:
                del reached[partition]
        return reached

    async def _commit(
        self,
        name: str,
        look: TableLook,
        step: AppendStep,
        progress: TableProgress,
        reached: Mapping[int, TablePosition],
        made_of: Made,
    ) -> TableRound:
        """One commit of what was made: the step up to `reached`."""
        moved, gaps = after(progress.positions, step, reached)
        moved = dict.fromkeys(look.partitions, TablePosition(0)) | moved  # for readers that continue behind the table
        add = Append(made_of.rows, moved, gaps, made_of.dead, made_of.files, made_of.removed)
        made = await asyncio.to_thread(append, look.table, progress, add)
        self._settle(name, made)
        if made.outcome is not CommitOutcome.COMMITTED:
            return _after(made.outcome, look)
        for gap in gaps:
            logger.warning(
                "offsets were removed before the table had them: table=%s topic=%s partition=%d offsets=%d-%d",
                name,
                look.definition.topic,
                gap.partition,
                gap.start,
                gap.end - 1,
            )
        left = look.lag | {p: wanted.end - max(wanted.start, moved[p].offset) for p, wanted in step.wanted.items()}
        missing = sum(gap.end - gap.start for gap in gaps)
        has_more = bool(made_of.dead) or any(left.values())
        return TableRound(Condition.FOLLOWING, "", made.outcome, made_of.records, missing, lag=left, has_more=has_more)

    async def _pause(self, name: str, look: TableLook, reason: str) -> TableRound:
        """Say in the table why it cannot continue; a user resumes it."""
        reason = reason[:REASON_CHARACTERS_MAX]
        await asyncio.to_thread(self.tables.catalog.set_property, name, PAUSED, reason)
        return TableRound(Condition.PAUSED, reason, lag=look.lag)

    def _judge(self, look: TableLook) -> DeadLetterJudge | None:
        """Return what says why records do not fit; None if each one fits. Errors as value_opener."""
        definition, schema = look.definition, look.table.schema()
        if definition.is_keyed:
            return keyed_opener(definition, schema, self.formats)
        opener = value_opener(definition, schema, self.formats)
        return None if opener is None else WritableJudge(opener, look.table.metadata)

    def _settle(self, name: str, made: CommitResult) -> None:
        """Remove the files of unanswered commits that can no longer happen: another one continued their snapshot."""
        if made.outcome is CommitOutcome.UNKNOWN:
            self._unanswered.setdefault(name, []).append(made)
        else:
            for each in self._unanswered.pop(name, ()):
                if made.outcome is CommitOutcome.COMMITTED and each.base_id == made.base_id:
                    each.files.remove()
