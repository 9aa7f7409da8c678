"""What changes the set of partitions of topics.

Place: between agent/topics, which judges a request on an image, or a step of the controller, and the metadata log.
The commit has the rules for batches (metastore/partitions/splitting.py, merging.py).
Invariant of a doubling: a doubling and a boundary are each one transaction, with the records that say so.
Invariant of a halving: each step is one transaction, with the records that say so, and leads to a state from which
any controller continues. A child is merged only when every group that counts has committed its end, which the store
checks itself.
Order: counts are announced before a topic grows. A topic that doubles gets its children, then a boundary for each
parent; one that halves has its children paused, merged and shown as gone, then is settled.
Locks: the controller's row (shared) where its epoch counts, the log's head, the partitions' rows, their commit
shards.
Invariant: records, partitions and their heads appear or disappear in one transaction, so a commit sees a topic
before or after, never between. Each step leads to a state from which any controller continues.
Idempotent: what names an expected head appends once, as the head is another afterwards; the other steps change what
is left to change.
"""

from __future__ import annotations

import enum
import uuid
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple, Protocol

from headrace.metastore.api.groups import GroupKind
from headrace.metastore.api.restoring import MovedBack, RemovedRecords, RestorableTopic, RestoreOutcome, Revived
from headrace.metastore.partitions.changes import Expansion, Removal, Shrinking
from headrace.metastore.partitions.merging import MergePhase, MergeTimes


class Doubling(NamedTuple):
    """A topic's expansion from `before` partitions to twice as many, planned from the image at the expected head.

    `initial`: its initial count. Times are those of splitting.py.
    """

    topic_id: uuid.UUID
    initial: int
    before: int
    change: Expansion
    producer_quiet_ms: int
    boundary_quiet_ms: int


class QuietSplit(NamedTuple):
    """A parent that waits for its boundary, and got no key that moved for long enough."""

    topic_id: uuid.UUID
    parent_key: int
    child_key: int
    last_moved_ms: int
    high_watermark: int
    """The boundary, if no such key comes before it is set."""


class ReadingGroup(NamedTuple):
    """A group that reads a topic. `kind` None: it has offsets only, like consumers with assign()."""

    group_id: str
    kind: GroupKind | None
    state: str
    late: int
    """Parents with a boundary that the group has not passed, so that it does not get their children."""


class Halving(NamedTuple):
    """A topic's halving to `partition_count` partitions. `excluded_groups`: ids of groups that nothing waits for."""

    topic_id: uuid.UUID
    partition_count: int
    excluded_groups: Sequence[str] = ()
    times: MergeTimes = MergeTimes()


class HalvingPair(NamedTuple):
    """A child and its parent. `lag`: records of the child that the slowest group has not committed."""

    child_key: int
    parent_key: int
    phase: MergePhase
    since_ms: int
    high_watermark: int
    lag: int
    behind: Sequence[str]
    """Some groups with a lag, the slowest first."""


class HalvingState(NamedTuple):
    """`now_ms`: the metastore's clock. `shown_ms`: when the lower count was shown; None: not yet."""

    partition_count: int
    now_ms: int
    shown_ms: int | None
    times: MergeTimes
    pairs: Sequence[HalvingPair]


NONE_KEPT: Mapping[uuid.UUID, Sequence[bytes]] = MappingProxyType({})
"""No topic can be restored."""


class PartitionState(enum.IntEnum):
    """What a partition takes; stored in partitions.state."""

    TAKES_RECORDS = 0
    MARKED = 1
    """No new records; it is removed once it is empty."""
    SPLITS = 2
    """The topic doubles: records of keys that move to its child only as metastore/partitions/splitting.py says."""
    IS_CHILD = 3
    """The other half of a partition that is split in two."""
    PAUSED = 4
    """The topic halves, and this child takes no new records until groups have committed its end."""
    ALIAS = 5
    """A child that was halved away: its parent takes what comes for it."""
    MERGES = 6
    """The parent of an alias, until it is settled: metastore/partitions/merging.py."""
    LINKED = 7
    """A copy of another cluster's partition: only its link appends to it (metastore/api/links.py)."""


class NewTopic(NamedTuple):
    """A topic to create. `preferred`: node ids for each partition in turn, best first; empty: none."""

    name: str
    topic_id: uuid.UUID
    partition_count: int
    configs: dict[str, str]
    preferred: Sequence[Sequence[int]] = ()
    replication_factor: int = 1


class PartitionGrowth(NamedTuple):
    """A topic that gets partitions `first_index` (how many it has) to `partition_count - 1`.

    `preferred`: node ids for each of these in turn, best first; empty: none.
    """

    topic_id: uuid.UUID
    first_index: int
    partition_count: int
    preferred: Sequence[Sequence[int]] = ()


class CountChange(NamedTuple):
    """What a topic's partitions become, planned from the image at the expected head. `initial`: its initial count.

    `preferred`: node ids for each created partition in turn, best first; empty: none.
    """

    topic_id: uuid.UUID
    initial: int
    change: Expansion | Shrinking
    preferred: Sequence[Sequence[int]] = ()


class RemovalOutcome(enum.IntEnum):
    """What became of a removal."""

    REMOVED = 0
    HEAD_MOVED = 1
    """Nothing happened: plan again."""
    NOT_EMPTY = 2
    """Nothing happened: it has records, or a decided bulk write will append some."""
    UNFINISHED = 3
    """Some of its rows are gone: ask again."""


