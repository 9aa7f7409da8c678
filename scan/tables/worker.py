"""Keeps one table: reads where it is, reads what the topic has beyond that, and appends it.

    table (catalog) -> offsets (state.py) -> step (policy.py) -> chunk -> pin, plan, rows -> commit (appending.py)

Place: called again and again by follower.py in the role `tables`. Stateless, but for files of commits without an
answer.
Invariant: everything that decides what is appended is read from the table in the same round, so a worker that was
killed, two workers, or a lost answer cost repeated work and no row. Rows of a partition are appended in offset order.
"""

from __future__ import annotations

import asyncio
import enum
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import pyarrow as pa
from pyiceberg.table import Table

from headrace.metastore.api.metastore import Metastore
from headrace.metastore.api.read import ExtentQuery
from headrace.metastore.log.image import TopicImage
from headrace.scan.cluster import ScannedCluster
from headrace.scan.columns import arrow_schema, record_batches
from headrace.scan.errors import DataLossError
from headrace.scan.options import READ_PIN_MS
from headrace.scan.partitions import ScanPartition, TopicCatalog
from headrace.scan.plan import WantedOffsets, pin, plan
from headrace.scan.read import SplitReader
from headrace.scan.tables.appending import Append, Appended, CommitOutcome, append
from headrace.scan.tables.catalog import TableCatalog, view_of
from headrace.scan.tables.log_ranges import log_ranges, start_positions
from headrace.scan.tables.policy import AppendStep, after, next_step
from headrace.scan.tables.rows import COLUMNS, table_of
from headrace.scan.tables.state import Broken, Definition, Follows, TablePosition, TableProgress, standing_of

logger = logging.getLogger(__name__)

CHUNK_BYTES = 64 * 1024 * 1024
"""Stored bytes that one commit appends, at most about; opened they may be several times as many."""


class Condition(enum.Enum):
    """What a table is doing."""

    FOLLOWING = "following"
    PAUSED = "paused"
    """Paused by a user."""
    STOPPED = "stopped"
    """It cannot be continued without a user's decision: the reason says why."""


class TableRound(NamedTuple):
    """What one round found and did. `lag`: offsets that are committed and not in the table, by partition."""

    condition: Condition
    reason: str = ""
    outcome: CommitOutcome | None = None
    """None: there was nothing to append."""
    rows: int = 0
    missing: int = 0
    """Offsets of new gaps."""
    lag: Mapping[int, int] = {}
    has_more: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TableLook:
    """What the table says, and what the log says next to it; nothing was changed.

    `progress` None: nothing was appended yet. `step` None: the table does not follow, or has not begun.
    """

    condition: Condition
    reason: str
    table: Table
    definition: Definition
    topic: TopicImage | None = None
    progress: TableProgress | None = None
    partitions: Mapping[int, ScanPartition] = field(default_factory=dict)
    step: AppendStep | None = None

    @property
    def lag(self) -> dict[int, int]:
        """Offsets that are committed and not in the table, by partition."""
        wanted = {} if self.step is None else self.step.wanted
        return {partition: wanted[partition].end - wanted[partition].start if partition in wanted else 0
                for partition in self.partitions}  # fmt: skip


@dataclass(slots=True)
class TableReader:
    """Looks at the tables of one catalog."""

    cluster: ScannedCluster
    topics: TopicCatalog
    catalog: TableCatalog

    async def look(self, name: str) -> TableLook:
        """Errors of catalog and metastore; NotFoundError, TableError."""
        table, definition = await asyncio.to_thread(self.catalog.load_own, name)

        def stopped(reason: str, condition: Condition = Condition.STOPPED) -> TableLook:
            return TableLook(condition=condition, reason=reason, table=table, definition=definition)

        if definition.cluster_id != self.cluster.metastore.cluster_id:
            return stopped(f"the table is of another cluster: {definition.cluster_id}")
        topic = (await self.topics.refresh()).topics_by_name.get(definition.topic)
        if topic is None or topic.topic_id != definition.topic_id:
            what = "was deleted" if topic is None else "was deleted and created again"
            return stopped(f"the topic {what}: {definition.topic} topic_id={definition.topic_id}")
        standing = standing_of(view_of(table))
        if isinstance(standing, Broken):
            return stopped(standing.reason)
        progress = standing.progress if isinstance(standing, Follows) else None
        found = TableLook(
            condition=Condition.PAUSED if definition.paused else Condition.FOLLOWING,
            reason=definition.paused,
            table=table,
            definition=definition,
            topic=topic,
            progress=progress,
        )
        return found if progress is None else await self._next_to_the_log(found, topic, progress)

    async def _next_to_the_log(self, found: TableLook, topic: TopicImage, progress: TableProgress) -> TableLook:
        partitions, log = await log_ranges(self.cluster.metastore, topic, progress.positions)
        step = next_step(progress.positions, log)
        found = replace(found, partitions=partitions, step=step)
        if step.ahead:
            lost = ", ".join(map(str, step.ahead))
            reason = f"the table has records that the log does not have (any more): {lost}"
            return replace(found, condition=Condition.STOPPED, reason=reason)
        return found


