"""Adding partitions to topics: the part of the metastore's boundary behind CreatePartitions.

Place: between agent/admin, which judges the wish on an image, and the metadata log.
Invariant: new partitions, their heads and the topic's partition count appear in one transaction, so
a commit sees the topic before or after, never between.
If the process dies in mid-call, the partitions are all there or none is; asking again is safe.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import NamedTuple, Protocol


class PartitionGrowth(NamedTuple):
    """A topic that gets partitions `first_index` (how many it has) to `partition_count - 1`.

    `preferred`: node ids for each of these in turn, best first; empty: nobody is.
    """

    topic_id: uuid.UUID
    first_index: int
    partition_count: int
    preferred: Sequence[Sequence[int]] = ()


class PartitionApi(Protocol):
    """Growth of topics."""

    async def create_partitions(self, expected_head: int, growths: Sequence[PartitionGrowth]) -> bool:
        """Append a PartitionRecord per new partition, and their projection, in one transaction.

        False, and nothing happened, when the log's head is not `expected_head` (catch up and judge again).
        """
