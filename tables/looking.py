"""Looks at a table: what it says, and what the log says next to it.

Place: at the beginning of each round (worker.py), and for `headrace tables`, the doctor and the console.
Invariant: reads only; what is decided by it is decided by one reading of the table.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from pyiceberg.table import Table

from headrace.metastore.log.image import TopicImage
from headrace.scan.cluster import ScannedCluster
from headrace.scan.partitions import ScanPartition, TopicCatalog
from headrace.tables.catalog import TableCatalog, view_of
from headrace.tables.dead_letters import NOTHING_DUE, DeadLetters, dead_letters_due
from headrace.tables.declaration import Declaration
from headrace.tables.errors import NameTakenError
from headrace.tables.log.policy import AppendStep, next_step
from headrace.tables.log.ranges import log_ranges
from headrace.tables.state import Broken, Definition, Follows, TableProgress, standing_of


class Condition(enum.Enum):
    """What a table is doing."""

    FOLLOWING = "following"
    PAUSED = "paused"
    """Paused by a user, or by its worker because of a record or a schema: the reason says which."""
    STOPPED = "stopped"
    """It cannot be continued without a user's decision: the reason says why."""
    BLOCKED = "blocked"
    """Another table is in its way: it continues by itself once that one is gone. The reason says which."""
    DETACHED = "detached"
    """Its topic was deleted, and a user keeps the table as it is: it gets no more records."""


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
    letters: DeadLetters = NOTHING_DUE
    declared: Declaration | None = None
    """What topic configs say of it now; None: they did not make it."""

    is_topic_gone: bool = False
    """Whether it is stopped because its topic was deleted."""

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

        if definition.is_detached:
            return stopped(f"it was detached from topic {definition.topic}, which is gone", Condition.DETACHED)
        if definition.cluster_id != self.cluster.metastore.cluster_id:
            return stopped(f"the table is of another cluster: {definition.cluster_id}")
        image = await self.topics.refresh()
        topic = image.topics_by_name.get(definition.topic)
        if topic is None or topic.topic_id != definition.topic_id:
            what = "was deleted" if topic is None else "was deleted and created again"
            gone = stopped(f"the topic {what}: {definition.topic} topic_id={definition.topic_id}")
            return replace(gone, is_topic_gone=True)
        declared = Declaration.of(topic.name, image.topic_configs(topic.name)) if definition.declared else None
        if declared is not None and declared.name != name:
            declared = declared._replace(is_enabled=False)  # the configs are about another table
        if declared is not None and (conflict := declared.why_conflicting(definition)):
            return stopped(conflict)
        standing = standing_of(view_of(table))
        if isinstance(standing, Broken):
            return stopped(standing.reason)
        progress = standing.progress if isinstance(standing, Follows) else None
        letters = NOTHING_DUE
        condition = Condition.PAUSED if definition.paused else Condition.FOLLOWING
        reason = definition.paused
        if progress is not None and progress.dead:
            try:
                letters = await asyncio.to_thread(dead_letters_due, self.catalog, table, progress)
            except NameTakenError as error:
                condition, reason = Condition.BLOCKED, str(error)
        if letters.broken:
            return replace(stopped(letters.broken), letters=letters)
        found = TableLook(
            condition=condition,
            reason=reason,
            table=table,
            definition=definition,
            topic=topic,
            progress=progress,
            letters=letters,
            declared=declared,
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
