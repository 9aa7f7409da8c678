"""Linear hashing: which partition a key belongs to, and which partitions give and take keys when the count changes.

Place: used by changes.py, and by clients that place keys.
A topic with the initial count N grows by splitting one partition at a time: N splits 0, N + 1 splits 1, and so on; when
all have been split, the next round begins with 2 N partitions. A count is always at least N.
Invariant: with count N a key is where Kafka's default partitioner puts it. When the count changes, a key stays or moves
between a partition and one of its ancestors, of which exactly one exists at both counts; so partitions that exist
before and after a change never exchange keys.
With a count of N * 2**k, and only with such a count, every key is at its hash modulo the count, as clients place it
that do not know the initial count.
Source: Litwin, Linear Hashing (1980); KIP-253, changes in the producer.
"""

from __future__ import annotations

from collections.abc import Iterator


def place(hashed: int, initial: int, count: int) -> int:
    """The partition of a key with this hash, which is not negative. For a record without a key: of a random number."""
    size = split_size(initial, count)
    index = hashed % (2 * size)
    return index if index < count else index - size


def parent(partition: int, initial: int) -> int | None:
    """The partition that is split when this one is created; None for those of the initial count."""
    return partition - (initial << _rounds(initial, partition)) if partition >= initial else None


def ancestors(partition: int, initial: int) -> tuple[int, ...]:
    """Its parent, the parent's parent, ..., down to one below the initial count: fewer than log2(index) + 1."""
    return tuple(_ancestors(partition, initial))


def nearest(partition: int, initial: int, count: int) -> int:
    """The partition that has its keys at this count: itself, or its nearest ancestor below the count.

    With the count before an expansion it is a new partition's source, with the count after a deletion a deleted one's
    heir.
    """
    return next(each for each in (partition, *_ancestors(partition, initial)) if each < count)


def children(partition: int, initial: int, count: int) -> tuple[int, ...]:
    """The partitions below the count that were split off this one, oldest first: at most log2(count / initial) + 1."""
    found = []
    size = initial
    while size <= partition:
        size *= 2
    while partition + size < count:
        found.append(partition + size)
        size *= 2
    return tuple(found)


def is_power_of_two_times(initial: int, count: int) -> bool:
    """Return whether hash modulo count is the placement, so that doubling and halving move keys only between p and
    p + count.
    """
    return count == initial << _rounds(initial, count)


def split_size(initial: int, count: int) -> int:
    """Return how many partitions there were when the present round of splits began."""
    return initial << _rounds(initial, count)


def _rounds(initial: int, count: int) -> int:
    """Return how often all partitions have been split: the largest L with initial * 2**L <= count."""
    return (count // initial).bit_length() - 1


def _ancestors(partition: int, initial: int) -> Iterator[int]:
    above = parent(partition, initial)
    while above is not None:
        yield above
        above = parent(above, initial)
