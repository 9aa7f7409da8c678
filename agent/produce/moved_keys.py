"""Looks in a batch for a partition that is or was split in two for a key of its child.

Place: between validate and the commit, for topics that doubled, or that halve at this time.
Invariant: memory and time are those of open_batch's limits. Each different key is hashed once, and the first that moved
ends the search. It runs on another thread: a batch may unpack to a lot.
"""

from __future__ import annotations

import asyncio

from headrace.agent.produce.batches import Arrival
from headrace.agent.produce.pending import Refusal
from headrace.metastore.api.commit import MovedKeys
from headrace.metastore.partitions.placement import moves
from headrace.protocol.errors import error_code
from headrace.storage.errors import HeadraceError
from headrace.storage.records.codec import open_batch


async def with_moved_keys(arrival: Arrival, partitioner: str, child: int) -> Arrival | Refusal:
    """The batch with what is known of its keys, for one without a partition count; why it is refused, if it is."""
    parent = arrival.partition_index
    try:
        found = await has_moved_key(arrival.data, partitioner, parent, child - parent)
    except HeadraceError as error:
        return Refusal(error_code(error), str(error))
    return arrival._replace(keys=MovedKeys.MOVED if found else MovedKeys.STAY)


async def has_moved_key(batch: memoryview, partitioner: str, parent: int, count: int) -> bool:
    """Return whether the batch has one. `count`: the topic's before it doubled.

    CorruptError or BatchTooLargeError if the records cannot be read: such a batch is refused, as in compacted topics.
    """
    return await asyncio.to_thread(find_moved_key, batch, partitioner, parent, count)


def find_moved_key(batch: memoryview, partitioner: str, parent: int, count: int) -> bool:
    """The same, on this thread."""
    stays: set[bytes | None] = {None}
    for record in open_batch(batch):
        if record.key in stays:
            continue
        if moves(partitioner, record.key, parent, count):
            return True
        stays.add(record.key)
    return False
