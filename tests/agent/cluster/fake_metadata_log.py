"""The metadata log in memory, with real records: topics, partitions, snapshots.

Place: under FakeClusterApi (fake_cluster_api.py), which says what can fail.
"""

from __future__ import annotations

import asyncio
import uuid
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from headrace.metastore.api.cluster import MetadataRecord, StoredSnapshot
from headrace.metastore.api.controller import ControllerLease, SnapshotState
from headrace.metastore.api.retention import OldestExtents, OldestQuery
from headrace.metastore.api.topics import (
    NONE_KEPT,
    CountChange,
    Doubling,
    NewTopic,
    PartitionGrowth,
    QuietSplit,
    ReadingGroup,
    RemovalOutcome,
)
from headrace.metastore.keys import split_partition_key
from headrace.metastore.log.effective_configs import BROKER_RESOURCE
from headrace.metastore.log.image import MetadataImage
from headrace.metastore.log.kip631_records import ConfigRecord, RemoveTopicRecord, TopicRecord
from headrace.metastore.log.records import (
    change_records,
    encode_new_partitions,
    encode_record,
    refuse_large,
    split_record,
)
from headrace.metastore.log.replay import apply
from headrace.metastore.partitions.changes import Removal
from headrace.metastore.partitions.topic_partitions import Split
from headrace.storage.errors import AlreadyExistsError, FencedError, HeadraceError, InvalidError, TruncatedError
from tests.live_arguments import takes_copies
from tests.manual_clock import ManualClock

NOBODY = ControllerLease(-1, 0, is_own=False)


