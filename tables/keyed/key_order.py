"""Decides in which order a keyed table takes the partitions of a topic after changes of their count, so that
each key's records come in order. Pure, but for `waits_of`.

    growth, doubling   a new partition waits until the table has its source up to the change (for a doubling: up to the
                       boundary, behind which the source gets no key that moved)
    shrinking          what the partitions that got the keys have since then waits for the end of the marked partition
    halving            what the parent has behind the place where its child began waits for the end of the child

Place: before a keyed table's step is read (spark/tables/worker.py).
Invariant: a record of a key that moved by linear hashing is merged only after the earlier ones of it, in an earlier
commit. The order is that of clients which keep it and of their groups (metastore/partitions/waiting.py, decisions 49
and 52); waits follow sources downwards only, so they end.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from headrace.metastore.api.metastore import Metastore
from headrace.metastore.api.read import EpochQuery, OffsetKind, OffsetQuery
from headrace.metastore.log.image import TopicImage
from headrace.scan.plan import WantedOffsets
from headrace.tables.state import TablePosition


class PartitionWait(NamedTuple):
    """Records of `partition` from offset `begin` on wait until the table has those of `source` below `until`.

    `until` None: the offset is not known yet.
    """

    partition: int
    begin: int
    source: int
    until: int | None


def in_key_order(
    wanted: Mapping[int, WantedOffsets], positions: Mapping[int, TablePosition], waits: Sequence[PartitionWait]
) -> dict[int, WantedOffsets]:
    """Return what of the wanted offsets can be merged now."""
    left = dict(wanted)
    for wait in waits:
        have = positions.get(wait.source, TablePosition(0)).offset
        if wait.partition not in left or (wait.until is not None and have >= wait.until):
            continue
        start, end = left[wait.partition]
        if start >= wait.begin:
            del left[wait.partition]
        else:
            left[wait.partition] = WantedOffsets(start, min(end, wait.begin))
    return left


class PartitionEnds(NamedTuple):
    """Answers of the metastore: where an epoch of a partition ends, and the high watermarks of those that get no more
    records.
    """

    epochs: Mapping[tuple[int, int], int]
    """End offsets by partition and leader epoch."""
    logs: Mapping[int, int]
    """High watermarks by partition."""


def waits_of_topic(topic: TopicImage, ends: PartitionEnds) -> list[PartitionWait]:
    """Return what the topic's present partitions wait for."""
    found = [*_of_children(topic, ends), *_of_ancestors(topic, ends), *_of_parents(topic, ends)]
    return [each for each in found if topic.has(each.partition) and topic.has(each.source)]


def _of_children(topic: TopicImage, ends: PartitionEnds) -> Iterator[PartitionWait]:
    for child, created in topic.created_from.items():
        yield PartitionWait(child, 0, created.source, _begin_of(topic, child, ends))


def _begin_of(topic: TopicImage, child: int, ends: PartitionEnds) -> int | None:
    """The offset that the child's source has to reach; None: not known yet."""
    created = topic.created_from[child]
    split = topic.splits.get(created.source)
    if split is None or split.child != child:
        return ends.epochs.get(created, 0)
    return None if split.boundary is None else max(split.boundary, ends.epochs.get(created, 0))


def _of_ancestors(topic: TopicImage, ends: PartitionEnds) -> Iterator[PartitionWait]:
    for marked, ancestors in topic.before_deletion.items():
        for ancestor, epoch in ancestors.items():
            yield PartitionWait(ancestor, ends.epochs.get((ancestor, epoch), 0), marked, ends.logs.get(marked))


def _of_parents(topic: TopicImage, ends: PartitionEnds) -> Iterator[PartitionWait]:
    for child, parent in topic.aliases.items():
        yield PartitionWait(parent, _begin_below(topic, child, parent, ends), child, ends.logs.get(child))


def _begin_below(topic: TopicImage, child: int, parent: int, ends: PartitionEnds) -> int:
    """The offset of the parent that the child waits for, perhaps by way of other partitions."""
    each = child
    while (created := topic.created_from.get(each)) is not None:
        if created.source == parent:
            return _begin_of(topic, each, ends) or 0
        each = created.source
    return 0


async def waits_of(metastore: Metastore, topic: TopicImage) -> list[PartitionWait]:
    """Ask the metastore for the ends of the topic's epochs and logs, and return what its partitions wait for. Nothing
    is asked for a topic that never changed, and no partition of it waits.
    """
    asked = [(created.source, created.leader_epoch) for created in topic.created_from.values()]
    for ancestors in topic.before_deletion.values():
        asked += ancestors.items()
    epoch_keys = {(index, epoch): key for index, epoch in asked if (key := topic.key(index)) is not None}
    epochs: dict[tuple[int, int], int] = {}
    if epoch_keys:
        queries = [EpochQuery(key, epoch) for (_, epoch), key in epoch_keys.items()]
        ends = await metastore.index.find_epoch_ends(queries)
        epochs = {each: end.end_offset for each, end in zip(epoch_keys, ends, strict=True) if end.known}
    ended_keys = {index: key for index in (*topic.marked, *topic.aliases) if (key := topic.key(index)) is not None}
    logs: dict[int, int] = {}
    if ended_keys:
        latest = [OffsetQuery(key, int(OffsetKind.LATEST)) for key in ended_keys.values()]
        marks = await metastore.index.list_offsets(latest)
        logs = {index: mark.offset for index, mark in zip(ended_keys, marks, strict=True) if mark.known}
    return waits_of_topic(topic, PartitionEnds(epochs, logs))
