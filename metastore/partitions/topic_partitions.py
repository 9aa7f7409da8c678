"""What is recorded of a topic's partitions: counts, leader epochs, and what readers wait for.

Place: the state that changes.py plans from and applies its transactions to.
Invariant: partitions below the undeleted count take new records. Of the others, those that are marked or aliases are
still there, those that were removed are remembered with their leader epoch: an index may be used again. An epoch of
`after_creation` or `before_deletion` is lower than its partition's present one: the records up to it were placed by the
count before.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple


class CreatedFrom(NamedTuple):
    """leaderEpochAfterCreation: what a reader of a new partition waits for.

    `leader_epoch` is the source's before it rose: all records of the source up to it must have been delivered.
    """

    source: int
    leader_epoch: int


class Split(NamedTuple):
    """A partition shares its keys with `child` since the topic doubled for clients that know only the count.

    `boundary`: the offset from which on the partition has no key that moved; None while it may get some.
    """

    child: int
    boundary: int | None = None


class OrderedPartition(NamedTuple):
    """`before_deletion` (leaderEpochBeforeDeletion) is empty unless the partition is marked.

    It has each ancestor's leader epoch before that rose: up to it, an ancestor's records do not wait for this
    partition; later ones wait until all of this partition was delivered.
    """

    leader_epoch: int = 0
    created_from: CreatedFrom | None = None
    before_deletion: Mapping[int, int] = MappingProxyType({})
    is_removed: bool = False
    is_alias: bool = False


class TopicPartitions(NamedTuple):
    """`partitions`: by index; also those that were removed. `is_halving`: from the request until it is settled."""

    initial: int
    undeleted: int
    partitions: tuple[OrderedPartition, ...]
    is_halving: bool = False

    @classmethod
    def created(cls, count: int, leader_epoch: int = 0) -> TopicPartitions:
        """A new topic's."""
        return cls(count, count, (OrderedPartition(leader_epoch),) * count)

    @property
    def marked(self) -> tuple[int, ...]:
        """The partitions that are still there and take no new records."""
        beyond = range(self.undeleted, len(self.partitions))
        gone = (self.partitions[index].is_removed or self.partitions[index].is_alias for index in beyond)
        return tuple(index for index, is_gone in zip(beyond, gone, strict=True) if not is_gone)

    @property
    def has_aliases(self) -> bool:
        """Whether some partition was halved away, and is not back."""
        return any(partition.is_alias for partition in self.partitions)

    def source(self, index: int) -> int | None:
        """Return the source of a partition that was created by an expansion."""
        created_from = self.partitions[index].created_from
        return None if created_from is None else created_from.source