class TopicApi(Protocol):
    """Topics are created and deleted, grow and shrink, and are brought back.

    What names an expected head returns False, and nothing happened, when the log's head is another (catch up and judge
    again). What names a controller epoch raises FencedError for a stale one.
    """

    async def create_topics(self, expected_head: int, topics: Sequence[NewTopic]) -> bool:
        """Append TopicRecord, PartitionRecords and ConfigRecords, and their projection, in one transaction.

        False, and nothing happened, when the log's head is not `expected_head` (catch up and judge again).
        """

    async def delete_topics(
        self, expected_head: int, topic_ids: Sequence[uuid.UUID], kept: Mapping[uuid.UUID, Sequence[bytes]] = NONE_KEPT
    ) -> bool:
        """Append RemoveTopicRecords; from then on a commit answers UNKNOWN_PARTITION. Same contract as above.

        `kept`: by topic the records of metastore/topic_restore.py; a topic without them cannot be restored.
        """

    async def announce_counts(self, topic_ids: Sequence[uuid.UUID]) -> int:
        """Decide no bulk write for these topics from now on, for two minutes at most, and complete one chunk of those
        that are decided; how many chunks are left. 0: the topics may grow. Repeat it until then.
        """

    async def create_partitions(self, expected_head: int, growths: Sequence[PartitionGrowth]) -> bool:
        """Append a PartitionRecord per new partition, and their projection, in one transaction."""

    async def change_partition_counts(self, expected_head: int, changes: Sequence[CountChange]) -> bool:
        """Append the records of new counts, and their projection, in one transaction; not below metadata.format 4.

        A commit has the counts, leader epochs and marks from before it or from after it.
        """

    async def remove_partition(
        self, controller_epoch: int, expected_head: int, topic_id: uuid.UUID, removal: Removal, *, limit: int
    ) -> RemovalOutcome:
        """Remove a marked partition that is empty, with up to `limit` rows of each kind that it has left per call.

        Its high watermark and leader epoch are remembered.
        """

    async def double_topic(self, expected_head: int, doubling: Doubling) -> bool:
        """Append the records of the new count and of the splits, and their projection, in one transaction.

        Groups with an offset in a parent get one at the child's start.
        """

    async def agents_behind(self, offset: int) -> Sequence[int]:
        """Node ids of the agents that are not fenced and have not said that they applied the log up to `offset`."""

    async def topic_readers(self, topic_id: uuid.UUID) -> Sequence[ReadingGroup]:
        """The groups with an offset in the topic or with members that consume it, by id."""

    async def quiet_splits(self, limit: int) -> Sequence[QuietSplit]:
        """Return at most so many quiet splits, by age."""

    async def set_split_boundary(self, controller_epoch: int, expected_head: int, split: QuietSplit) -> bool:
        """Append the parent's boundary; False also when a key that moved came meanwhile."""

    async def halving_state(self, topic_id: uuid.UUID) -> HalvingState | None:
        """None: the topic does not halve."""

    async def begin_halving(self, expected_head: int, halving: Halving) -> bool:
        """Begin a halving: the controller drains, pauses and merges the topic's children."""

    async def cancel_halving(self, expected_head: int, topic_id: uuid.UUID) -> bool:
        """Give it up; False also when a child is merged."""

    async def pause_children(self, controller_epoch: int, child_keys: Sequence[int]) -> int:
        """Pause those children that drain; return how many."""

    async def resume_children(self, controller_epoch: int, child_keys: Sequence[int]) -> int:
        """Resume those children that are paused; return how many."""

    async def merge_children(
        self, controller_epoch: int, expected_head: int, topic_id: uuid.UUID, pairs: Sequence[HalvingPair]
    ) -> bool:
        """All of these, which are paused, become aliases of their parents, or none; False also when that is not due."""

    async def show_halved_count(
        self, controller_epoch: int, expected_head: int, topic_id: uuid.UUID, initial: int, change: Shrinking
    ) -> bool:
        """Show the lower count; False also when that is not due. `initial`: the topic's."""

    async def settle_halving(self, controller_epoch: int, expected_head: int, topic_id: uuid.UUID) -> bool:
        """Only aliases are left of it; False also when that is not due."""

    async def restorable_topics(self, topic_number: int | None = None) -> list[RestorableTopic]:
        """Return the deleted topics that can be restored, the newest deletion first; `topic_number`: only this one."""

    async def revive_topic(self, topic_number: int, *, limit: int) -> Revived:
        """Put up to `limit` extents of a deleted topic back; no reader sees them. DONE: all are back.

        Nothing of the topic is purged until a minute after the newest call. Idempotent.
        """

    async def restore_topic(
        self, expected_head: int, topic_number: int, name: str, records: Sequence[bytes], epochs: Mapping[int, int]
    ) -> RestoreOutcome:
        """Append the topic's records and bring its rows back in one transaction, after revive_topic was DONE.

        `records`: of metastore/topic_restore.py, with the leader epochs in `epochs` by partition.
        """

    async def removed_records(
        self,
        keys: Sequence[int],
        *,
        extents_max: int,
        retention_ms: int = -1,
        retention_bytes: int = -1,
    ) -> list[RemovedRecords]:
        """Return what can be restored below the log start, one answer per partition in order.

        Looks at up to `extents_max` extents of each: what is below them is not counted. `retention_ms` and
        `retention_bytes`: the topic's; -1: retention removes nothing.
        """

    async def restore_records(self, key: int, offset: int, *, limit: int) -> MovedBack:
        """Move a log start back towards `offset`, over up to `limit` removed extents, and announce it.

        Each call leaves a whole log. UNFINISHED: there is more to restore. Idempotent.
        """
