"""Changes of a topic's partitions, each one transaction: expansion, shrinking, the removal of an emptied partition.

Place: between the request that asks for a count, and the store, which carries out one change and appends its records.
Invariant: each change leads from one complete state to another, and the next one is planned from the state alone. So
a controller that takes over at any point continues by planning again, and nothing has to be undone.
A change holds the topic's commit shards when it ends: a commit has the count and the leader epochs from before it or
from after it, never of both.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from headrace.metastore.keys import PARTITION_BITS
from headrace.metastore.partitions.placement import ancestors, is_power_of_two_times, nearest
from headrace.metastore.partitions.topic_partitions import CreatedFrom, OrderedPartition, TopicPartitions
from headrace.storage.errors import InvalidError

COUNT_MAX = 1 << PARTITION_BITS


class Expansion(NamedTuple):
    """`epochs`: of each partition that existed, from now on. `created`: the new partitions.

    If the index of a created partition was in use before, the partition continues at that high watermark, which is also
    its log start; group offsets and producer states of the earlier one are gone.
    """

    undeleted: int
    epochs: Mapping[int, int]
    created: Mapping[int, OrderedPartition]


class Shrinking(NamedTuple):
    """`epochs`: of each partition that took records until now. `marked`: before_deletion of each newly marked one."""

    undeleted: int
    epochs: Mapping[int, int]
    marked: Mapping[int, Mapping[int, int]]


class Removal(NamedTuple):
    """Removal of a marked partition. The transaction checks that the partition is empty: log start = high watermark."""

    partition: int


Change = Expansion | Shrinking | Removal


def change_count(topic: TopicPartitions, count: int) -> Expansion | Shrinking | None:
    """Return what leads to this many partitions that take records; None if there are so many.

    InvalidError: below the initial count, above COUNT_MAX, growth while a partition is marked, or a topic that halves.
    A topic with aliases only doubles: with another count an alias's keys would belong to several partitions.
    """
    if topic.is_halving:
        raise InvalidError("the topic halves: its count changes when that is over")
    if count < topic.initial:
        raise InvalidError(f"fewer partitions than the topic was created with: count={count} initial={topic.initial}")
    if count > COUNT_MAX:
        raise InvalidError(f"too many partitions: count={count} most={COUNT_MAX}")
    if count == topic.undeleted:
        return None
    if topic.has_aliases and count != 2 * topic.undeleted:
        raise InvalidError(f"a topic that was halved only doubles or halves: partitions={topic.undeleted}")
    return _expand(topic, count) if count > topic.undeleted else _shrink(topic, count)


def halve(topic: TopicPartitions) -> Shrinking:
    """Return what a halving of the topic leads to (metastore/partitions/merging.py).

    InvalidError: not the initial count times a power of two, not above it, marked partitions, or the topic halves.
    """
    if topic.is_halving:
        raise InvalidError("the topic halves already")
    if topic.undeleted == topic.initial or not is_power_of_two_times(topic.initial, topic.undeleted):
        raise InvalidError(
            "a topic halves at its initial count times 2, 4, 8, ...:"
            f" partitions={topic.undeleted} initial={topic.initial}"
        )
    if topic.marked:
        raise InvalidError(f"no halving while partitions are to be deleted: marked={_some(topic.marked)}")
    return shown_count(topic)


def shown_count(topic: TopicPartitions) -> Shrinking:
    """Return the count that a halving topic shows: the lower count, shown when all children are aliases of their
    parents.
    """
    count = topic.undeleted // 2
    return Shrinking(count, {index: topic.partitions[index].leader_epoch + 1 for index in range(count)}, {})


def removals(topic: TopicPartitions, empty: Collection[int]) -> list[Removal]:
    """Return the removals of the marked partitions among `empty`, each one a transaction, in this order.

    A partition goes after those that were split off it: as long as a reader may wait for it as a source, it is there.
    """
    going: list[int] = []
    for index in reversed(topic.marked):
        waiting = (each for each in topic.marked if each not in going and topic.source(each) == index)
        if index in empty and next(waiting, None) is None:
            going.append(index)
    return [Removal(index) for index in going]


def apply_change(topic: TopicPartitions, change: Change) -> TopicPartitions:
    """The state after it."""
    after = list(topic.partitions)
    if isinstance(change, Removal):
        after[change.partition] = OrderedPartition(after[change.partition].leader_epoch, is_removed=True)
        return topic._replace(partitions=tuple(after))
    for index, epoch in change.epochs.items():
        after[index] = after[index]._replace(leader_epoch=epoch)
    if isinstance(change, Shrinking):
        for index, before in change.marked.items():
            after[index] = after[index]._replace(before_deletion=before)
    else:
        after += [OrderedPartition()] * (change.undeleted - len(after))
        for index, partition in change.created.items():
            after[index] = partition
    return topic._replace(undeleted=change.undeleted, partitions=tuple(after))


def _expand(topic: TopicPartitions, count: int) -> Expansion:
    if topic.marked:
        raise InvalidError(
            f"no growth while partitions are to be deleted: marked={_some(topic.marked)};"
            " they are removed when retention or DeleteRecords has emptied them"
        )
    created = {}
    for index in range(topic.undeleted, count):
        source = nearest(index, topic.initial, topic.undeleted)
        before = topic.partitions[source].leader_epoch
        # the epochs of one index rise, also if its earlier partition was removed or was an alias
        earlier = topic.partitions[index].leader_epoch + 1 if index < len(topic.partitions) else before
        created[index] = OrderedPartition(max(before, earlier), CreatedFrom(source, before))
    return Expansion(count, _risen(topic), created)


def _shrink(topic: TopicPartitions, count: int) -> Shrinking:
    # all ancestors, not the heir alone: a further deletion makes the next ancestor the heir
    marked = {
        index: {above: topic.partitions[above].leader_epoch for above in ancestors(index, topic.initial)}
        for index in range(count, topic.undeleted)
    }
    return Shrinking(count, _risen(topic), marked)


def _risen(topic: TopicPartitions) -> dict[int, int]:
    return {index: topic.partitions[index].leader_epoch + 1 for index in range(topic.undeleted)}


def _some(indexes: Collection[int]) -> str:
    shown = ", ".join(map(str, sorted(indexes)[:5]))
    return shown if len(indexes) <= 5 else f"{shown}, ... ({len(indexes)})"
