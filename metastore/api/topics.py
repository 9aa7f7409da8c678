"""Topics and partitions: what changes the set of partitions.

Place: between agent/topics, which judges a request on an image, and the metadata log.
Invariant: records, partitions and their heads appear or disappear in one transaction, so a commit sees a
topic before or after, never between.
"""

from __future__ import annotations

import enum
import uuid
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple, Protocol

from headrace.metastore.api.bulk import CountAnnouncementApi
from headrace.metastore.partitions.changes import Expansion, Removal, Shrinking

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
    """Creating and deleting topics (C4, C5)."""

    async def create_topics(self, expected_head: int, topics: Sequence[NewTopic]) -> bool:
        """Append TopicRecord, PartitionRecords and ConfigRecords, and their projection, in one transaction.

        False, and nothing happened, when the log's head is not `expected_head` (catch up and judge again).
        """

    async def delete_topics(
        self, expected_head: int, topic_ids: Sequence[uuid.UUID], kept: Mapping[uuid.UUID, Sequence[bytes]] = NONE_KEPT
    ) -> bool:
        """Append RemoveTopicRecords; from then on a commit answers UNKNOWN_PARTITION. Same contract as above.

        `kept`: by topic the records of metastore/log/restored_topic.py; a topic without them cannot be restored.
        """


class PartitionApi(CountAnnouncementApi, Protocol):
    """Growth and shrinking of topics."""

    async def create_partitions(self, expected_head: int, growths: Sequence[PartitionGrowth]) -> bool:
        """Append a PartitionRecord per new partition, and their projection, in one transaction.

        False, and nothing happened, when the log's head is not `expected_head` (catch up and judge again).
        """

    async def change_partition_counts(self, expected_head: int, changes: Sequence[CountChange]) -> bool:
        """Append the records of new counts, and their projection, in one transaction; not below metadata.format 4.

        A commit has the counts, leader epochs and marks from before it or from after it. Same contract as above.
        """

    async def remove_partition(
        self, controller_epoch: int, expected_head: int, topic_id: uuid.UUID, removal: Removal, *, limit: int
    ) -> RemovalOutcome:
        """Remove a marked partition that is empty, with up to `limit` rows of each kind that it has left per call.

        Its high watermark and leader epoch are remembered. FencedError for a stale controller epoch.
        """