@takes_copies
@dataclass
class FakeMetadataLog:
    """What is done by compare-and-append, by agents or under the controller's epoch."""

    clock: ManualClock
    log: list[bytes] = field(default_factory=list)
    calls: Counter[str] = field(default_factory=Counter)
    fail_before: defaultdict[str, list[HeadraceError]] = field(default_factory=lambda: defaultdict(list))
    fail_after: defaultdict[str, list[HeadraceError]] = field(default_factory=lambda: defaultdict(list))
    before_append: Callable[[], None] | None = None
    latency: float = 0.0
    """Seconds of the test's clock that each call takes, before anything is done."""
    topics: dict[uuid.UUID, str] = field(default_factory=dict)
    """Names of those that were created here."""
    log_start: int = 0
    snapshots: list[StoredSnapshot] = field(default_factory=list)
    snapshot_at: float = 1000.0
    controller: ControllerLease = NOBODY
    cluster_values: dict[str, str | None] = field(default_factory=dict)
    empty_partitions: set[tuple[uuid.UUID, int]] = field(default_factory=set)
    """(topic id, index) of partitions without records: a marked one of them may be removed."""
    readers: list[ReadingGroup] = field(default_factory=list)
    due_splits: list[QuietSplit] = field(default_factory=list)
    announced: set[uuid.UUID] = field(default_factory=set)
    """Topics for which no bulk write is decided any more."""
    bulk_chunks: int = 0
    """Number of chunks of decided bulk writes."""

    # -- what tests do manually

    def append(self, *records: MetadataRecord) -> int:
        """Append; the offset of the first record."""
        self.log.extend(encode_record(record) for record in records)
        for record in records:
            if isinstance(record, ConfigRecord) and (record.resource_type, record.resource_name) == (
                BROKER_RESOURCE,
                "",
            ):
                self.cluster_values[record.name] = record.value
        return len(self.log) - len(records)

    def add_topic(
        self, name: str, partitions: int = 1, configs: dict[str, str] | None = None, *, factor: int = 1
    ) -> uuid.UUID:
        topic_id = uuid.uuid4()
        self._append_topic(NewTopic(name, topic_id, partitions, configs or {}, replication_factor=factor))
        return topic_id

    def add_partitions(
        self, topic_id: uuid.UUID, first_index: int, count: int, preferred: Sequence[Sequence[int]] = ()
    ) -> None:
        """Partitions `first_index` to `count - 1`."""
        self.log.extend(encode_new_partitions(topic_id, range(first_index, count), preferred, leader_epoch=0))

    def truncate(self, start: int) -> None:
        """Forget the records below `start`."""
        self.log_start = start
        self.log[:start] = [b""] * start

    @property
    def image(self) -> MetadataImage:
        """What the log says, as of its head."""
        return apply(MetadataImage(), self.log)

    # -- the log

    async def metadata_head(self) -> int:
        await self._begin("metadata_head")
        return len(self.log)

    async def metadata_log_start(self) -> int:
        return self.log_start

    async def read_metadata(self, start_offset: int, limit: int = 10_000) -> list[bytes]:
        await self._begin("read_metadata")
        if start_offset < self.log_start:
            raise TruncatedError(f"log starts later: asked={start_offset} kept={self.log_start}")
        return self.log[start_offset : start_offset + limit]

    async def newest_snapshot(self) -> StoredSnapshot | None:
        await asyncio.sleep(0)
        return self.snapshots[-1] if self.snapshots else None

    async def append_records(
        self, expected_head: int, records: Sequence[MetadataRecord], *, controller_epoch: int | None = None
    ) -> bool:
        await self._begin("append_records")
        refuse_large(records)
        if controller_epoch is not None:
            self._require_controller(controller_epoch)
        if not self._compare(expected_head):
            return False
        self.append(*records)
        self._end("append_records")
        return True

    # -- topics

    async def create_topics(self, expected_head: int, topics: Sequence[NewTopic]) -> bool:
        await self._begin("create_topics")
        if not self._compare(expected_head):
            return False
        if taken := {topic.name for topic in topics} & set(self.topics.values()):
            raise AlreadyExistsError(f"topic exists: names={sorted(taken)}")
        for topic in topics:
            self._append_topic(topic)
        self._end("create_topics")
        return True

    async def delete_topics(
        self, expected_head: int, topic_ids: Sequence[uuid.UUID], kept: Mapping[uuid.UUID, Sequence[bytes]] = NONE_KEPT
    ) -> bool:
        await self._begin("delete_topics")
        if not self._compare(expected_head):
            return False
        if unknown := set(topic_ids) - self.topics.keys():
            raise InvalidError(f"a topic is not there: topic_ids={unknown}")
        for topic_id in topic_ids:
            del self.topics[topic_id]
        self.append(*(RemoveTopicRecord(topic_id=topic_id) for topic_id in topic_ids))
        self._end("delete_topics")
        return True

    async def create_partitions(self, expected_head: int, growths: Sequence[PartitionGrowth]) -> bool:
        await self._begin("create_partitions")
        if not self._compare(expected_head):
            return False
        for growth in growths:
            self.add_partitions(*growth)
        self._end("create_partitions")
        return True

    async def announce_counts(self, topic_ids: Sequence[uuid.UUID]) -> int:
        """One of `bulk_chunks` is committed."""
        await self._begin("announce_counts")
        self.announced.update(topic_ids)
        self.bulk_chunks = max(self.bulk_chunks - 1, 0)
        return self.bulk_chunks

    async def change_partition_counts(self, expected_head: int, changes: Sequence[CountChange]) -> bool:
        await self._begin("change_partition_counts")
        if not self._compare(expected_head):
            return False
        self.append(*(record for change in changes for record in change_records(*change)))
        self._end("change_partition_counts")
        return True

    async def remove_partition(
        self, controller_epoch: int, expected_head: int, topic_id: uuid.UUID, removal: Removal, *, limit: int
    ) -> RemovalOutcome:
        await self._begin("remove_partition")
        self._require_controller(controller_epoch)
        if not self._compare(expected_head):
            return RemovalOutcome.HEAD_MOVED
        if (topic_id, removal.partition) not in self.empty_partitions:
            return RemovalOutcome.NOT_EMPTY
        self.append(*change_records(topic_id, -1, removal))
        self._end("remove_partition")
        return RemovalOutcome.REMOVED

    async def double_topic(self, expected_head: int, doubling: Doubling) -> bool:
        await self._begin("double_topic")
        if not self._compare(expected_head):
            return False
        topic_id, initial, count, change, *_ = doubling
        self.append(*change_records(topic_id, initial, change))
        self.append(*(split_record(topic_id, parent, Split(parent + count)) for parent in range(count)))
        self._end("double_topic")
        return True

    async def topic_readers(self, topic_id: uuid.UUID) -> list[ReadingGroup]:
        """Return the topic readers of `readers`."""
        return self.readers

    async def quiet_splits(self, limit: int) -> Sequence[QuietSplit]:
        """Return the quiet splits of `due_splits`."""
        return self.due_splits[:limit]

    async def set_split_boundary(self, controller_epoch: int, expected_head: int, split: QuietSplit) -> bool:
        self._require_controller(controller_epoch)
        if not self._compare(expected_head):
            return False
        self.due_splits.remove(split)
        parent, child = (split_partition_key(key)[1] for key in (split.parent_key, split.child_key))
        self.append(split_record(split.topic_id, parent, Split(child, split.high_watermark)))
        return True

    async def oldest_extents(self, queries: Sequence[OldestQuery]) -> tuple[int, list[OldestExtents]]:
        """Return the oldest extents of partitions, log start and high watermark are what the controller looks at."""
        await self._begin("oldest_extents")
        empty = {self.image.topics_by_id[topic_id].key(index) for topic_id, index in self.empty_partitions}
        heads = [(query.partition_key, 0 if query.partition_key in empty else 9) for query in queries]
        return 0, [OldestExtents(key, True, 0, head, 0, False, []) for key, head in heads]

    # -- snapshots

    async def snapshot_state(self) -> SnapshotState:
        end = self.snapshots[-1].end_offset if self.snapshots else 0
        age = self.clock.monotonic() - self.snapshot_at
        return SnapshotState(end, int(age * 1000), len(self.log) - end, sum(map(len, self.log[end:])))

    async def save_snapshot(self, controller_epoch: int, snapshot: StoredSnapshot) -> None:
        await self._begin("save_snapshot")
        self._require_controller(controller_epoch)
        if not 1 <= snapshot.end_offset <= len(self.log):
            raise InvalidError(f"a snapshot of what is not in the log: end_offset={snapshot.end_offset}")
        self.snapshots = [*self.snapshots, snapshot][-2:]
        self.snapshot_at = self.clock.monotonic()

    async def truncate_metadata(self, controller_epoch: int, limit: int) -> int:
        self._require_controller(controller_epoch)
        keep_from = self.snapshots[0].end_offset - 1 if len(self.snapshots) == 2 else 0
        dropped = min(max(keep_from - self.log_start, 0), limit)
        self.truncate(self.log_start + dropped)
        return dropped

    # -- insides

    async def _begin(self, operation: str) -> None:
        self.calls[operation] += 1
        if self.latency:
            await self.clock.sleep(self.latency)
        else:
            await asyncio.sleep(0)
        if self.fail_before[operation]:
            raise self.fail_before[operation].pop(0)

    def _end(self, operation: str) -> None:
        if self.fail_after[operation]:
            raise self.fail_after[operation].pop(0)

    def _compare(self, expected_head: int) -> bool:
        if self.before_append is not None:
            racer, self.before_append = self.before_append, None
            racer()
        return expected_head == len(self.log)

    def _require_controller(self, controller_epoch: int) -> None:
        if controller_epoch != self.controller.controller_epoch:
            raise FencedError(f"stale controller epoch: controller_epoch={controller_epoch}")

    def _append_topic(self, topic: NewTopic) -> None:
        count = topic.partition_count
        self.topics[topic.topic_id] = topic.name
        self.append(
            TopicRecord(
                topic_name=topic.name,
                topic_id=topic.topic_id,
                initial_partition_count=count,
                undeleted_partition_count=count,
                replication_factor=topic.replication_factor,
            )
        )
        self.add_partitions(topic.topic_id, 0, count, topic.preferred)
        self.append(
            *(
                ConfigRecord(resource_type=2, resource_name=topic.name, name=name, value=value)
                for name, value in topic.configs.items()
            ),
        )
