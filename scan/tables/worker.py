"""Keeps one table: reads where it is, reads what the topic has beyond that, and appends it.

    table (catalog) -> standing (state.py) -> step (policy.py) -> chunk -> pin, plan, rows -> commit (appending.py)

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
from dataclasses import dataclass, field
from typing import NamedTuple

import pyarrow as pa
from pyiceberg.table import Table

from headrace.metastore.api.read import ExtentQuery
from headrace.metastore.log.image import TopicImage
from headrace.scan.cluster import ScannedCluster
from headrace.scan.columns import arrow_schema, record_batches
from headrace.scan.errors import DataLossError
from headrace.scan.options import READ_PIN_MS
from headrace.scan.partitions import ScanPartition, TopicCatalog
from headrace.scan.plan import WantedOffsets, pin, plan
from headrace.scan.read import SplitReader
from headrace.scan.tables.appending import Append, Appended, Outcome, append
from headrace.scan.tables.catalog import TableCatalog, view_of
from headrace.scan.tables.log_ranges import log_ranges, start_positions
from headrace.scan.tables.policy import LogRange, Step, after, next_step
from headrace.scan.tables.rows import COLUMNS, table_of
from headrace.scan.tables.state import Broken, Definition, Follows, Position, Progress, standing_of

logger = logging.getLogger(__name__)

CHUNK_BYTES = 64 * 1024 * 1024
"""Stored bytes that one commit appends, at most about; opened they may be several times as many."""


class Condition(enum.Enum):
    """What a table is doing."""

    FOLLOWING = "following"
    PAUSED = "paused"
    """By a user."""
    STOPPED = "stopped"
    """It cannot be continued without a user's decision: the reason says why."""


class Round(NamedTuple):
    """What one round found and did. `lag`: offsets that are committed and not in the table, by partition."""

    condition: Condition
    reason: str = ""
    outcome: Outcome | None = None
    """None: there was nothing to append."""
    rows: int = 0
    missing: int = 0
    """Offsets of new gaps."""
    lag: Mapping[int, int] = {}
    has_more: bool = False


@dataclass(frozen=True, slots=True)
class _Found:
    """What the table said, and what the log says next to it."""

    progress: Progress | None
    positions: Mapping[int, Position]
    log: Mapping[int, LogRange]
    partitions: Mapping[int, ScanPartition]


@dataclass(slots=True)
class TableWorker:
    """Keeps the tables of one catalog. `chunk_bytes` as CHUNK_BYTES."""

    cluster: ScannedCluster
    topics: TopicCatalog
    reader: SplitReader
    catalog: TableCatalog
    chunk_bytes: int = CHUNK_BYTES
    _unanswered: dict[str, list[Appended]] = field(default_factory=dict)
    """Commits without an answer, by table, since the last one with an answer."""

    async def keep(self, name: str) -> Round:
        """One round: at most one commit. Errors of catalog, bucket and metastore; nothing is lost by them."""
        table, definition = await asyncio.to_thread(self.catalog.load_own, name)
        if definition.cluster_id != self.cluster.metastore.cluster_id:
            return Round(Condition.STOPPED, f"the table is of another cluster: {definition.cluster_id}")
        if definition.paused:
            return Round(Condition.PAUSED, definition.paused)
        image = await self.topics.refresh()
        topic = image.topics_by_name.get(definition.topic)
        if topic is None or topic.topic_id != definition.topic_id:
            what = "was deleted" if topic is None else "was deleted and created again"
            return Round(Condition.STOPPED, f"the topic {what}: {definition.topic} topic_id={definition.topic_id}")
        standing = standing_of(view_of(table))
        if isinstance(standing, Broken):
            return Round(Condition.STOPPED, standing.reason)
        progress = standing.progress if isinstance(standing, Follows) else None
        return await self._advance(name, table, definition, topic, progress)

    async def _advance(
        self, name: str, table: Table, definition: Definition, topic: TopicImage, progress: Progress | None
    ) -> Round:
        metastore = self.cluster.metastore
        if progress is None:
            positions = await start_positions(self.cluster, topic, definition.start)
            made = await asyncio.to_thread(append, table, None, Append(None, positions))
            self._settle(name, made)
            return Round(Condition.FOLLOWING, outcome=made.outcome, has_more=True)
        partitions, log = await log_ranges(metastore, topic, progress.positions)
        step = next_step(progress.positions, log)
        if step.ahead:
            lost = ", ".join(map(str, step.ahead))
            return Round(Condition.STOPPED, f"the table has records that the log does not have (any more): {lost}")
        lag = {partition: end - start for partition, (start, end) in step.wanted.items()}
        if not step.wanted and not step.gaps:
            return Round(Condition.FOLLOWING, lag=lag)
        found = _Found(progress, progress.positions, log, partitions)
        try:
            reached, rows = await self._read(step, found)
        except DataLossError as error:  # the log start moved meanwhile: the next round names the gap
            logger.info("log changed during a round: table=%s error=%s", name, error)
            return Round(Condition.FOLLOWING, lag=lag, has_more=True)
        moved, gaps = after(progress.positions, step, reached)
        made = await asyncio.to_thread(append, table, progress, Append(rows, moved, gaps))
        self._settle(name, made)
        if made.outcome is not Outcome.COMMITTED:
            return Round(Condition.FOLLOWING, outcome=made.outcome, lag=lag, has_more=True)
        for gap in gaps:
            logger.warning(
                "offsets were removed before the table had them: table=%s topic=%s partition=%d offsets=%d-%d",
                *(name, definition.topic, gap.partition, gap.start, gap.end - 1),
            )
        left = {p: wanted.end - max(wanted.start, moved[p].offset) for p, wanted in step.wanted.items()}
        return Round(
            *(Condition.FOLLOWING, "", made.outcome, rows.num_rows, sum(gap.end - gap.start for gap in gaps)),
            *(left, any(left.values())),
        )

    async def _read(self, step: Step, found: _Found) -> tuple[dict[int, Position], pa.Table]:
        """The rows of about `chunk_bytes`, and how far they reach. DataLossError."""
        metastore = self.cluster.metastore
        pinned = await pin(metastore, "tables", READ_PIN_MS)
        try:
            reached = await self._reach(step, found)
            ranges = {
                found.partitions[p]: WantedOffsets(step.wanted[p].start, position.offset)
                for p, position in reached.items()
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

    async def _reach(self, step: Step, found: _Found) -> dict[int, Position]:
        """Where one commit may get: the ends of the extents that have about `chunk_bytes` together."""
        order = list(step.wanted)
        self.cluster.rng.shuffle(order)  # none of very many partitions waits for ever
        queries = [ExtentQuery(found.partitions[p].key, step.wanted[p].start, self.chunk_bytes) for p in order]
        answers = await self.cluster.metastore.find_extents(queries, self.chunk_bytes)
        reached = {}
        for partition, answer in zip(order, answers, strict=True):
            if answer.extents:
                last = answer.extents[-1]
                reached[partition] = Position(
                    min(last.last_offset + 1, step.wanted[partition].end), last.leader_epoch
                )
        return dict(sorted(reached.items()))

    def _settle(self, name: str, made: Appended) -> None:
        """Remove the files of unanswered commits that can no longer happen: another one continued their snapshot."""
        if made.outcome is Outcome.UNKNOWN:
            self._unanswered.setdefault(name, []).append(made)
        else:
            for each in self._unanswered.pop(name, ()):
                if made.outcome is Outcome.COMMITTED and each.base_id == made.base_id:
                    each.files.remove()
