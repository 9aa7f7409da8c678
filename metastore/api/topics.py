"""Topics and partitions: what changes the set of partitions.

Place: between agent/admin, which judges a request on an image, and the metadata log.
Invariant: records, partitions and their heads appear or disappear in one transaction, so a commit sees a
topic before or after, never between.
"""

from __future__ import annotations

import enum
import uuid
from collections.abc import Sequence
from typing import NamedTuple, Protocol


class PartitionState(enum.IntEnum):
    """What a partition takes; stored in partitions.state. A later one may have 2 and 3: a topic that doubles."""

    TAKES_RECORDS = 0
    MARKED = 1
    """No new records; it is removed once it is empty."""


class NewTopic(NamedTuple):
    """A topic to create. `preferred`: node ids for each partition in turn, best first; empty: none."""

    name: str
    topic_id: uuid.UUID
    partition_count: int
    configs: dict[str, str]
    preferred: Sequence[Sequence[int]] = ()


class PartitionGrowth(NamedTuple):
    """A topic that gets partitions `first_index` (how many it has) to `partition_count - 1`.

    `preferred`: node ids for each of these in turn, best first; empty: none.
    """

    topic_id: uuid.UUID
    first_index: int
    partition_count: int
    preferred: Sequence[Sequence[int]] = ()


class TopicApi(Protocol):
    """Creating and deleting topics (C4, C5)."""

    async def create_topics(self, expected_head: int, topics: Sequence[NewTopic]) -> bool:
        """Append TopicRecord, PartitionRecords and ConfigRecords, and their projection, in one transaction.

        False, and nothing happened, when the log's head is not `expected_head` (catch up and judge again).
        """

    async def delete_topics(self, expected_head: int, topic_ids: Sequence[uuid.UUID]) -> bool:
        """Append RemoveTopicRecords; from then on a commit answers UNKNOWN_PARTITION. Same contract as above."""


class PartitionApi(Protocol):
    """Growth of topics."""

    async def create_partitions(self, expected_head: int, growths: Sequence[PartitionGrowth]) -> bool:
        """Append a PartitionRecord per new partition, and their projection, in one transaction.

        False, and nothing happened, when the log's head is not `expected_head` (catch up and judge again).
        """
