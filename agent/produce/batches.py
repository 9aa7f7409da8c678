"""One batch on the write path: as it arrived, and once it has a place in a segment file.

Place: made by receive, placed by layout, answered by acknowledge.
Invariant: a batch carries the request and the reply that wait for it; it leaves the write path only
with an answer.
"""

from __future__ import annotations

import uuid
from typing import NamedTuple

from headrace.agent.produce.pending import PendingRequest
from headrace.agent.produce.refused_sequences import Numbered
from headrace.metastore.api.commit import NO_ALIAS, BatchTransaction, MovedKeys, StagedBatch
from headrace.metastore.keys import split_partition_key
from headrace.protocol.produce_codec import ProducePartitionReply
from headrace.storage.records.header import BatchHeader

INT32_MAX = (1 << 31) - 1

Stream = tuple[int, int]
"""(owner, partition key): batches of one stream are committed in the order in which they came.

The owner is a producer id, or the complement of a connection id for batches without a producer.
"""


class Arrival(NamedTuple):
    """One batch that passed validation."""

    topic_id: uuid.UUID
    partition_index: int
    partition_key: int
    leader_epoch: int
    owner: int
    data: memoryview
    header: BatchHeader
    request: PendingRequest
    reply: ProducePartitionReply
    partition_count: int = -1
    """The count by which the client chose the partition; -1 if it sent none. The others are as in StagedBatch."""
    transaction: int = BatchTransaction.NO_TRANSACTION
    keys: int = MovedKeys.UNKNOWN
    alias: int = NO_ALIAS
    max_bytes: int = INT32_MAX
    """The largest batch that its topic accepted when it came: max.message.bytes."""

    @property
    def stream(self) -> Stream:
        """The stream that it keeps the order of."""
        return self.owner, self.partition_key

    @property
    def numbered(self) -> Numbered | None:
        """What identifies it among its producer's batches; None without a producer id."""
        header = self.header
        if header.producer_id < 0:
            return None
        place = split_partition_key(self.partition_key)[0], self.reply.index  # as the client names it, also an alias
        return Numbered(header.producer_id, header.producer_epoch, header.base_sequence, place)


class PlacedBatch(NamedTuple):
    """The same batch once its place in the file is known and its bytes are no longer needed.

    Merged batches are neighbours and share `batch`, which is then larger than each.
    """

    batch: StagedBatch
    records_before: int
    """Records of `batch` that come from earlier arrivals: 0 for the first, and for a batch that was not merged."""
    owner: int
    is_log_append_time: bool
    request: PendingRequest
    reply: ProducePartitionReply

    @property
    def stream(self) -> Stream:
        """The stream that it keeps the order of."""
        return self.owner, self.batch.partition_key

    @property
    def numbered(self) -> Numbered | None:
        """What identifies it among its producer's batches; None without a producer id."""
        batch = self.batch
        if batch.producer_id < 0:
            return None
        place = split_partition_key(batch.partition_key)[0], self.reply.index
        return Numbered(batch.producer_id, batch.producer_epoch, batch.base_sequence, place)
