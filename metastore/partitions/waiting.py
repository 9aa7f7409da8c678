"""What members of a group wait for, and when they report how far they are, so that each key's records come in order.

Place: the rules of a client that keeps the order (headrace decides nothing by them); tests/key_order/partition_order.py
holds them to it. Between two partitions that share keys, the group's position in one lets another member continue with
the other.
Invariant: a member that waits can be released by a report of another one, and no two wait for each other.
Source: KIP-253, changes 7 and 8, and promises P6 and P11.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol

from headrace.metastore.partitions.topic_partitions import CreatedFrom, OrderedPartition


class GroupPositions(Protocol):
    """What a member knows of a topic."""

    def reported(self, partition: int) -> int | None:
        """The position of the group that the coordinator passed on; None: no member has reported one to it."""

    def end_of(self, partition: int, leader_epoch: int) -> int:
        """The offset after the last record with this epoch or a lower one (OffsetForLeaderEpoch)."""

    def high_watermark(self, partition: int) -> int:
        """The offset after the last record."""


def may_begin(created_from: CreatedFrom | None, group: GroupPositions) -> bool:
    """Return whether a partition without a position, or with one at its first offset, may be read.

    Its source must have been delivered up to the change of the count.
    """
    if created_from is None:
        return True
    position = group.reported(created_from.source)
    return position is not None and position >= group.end_of(*created_from)


def may_deliver(partition: int, offset: int, marked: Mapping[int, OrderedPartition], group: GroupPositions) -> bool:
    """Return whether the record at this offset may be delivered.

    Records from after a deletion wait until the marked partitions that gave it keys are delivered to their ends.
    """
    for index, gone in marked.items():
        before = gone.before_deletion.get(partition)
        if before is not None and offset >= group.end_of(partition, before):
            position = group.reported(index)
            if position is None or position < group.high_watermark(index):
                return False
    return True


class PositionReport(NamedTuple):
    """`leader_epoch`: the largest one of the records before the position; -1 if there are none."""

    position: int
    leader_epoch: int


def must_report(now: PositionReport, last: PositionReport | None, *, at_end: bool, is_blocked: bool) -> bool:
    """Return whether a member calls onPartitionKeyMaybeRevoked and reports its position.

    `last`: what it reported to this coordinator in this generation. `at_end`: the position is the high watermark of the
    last fetch. `is_blocked`: the next record may not be delivered. The last condition is not in KIP-253: without it a
    member that is blocked exactly at a threshold says nothing, and the one that it waits for may wait for that report.
    """
    if last is None:
        return True
    moved = now.position > last.position
    return now.leader_epoch > last.leader_epoch or (moved and (at_end or is_blocked))
