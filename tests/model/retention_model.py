"""The reference model's log starts, sizes and producers: RetentionApi in plain Python.

Place: the part of tests/model/metastore_model.py that retention and DeleteRecords talk to.
Invariant: as there. Leases of jobs are judged elsewhere (tests/model/job_model.py).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from headrace.metastore.api.jobs import JobToken
from headrace.metastore.api.read import Extent, FeedKind, LogStartMove
from headrace.metastore.api.reports import ProducerStatus
from headrace.metastore.api.retention import (
    TO_HIGH_WATERMARK,
    LogStartAnswer,
    LogStartTarget,
    OldestExtents,
    OldestQuery,
    OldExtent,
)
from headrace.metastore.keys import commit_shard
from headrace.storage.clock import Clock
from headrace.storage.file_id import born_ms
from tests.model.partition_model import ModelPartition


class ModelRetention:
    """Knows partitions, and how to announce what moved."""

    clock: Clock
    shards: int
    partitions: dict[int, ModelPartition]
    appended_ms: dict[Extent, int]

    def _append_feed(self, shard: int, kind: FeedKind, *, log_starts: Sequence[LogStartMove]) -> None:
        raise NotImplementedError

    async def move_log_starts(
        self, targets: Sequence[LogStartTarget], *, max_extents: int, by: JobToken | None = None
    ) -> list[LogStartAnswer]:
        """See metastore.api.retention.RetentionApi."""
        return self.move_log_starts_now(targets, max_extents=max_extents)

    def move_log_starts_now(self, targets: Sequence[LogStartTarget], *, max_extents: int) -> list[LogStartAnswer]:
        """The same, for callers that do not wait."""
        answers, moves = self.decide_log_starts(targets, max_extents=max_extents)
        self.announce_log_starts(moves)
        return answers

    def decide_log_starts(
        self, targets: Sequence[LogStartTarget], *, max_extents: int
    ) -> tuple[list[LogStartAnswer], list[LogStartMove]]:
        """The first step: log starts are moved and extents removed, but readers are not told yet."""
        moves, answers = [], []
        for target in targets:
            partition = self.partitions.get(target.partition_key)
            if partition is None:
                answers.append(LogStartAnswer(target.partition_key, False, -1, -1, 0, 0, False))
                continue
            if self._move(partition, target.offset):
                moves.append(LogStartMove(target.partition_key, partition.log_start_offset))
            removed = [e for e in partition.extents if e.last_offset < partition.log_start_offset][:max_extents]
            max_extents -= len(removed)
            partition.extents = partition.extents[len(removed) :]
            answers.append(
                LogStartAnswer(
                    *(target.partition_key, True, partition.log_start_offset, partition.high_watermark),
                    *(len(removed), sum(extent.length for extent in removed)),
                    partition.extents != partition.visible_extents,
                )
            )
        return answers, moves

    def announce_log_starts(self, moves: Sequence[LogStartMove]) -> None:
        """The second step: the feed rows. Commits may come between the two, a topic's deletion may not."""
        by_shard: dict[int, list[LogStartMove]] = defaultdict(list)
        for move in sorted(moves):
            if move.partition_key in self.partitions:
                by_shard[commit_shard(move.partition_key, self.shards)].append(move)
        for shard, announced in sorted(by_shard.items()):
            self._append_feed(shard, FeedKind.LOG_START, log_starts=announced)

    def _move(self, partition: ModelPartition, wanted: int) -> bool:
        """Return whether the log start moved."""
        if wanted == TO_HIGH_WATERMARK:
            wanted = partition.high_watermark
        if not partition.log_start_offset < wanted <= partition.high_watermark:
            return False
        partition.log_start_offset = wanted
        return True

    async def oldest_extents(self, queries: Sequence[OldestQuery]) -> tuple[int, list[OldestExtents]]:
        """See metastore.api.retention.RetentionApi."""
        return self.clock.wall_ms(), [self._oldest(query) for query in queries]

    def _oldest(self, query: OldestQuery) -> OldestExtents:
        partition = self.partitions.get(query.partition_key)
        if partition is None:
            return OldestExtents(query.partition_key, False, -1, -1, -1, False, [])
        oldest = [
            OldExtent(e.last_offset, e.length, self._newest_ms(e))
            for e in partition.visible_extents[: query.max_extents]
        ]
        return OldestExtents(
            *(query.partition_key, True, partition.log_start_offset, partition.high_watermark),
            sum(extent.length for extent in partition.extents),
            partition.extents != partition.visible_extents,
            oldest,
        )

    def _newest_ms(self, extent: Extent) -> int:
        """The highest timestamp of its records, or when those without one were committed."""
        appended_ms = self.appended_ms.get(extent, -1)
        if appended_ms < 0 and extent.max_timestamp < 0:
            return born_ms(extent.source)
        return max(extent.max_timestamp, appended_ms)

    async def partition_sizes(self, partition_keys: Sequence[int]) -> list[int]:
        """See metastore.api.retention.RetentionApi."""
        return [
            sum(extent.length for extent in self.partitions[key].extents) if key in self.partitions else -1
            for key in partition_keys
        ]

    async def describe_producers(self, partition_keys: Sequence[int]) -> list[list[ProducerStatus]]:
        """See metastore.api.retention.RetentionApi."""
        return [
            [
                ProducerStatus(
                    *(producer_id, state.epoch),
                    *((state.next_sequence - 1) % 2**31, state.ring[0].append_time_ms),
                )
                for producer_id, state in sorted(self.partitions[key].producers.items())
            ]
            if key in self.partitions
            else []
            for key in partition_keys
        ]