@dataclass(slots=True)
class TableWorker:
    """Keeps the tables of one catalog. `chunk_bytes` as CHUNK_BYTES."""

    tables: TableReader
    reader: SplitReader
    chunk_bytes: int = CHUNK_BYTES
    _unanswered: dict[str, list[Appended]] = field(default_factory=dict)
    """Commits without an answer, by table, since the last one with an answer."""

    @property
    def _metastore(self) -> Metastore:
        return self.tables.cluster.metastore

    async def keep(self, name: str) -> TableRound:
        """One round: at most one commit. Errors of catalog, bucket and metastore; nothing is lost by them."""
        look = await self.tables.look(name)
        if look.condition is not Condition.FOLLOWING:
            return TableRound(look.condition, look.reason, lag=look.lag)
        assert look.topic is not None, "a table that follows has a topic"
        if look.step is None or look.progress is None:
            positions = await start_positions(self.tables.cluster, look.topic, look.definition.start)
            made = await asyncio.to_thread(append, look.table, None, Append(None, positions))
            self._settle(name, made)
            return TableRound(Condition.FOLLOWING, outcome=made.outcome, has_more=True)
        if not look.step.wanted and not look.step.gaps:
            return TableRound(Condition.FOLLOWING, lag=look.lag)
        return await self._advance(name, look, look.step, look.progress)

    async def _advance(self, name: str, look: TableLook, step: AppendStep, progress: TableProgress) -> TableRound:
        try:
            reached, rows = await self._read(step, look.partitions)
        except DataLossError as error:  # the log start moved meanwhile: the next round names the gap
            logger.info("log changed during a round: table=%s error=%s", name, error)
            return TableRound(Condition.FOLLOWING, lag=look.lag, has_more=True)
        moved, gaps = after(progress.positions, step, reached)
        made = await asyncio.to_thread(append, look.table, progress, Append(rows, moved, gaps))
        self._settle(name, made)
        if made.outcome is not CommitOutcome.COMMITTED:
            return TableRound(Condition.FOLLOWING, outcome=made.outcome, lag=look.lag, has_more=True)
        for gap in gaps:
            logger.warning(
                "offsets were removed before the table had them: table=%s topic=%s partition=%d offsets=%d-%d",
                *(name, look.definition.topic, gap.partition, gap.start, gap.end - 1),
            )
        left = look.lag | {p: wanted.end - max(wanted.start, moved[p].offset) for p, wanted in step.wanted.items()}
        missing = sum(gap.end - gap.start for gap in gaps)
        return TableRound(Condition.FOLLOWING, "", made.outcome, rows.num_rows, missing, left, any(left.values()))

    async def _read(
        self, step: AppendStep, partitions: Mapping[int, ScanPartition]
    ) -> tuple[dict[int, TablePosition], pa.Table]:
        """The rows of about `chunk_bytes`, and how far they reach. DataLossError."""
        metastore = self._metastore
        pinned = await pin(metastore, "tables", READ_PIN_MS)
        try:
            reached = await self._reach(step, partitions)
            ranges = {
                partitions[p]: WantedOffsets(step.wanted[p].start, position.offset) for p, position in reached.items()
            }
            planned = await plan(metastore, ranges, fail_on_data_loss=True, committed=True)
            schema = arrow_schema(COLUMNS)
            rows = await asyncio.to_thread(
                lambda: table_of(
                    batch for each in planned for batch in record_batches(self.reader.batches((each,)), schema)
                )
            )
        finally:
            await metastore.release_pins([pinned])
        return reached, rows

    async def _reach(self, step: AppendStep, partitions: Mapping[int, ScanPartition]) -> dict[int, TablePosition]:
        """Return where one commit may get: the ends of the extents that have about `chunk_bytes` together."""
        order = list(step.wanted)
        self.tables.cluster.rng.shuffle(order)  # each of very many partitions gets its turn
        queries = [ExtentQuery(partitions[p].key, step.wanted[p].start, self.chunk_bytes) for p in order]
        answers = await self._metastore.find_extents(queries, self.chunk_bytes)
        reached = {}
        for partition, answer in zip(order, answers, strict=True):
            if answer.extents:
                last = answer.extents[-1]
                reached[partition] = TablePosition(
                    min(last.last_offset + 1, step.wanted[partition].end), last.leader_epoch
                )
        return dict(sorted(reached.items()))

    def _settle(self, name: str, made: Appended) -> None:
        """Remove the files of unanswered commits that can no longer happen: another one continued their snapshot."""
        if made.outcome is CommitOutcome.UNKNOWN:
            self._unanswered.setdefault(name, []).append(made)
        else:
            for each in self._unanswered.pop(name, ()):
                if made.outcome is CommitOutcome.COMMITTED and each.base_id == made.base_id:
                    each.files.remove()
