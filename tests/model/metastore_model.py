"""The reference model of the metastore: CommitApi and IndexApi in plain sequential Python.

Place: what the Postgres implementation is compared with (tests/properties/test_commit_machine.py),
and a fake of it in tests of the produce and fetch paths. Invariant: dicts and loops, one batch
after the other; when this file and a clever one disagree, this one is right until shown otherwise.
Every topic, agent or condemned id is made by a helper below; `clock.wall_ms` is the database's clock.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence

from headrace.metastore.api.commit import BatchAnswer, BatchOutcome, FileAnswer, FileCommit, FileStatus, StagedBatch
from headrace.metastore.api.compaction import SwapOutcome
from headrace.metastore.api.read import (
    ALL_BYTES,
    EXTENTS_PER_CALL,
    EpochEnd,
    EpochQuery,
    Extent,
    ExtentQuery,
    FeedKind,
    FeedPage,
    FeedRow,
    LogStartMove,
    OffsetAnswer,
    OffsetKind,
    OffsetQuery,
    PartitionExtents,
)
from headrace.metastore.api.retention import LogStartTarget
from headrace.metastore.api.topics import RemovalOutcome
from headrace.metastore.api.transactions import Transaction
from headrace.metastore.keys import commit_shard, partition_key, split_partition_key
from headrace.metastore.life.numbers import NUMBER_BITS
from headrace.metastore.partitions.changes import Expansion, Shrinking
from headrace.storage.clock import Clock, SystemClock
from headrace.storage.errors import InvalidError
from headrace.storage.file_id import born_ms
from tests.model.compaction_model import SwapCall
from tests.model.inline_model import ModelInline
from tests.model.job_model import ModelJobs
from tests.model.partition_model import ModelPartition
from tests.model.producer_model import (
    DELETED_TOPICS_OF_A_NAME,
    EXPIRATION_MS,
    ProducerState,
    expected_sequence,
    find_duplicate,
    goes_on,
    is_stored,
    judge,
    partition_is_old,
    producer_is_old,
    remember,
)

ANSWERS_KEPT_MS = 3_600_000
"""A file created longer ago is refused, unless its answer is still there."""
BORN_AHEAD_MS = 600_000
"""A file created further in the future is refused."""
FIRST_PRODUCER_ID = 1000
EXTENTS_PER_QUERY = 500
"""find_extents never returns more for one query."""


class ModelMetastore(ModelInline):
    """CommitApi, IndexApi, InlineApi and RetentionApi. Nothing is ever concurrent here."""

    def __init__(self, clock: Clock | None = None, *, shards: int = 4) -> None:
        super().__init__()
        self.clock = clock or SystemClock()
        self.jobs = ModelJobs(self.clock)
        self.shards = shards
        self.incarnation_id = uuid.UUID(int=1)
        self.life = 0
        self.metadata_offset = 0
        self.partitions: dict[int, ModelPartition] = {}
        self.leftovers: dict[int, list[Extent]] = {}
        """Extents of deleted partitions: they are not read, and nothing here purges them."""
        self.removed_heads: dict[int, int] = {}
        """High watermarks of removed partitions: an index that returns continues there."""
        self.topic_names: dict[int, str] = {}
        """Topic number -> name, also of deleted topics."""
        self.deleted_ms: dict[int, int] = {}
        """Number of a deleted topic -> when it was deleted."""
        self.deleted_producers: dict[int, dict[int, ProducerState]] = {}
        """What deleted partitions knew of their producers."""
        self.partition_counts: dict[int, int] = {}
        """Topic number -> undeleted partition count."""
        self.agents: dict[int, int] = {}
        """Node id -> broker epoch, for agents that are registered and not fenced."""
        self.answers: dict[uuid.UUID, FileAnswer] = {}
        self.condemned: set[uuid.UUID] = set()
        self.merged: set[uuid.UUID] = set()
        """Files that compaction named."""
        self.appended_ms: dict[Extent, int] = {}
        self.swap_answers: dict[SwapCall, list[SwapOutcome]] = {}
        """Of merged extents that hold records without a timestamp: when the newest of these were committed."""
        self.feed: dict[int, list[FeedRow]] = {shard: [] for shard in range(shards)}
        self.feed_heads: dict[int, int] = dict.fromkeys(range(shards), 0)
        self.producer_id_blocks: list[tuple[range, int]] = []
        """(ids, leased at ms)."""

    # -- helpers: what other parts of the metastore do

    def create_topic(self, topic_number: int, partition_count: int, name: str = "") -> list[int]:
        """The keys of the new topic's partitions, by index. Without a name, it gets one that no other topic has."""
        self.topic_names[topic_number] = name or f"topic-{topic_number}"
        keys = [partition_key(topic_number, index) for index in range(partition_count)]
        for key in keys:
            self.partitions[key] = ModelPartition(created_ms=self.clock.wall_ms())
        self.partition_counts[topic_number] = partition_count
        self.metadata_offset += 1 + partition_count
        return keys

    def delete_topic(self, topic_number: int) -> None:
        """Forget the topic's partitions and tell readers."""
        deleted = [key for key in self.partitions if split_partition_key(key)[0] == topic_number]
        for key in deleted:
            partition = self.partitions.pop(key)
            self.leftovers[key], self.deleted_producers[key] = partition.extents, partition.producers
        self.deleted_ms[topic_number] = self.clock.wall_ms()
        del self.partition_counts[topic_number]
        self.metadata_offset += 1
        for shard in sorted({self._shard(key) for key in deleted}):
            keys = [key for key in deleted if self._shard(key) == shard]
            self._append_feed(shard, FeedKind.TOPIC_DELETED, deleted_keys=keys)
        self.settle_inline()

    def move_log_start(self, key: int, offset: int) -> None:
        """Do what DeleteRecords and retention do: forget whole extents below `offset` and tell readers."""
        self.move_log_starts_now([LogStartTarget(key, offset)], max_extents=1 << 40)

    def set_leader_epoch(self, key: int, leader_epoch: int) -> None:
        """Do what partition growth does."""
        self.partitions[key].leader_epoch = leader_epoch

    def set_partition_count(self, topic_number: int, undeleted: int) -> None:
        """The count that producers are checked against (P4)."""
        self.partition_counts[topic_number] = undeleted

    def mark_partition(self, key: int) -> None:
        """Do what shrinking does, besides the count."""
        self.partitions[key].is_marked = True

    def change_count(self, topic_number: int, change: Expansion | Shrinking) -> None:
        """A new count, in one step."""
        for index, epoch in change.epochs.items():
            self.partitions[partition_key(topic_number, index)].leader_epoch = epoch
        if isinstance(change, Shrinking):
            for index in change.marked:
                self.mark_partition(partition_key(topic_number, index))
        else:
            for index, created in change.created.items():
                key = partition_key(topic_number, index)
                head = self.removed_heads.get(key, 0)
                self.partitions[key] = ModelPartition(created.leader_epoch, head, head, created_ms=self.clock.wall_ms())
        self.partition_counts[topic_number] = change.undeleted

    def remove_partition(self, key: int) -> RemovalOutcome:
        """A marked one."""
        partition = self.partitions[key]
        assert partition.is_marked
        if partition.extents or partition.log_start_offset < partition.high_watermark:
            return RemovalOutcome.NOT_EMPTY
        self.removed_heads[key] = self.partitions.pop(key).high_watermark
        self._append_feed(self._shard(key), FeedKind.TOPIC_DELETED, deleted_keys=[key])
        return RemovalOutcome.REMOVED

    def register_agent(self, node_id: int, broker_epoch: int) -> None:
        """Register the agent: from now on (node id, broker epoch) may commit."""
        self.agents[node_id] = broker_epoch

    def fence_agent(self, node_id: int) -> None:
        """Fence the agent: from now on its new files are refused."""
        self.agents.pop(node_id, None)

    def condemn(self, file_id: uuid.UUID) -> bool:
        """Return what the sweeper does before it deletes an unnamed object; False when a commit came first."""
        if file_id in self.answers or file_id in self.merged:
            return False
        self.condemned.add(file_id)
        return True

    def forget_feed(self, shard: int) -> None:
        """Do what slot rotation does to rows that were kept long enough."""
        self.feed[shard].clear()

    def expire_producers(self) -> None:
        """Forget all producer state, as if no producer had produced for producer.id.expiration.ms."""
        for producers in (
            *(partition.producers for partition in self.partitions.values()),
            *self.deleted_producers.values(),
        ):
            producers.clear()

    # -- CommitApi

    async def commit_files(self, node_id: int, broker_epoch: int, files: Sequence[FileCommit]) -> list[FileAnswer]:
        """See metastore.api.commit.CommitApi."""
        if len({file.file_id for file in files}) != len(files):
            raise InvalidError("commit refused: a file id is named twice in one call")
        self.store_inline(files)
        appended: list[Extent] = []
        answers = [self._commit_file(node_id, broker_epoch, file, appended) for file in files]
        for shard in sorted({self._shard(extent.partition_key) for extent in appended}):
            mine = [extent for extent in appended if self._shard(extent.partition_key) == shard]
            mine.sort(key=lambda extent: (extent.partition_key, extent.base_offset))
            self._append_feed(shard, FeedKind.COMMIT, extents=mine)
        self.settle_inline()
        return answers

    def _commit_file(self, node_id: int, broker_epoch: int, file: FileCommit, appended: list[Extent]) -> FileAnswer:
        if file.file_id in self.answers:
            return self.answers[file.file_id]
        if self.agents.get(node_id) != broker_epoch:
            return FileAnswer(file.file_id, FileStatus.AGENT_FENCED)
        age_ms = self.clock.wall_ms() - born_ms(file.file_id)
        if age_ms > ANSWERS_KEPT_MS or age_ms < -BORN_AHEAD_MS:
            return FileAnswer(file.file_id, FileStatus.TOO_OLD)
        if file.file_id in self.condemned:
            return FileAnswer(file.file_id, FileStatus.CONDEMNED)
        open_extents: dict[int, Extent] = {}
        batches = [self._commit_batch(file.file_id, batch, open_extents, appended) for batch in file.batches]
        appended.extend(open_extents.values())
        for extent in open_extents.values():
            self.partitions[extent.partition_key].extents.append(extent)
        self.answers[file.file_id] = FileAnswer(file.file_id, FileStatus.COMMITTED, batches)
        return self.answers[file.file_id]

    def _commit_batch(
        self, file_id: uuid.UUID, batch: StagedBatch, open_extents: dict[int, Extent], appended: list[Extent]
    ) -> BatchAnswer:
        partition = self.partitions.get(batch.partition_key)
        if partition is None:
            return BatchAnswer(BatchOutcome.UNKNOWN_PARTITION, -1, -1)
        state = partition.producers.get(batch.producer_id)
        duplicate = find_duplicate(state, batch)
        if duplicate is not None:
            return BatchAnswer(BatchOutcome.DUPLICATE, duplicate.base_offset, duplicate.append_time_ms)
        if is_stored(state, batch, self.life):
            return BatchAnswer(BatchOutcome.DUPLICATE_SEQUENCE, -1, -1)
        if batch.leader_epoch not in (-1, partition.leader_epoch):
            return BatchAnswer(BatchOutcome.LEADER_EPOCH_MISMATCH, -1, -1)
        count = self.partition_counts[split_partition_key(batch.partition_key)[0]]
        if batch.partition_count >= 0 and batch.partition_count != count:
            return BatchAnswer(BatchOutcome.PARTITION_COUNT_MISMATCH, -1, -1)
        if partition.is_marked:
            return BatchAnswer(BatchOutcome.PARTITION_MARKED, -1, -1)
        base_offset = partition.high_watermark
        if batch.producer_id >= 0:
            outcome = judge(state, batch, state is None and self._may_start_anywhere(batch))
            if outcome is BatchOutcome.OUT_OF_ORDER:
                return BatchAnswer(outcome, -1, -1, expected_sequence(state, batch), self.metadata_offset)
            if outcome is not BatchOutcome.APPENDED:
                return BatchAnswer(outcome, -1, -1)
            partition.producers[batch.producer_id] = remember(state, batch, base_offset, self.life)
        partition.high_watermark += batch.record_count
        self._extend(file_id, batch, base_offset, open_extents, appended)
        return BatchAnswer(BatchOutcome.APPENDED, base_offset, batch.max_timestamp)

    def _extend(
        self,
        file_id: uuid.UUID,
        batch: StagedBatch,
        base_offset: int,
        open_extents: dict[int, Extent],
        appended: list[Extent],
    ) -> None:
        """Make the batch part of the partition's open extent when the bytes join, else of a new one."""
        partition = self.partitions[batch.partition_key]
        last_offset = base_offset + batch.record_count - 1
        before = open_extents.get(batch.partition_key)
        if before is not None and before.position + before.length == batch.position:
            open_extents[batch.partition_key] = before._replace(
                last_offset=last_offset,
                length=before.length + batch.length,
                max_timestamp=max(before.max_timestamp, batch.max_timestamp),
            )
            return
        if before is not None:
            partition.extents.append(before)
            appended.append(before)
        open_extents[batch.partition_key] = Extent(
            partition_key=batch.partition_key,
            base_offset=base_offset,
            last_offset=last_offset,
            source=file_id,
            position=batch.position,
            length=batch.length,
            leader_epoch=partition.leader_epoch,
            max_timestamp=batch.max_timestamp,
        )

    async def find_transactions(self, transactional_ids: Sequence[str] | None = None) -> list[Transaction]:
        """There are none here."""
        return []

    async def allocate_producer_ids(self, count: int) -> range:
        """See metastore.api.commit.CommitApi."""
        if count < 1:
            raise InvalidError(f"producer ids refused: count={count}")
        first = self.producer_id_blocks[-1][0].stop if self.producer_id_blocks else FIRST_PRODUCER_ID
        first = max(first, self.life << NUMBER_BITS)
        block = range(first, first + count)
        self.producer_id_blocks.append((block, self.clock.wall_ms()))
        return block

    def _may_start_anywhere(self, batch: StagedBatch) -> bool:
        partition = self.partitions[batch.partition_key]
        before = self.state_before(batch.partition_key, batch.producer_id)
        return goes_on(before, batch) or self._may_have_expired(partition, batch.producer_id)

    def state_before(self, key: int, producer_id: int, within_ms: int = EXPIRATION_MS) -> ProducerState | None:
        """Return what the newest deleted topic of the same name knew of the producer in this partition."""
        topic_number, index = split_partition_key(key)
        since_ms = self.clock.wall_ms() - within_ms
        deleted = [
            number
            for number, at_ms in self.deleted_ms.items()
            if self.topic_names[number] == self.topic_names.get(topic_number) and at_ms > since_ms
        ]
        for number in sorted(deleted, reverse=True)[:DELETED_TOPICS_OF_A_NAME]:
            state = self.deleted_producers.get(partition_key(number, index), {}).get(producer_id)
            if state is not None:
                return state
        return None

    def _may_have_expired(self, partition: ModelPartition, producer_id: int) -> bool:
        """Return whether the partition may have forgotten the producer: both are old; an unleased id has no
        producer.
        """
        now_ms = self.clock.wall_ms()
        for block, leased_at_ms in self.producer_id_blocks:
            if producer_id in block:
                is_old = producer_is_old(now_ms - leased_at_ms)
                return is_old and partition_is_old(now_ms - partition.created_ms)
        return False

    # -- IndexApi

    async def find_extents(self, queries: Sequence[ExtentQuery], max_bytes: int = ALL_BYTES) -> list[PartitionExtents]:
        """See metastore.api.read.IndexApi. Each round gives every query that wants more one more extent."""
        waiting = [self._to_read(query) for query in queries]
        answers: list[list[Extent]] = [[] for _ in queries]
        turns = [number for number, extents in enumerate(waiting) if extents][:EXTENTS_PER_CALL]
        while turns:
            for number in turns:
                answers[number].append(waiting[number].pop(0))
            is_used_up = sum(map(len, answers)) >= EXTENTS_PER_CALL or _bytes(*answers) >= max_bytes
            turns = [
                number
                for number in turns
                if not is_used_up
                and waiting[number]
                and len(answers[number]) < EXTENTS_PER_QUERY
                and _bytes(answers[number]) < queries[number].max_bytes
            ]
        return [self._answer(query.partition_key, found) for query, found in zip(queries, answers, strict=True)]

    def _to_read(self, query: ExtentQuery) -> list[Extent]:
        partition = self.partitions.get(query.partition_key)
        extents = [] if partition is None else partition.visible_extents
        return [extent for extent in extents if extent.last_offset >= query.offset]

    def _answer(self, key: int, found: list[Extent]) -> PartitionExtents:
        partition = self.partitions.get(key)
        if partition is None:
            return PartitionExtents(key, False, -1, -1, [])
        return PartitionExtents(key, True, partition.log_start_offset, partition.high_watermark, found)

    async def list_offsets(self, queries: Sequence[OffsetQuery]) -> list[OffsetAnswer]:
        """See metastore.api.read.IndexApi."""
        return [self._list_offset(query) for query in queries]

    def _list_offset(self, query: OffsetQuery) -> OffsetAnswer:
        partition = self.partitions.get(query.partition_key)
        if partition is None:
            return OffsetAnswer(False, -1, -1, None)
        extents = partition.visible_extents
        if query.timestamp in (OffsetKind.LATEST, OffsetKind.LAST_STABLE):
            return OffsetAnswer(True, partition.high_watermark, partition.leader_epoch, None)
        if query.timestamp == OffsetKind.EARLIEST:
            epoch = extents[0].leader_epoch if extents else partition.leader_epoch
            return OffsetAnswer(True, partition.log_start_offset, epoch, None)
        wanted = query.timestamp
        if query.timestamp == OffsetKind.MAX_TIMESTAMP:
            wanted = max((extent.max_timestamp for extent in extents), default=0)
        for extent in extents:
            if extent.max_timestamp >= wanted:
                return OffsetAnswer(True, extent.base_offset, extent.leader_epoch, extent)
        return OffsetAnswer(True, -1, -1, None)

    async def find_epoch_ends(self, queries: Sequence[EpochQuery]) -> list[EpochEnd]:
        """See metastore.api.read.IndexApi."""
        return [self._epoch_end(query) for query in queries]

    def _epoch_end(self, query: EpochQuery) -> EpochEnd:
        partition = self.partitions.get(query.partition_key)
        if partition is None:
            return EpochEnd(False, -1, -1)
        if query.leader_epoch > partition.leader_epoch:
            return EpochEnd(True, -1, -1)
        if query.leader_epoch == partition.leader_epoch:
            return EpochEnd(True, query.leader_epoch, partition.high_watermark)
        epoch, end = query.leader_epoch, partition.log_start_offset
        for extent in partition.extents:
            if extent.leader_epoch <= query.leader_epoch:
                epoch, end = extent.leader_epoch, extent.last_offset + 1
        later = [extent for extent in partition.extents if extent.leader_epoch > query.leader_epoch]
        return EpochEnd(True, epoch, end if later else partition.high_watermark)

    async def poll_feed(self, positions: Mapping[int, int]) -> FeedPage:
        """See metastore.api.read.IndexApi."""
        rows: list[FeedRow] = []
        lost: list[int] = []
        for shard, position in sorted(positions.items()):
            head = self.feed_heads.get(shard, -1)
            later = [row for row in self.feed.get(shard, []) if row.seq > position]
            if position > head or len(later) != head - position:
                lost.append(shard)
            else:
                rows.extend(later)
        return FeedPage(
            incarnation_id=self.incarnation_id,
            wall_ms=self.clock.wall_ms(),
            heads=dict(self.feed_heads),
            rows=rows,
            lost_shards=lost,
            metadata_offset=self.metadata_offset,
        )

    def grow_shards(self, shards: int) -> None:
        """See metastore.api.cluster: partitions continue in the shards of the new count."""
        for shard in range(self.shards, shards):
            self.feed[shard], self.feed_heads[shard] = [], 0
        self.shards = shards

    # -- inside

    def _shard(self, key: int) -> int:
        return commit_shard(key, self.shards)

    def _append_swap(self, shard: int, extents: Sequence[Extent]) -> None:
        self._append_feed(shard, FeedKind.SWAP, extents=extents)

    def _append_feed(
        self,
        shard: int,
        kind: FeedKind,
        *,
        extents: Sequence[Extent] = (),
        log_starts: Sequence[LogStartMove] = (),
        deleted_keys: Sequence[int] = (),
    ) -> None:
        self.feed_heads[shard] += 1
        row = FeedRow(shard, self.feed_heads[shard], kind, list(extents), list(log_starts), list(deleted_keys))
        self.feed[shard].append(row)


def _bytes(*found: list[Extent]) -> int:
    return sum(extent.length for extents in found for extent in extents)
