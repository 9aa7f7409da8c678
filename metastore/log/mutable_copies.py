"""Mutable copies of an image's parts while records are applied to them.

Place: inside metastore/log/replay.py. Most records change one of the parts.
Invariant of a mapping that is copied on write: the base is never changed; without a change `finished` returns it,
the same object, so that those who compute something from it see that nothing changed.
Invariant of the partitions of one topic: the partitions of the initial count come first, and only they have no
source. So a partition that was added without one (below metadata.format 4, where epochs do not rise) belongs to the
initial count: until then keys are placed by modulo of the count, which is linear hashing with this initial count.
A method that returns False has refused a record that contradicts what came before it; nothing changed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from collections.abc import Set as AbstractSet
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Generic, TypeVar

from headrace.metastore.log.image import ANYBODY, Assignment, TopicImage
from headrace.metastore.log.kip631_records import AncestorEpoch, PartitionChangeRecord, PartitionRecord
from headrace.metastore.log.own_records import (
    AliasPartitionRecord,
    DoubleTopicRecord,
    HalveTopicRecord,
    MarkPartitionRecord,
    PartitionCountRecord,
    SplitPartitionRecord,
)
from headrace.metastore.partitions.placement import ancestors, nearest
from headrace.metastore.partitions.topic_partitions import CreatedFrom, Split

K = TypeVar("K")
V = TypeVar("V")


class CopiedOnWrite(MutableMapping[K, V]):
    """A dictionary that is copied with its first change."""

    def __init__(self, base: Mapping[K, V]) -> None:
        self._held: Mapping[K, V] = base
        self._own: dict[K, V] | None = None

    def finished(self) -> Mapping[K, V]:
        """Return the mapping, which must not change any more."""
        return self._held if self._own is None else MappingProxyType(self._own)

    def keep(self, key: K, value: V, most: int) -> None:
        """Set a value, as the newest of at most `most`: the oldest goes."""
        self[key] = value
        if len(self) > most:
            del self[next(iter(self))]

    def __getitem__(self, key: K) -> V:
        return self._held[key]

    def __setitem__(self, key: K, value: V) -> None:
        self._writable()[key] = value

    def __delitem__(self, key: K) -> None:
        del self._writable()[key]

    def __iter__(self) -> Iterator[K]:
        return iter(self._held)

    def __len__(self) -> int:
        return len(self._held)

    def _writable(self) -> dict[K, V]:
        if self._own is None:
            self._held = self._own = dict(self._held)
        return self._own


def set_value(resources: MutableMapping[Any, Mapping[str, Any]], resource: Any, name: str, value: Any) -> None:
    """Set or, with None, take away one value of a resource; a resource without values goes."""
    values = {key: kept for key, kept in resources.get(resource, {}).items() if key != name}
    if value is not None:
        values[name] = value
    resources.pop(resource, None)
    if values:
        resources[resource] = MappingProxyType(values)


_T = TypeVar("_T")


class _Copied(Generic[_T]):
    """A mapping by partition index that is copied when it is first written: most topics have empty ones."""

    __slots__ = ("_own", "now")

    def __init__(self, shared: Mapping[int, _T]) -> None:
        self.now = shared
        self._own: dict[int, _T] | None = None

    @property
    def own(self) -> dict[int, _T]:
        """The partition's own state, to be written."""
        if self._own is None:
            self._own = dict(self.now)
            self.now = MappingProxyType(self._own)
        return self._own


class ChangingPartitions:
    """`epochs`: of each partition; an ordinary new one is appended here without further ado."""

    def __init__(self, topic: TopicImage) -> None:
        self.epochs = list(topic.leader_epochs)
        self._initial, self._undeleted = topic.initial_partition_count, topic.undeleted_partition_count
        self._assignments, self._created_from = _Copied(topic.assignments), _Copied(topic.created_from)
        self._before_deletion, self._splits = _Copied(topic.before_deletion), _Copied(topic.splits)
        self._doubling = topic.doubling
        self._aliases, self._halving = _Copied(topic.aliases), topic.halving
        self._removed: AbstractSet[int] = topic.removed
        """A set of this topic's own once a partition was removed or has returned."""
        self._is_new = not topic.leader_epochs
        self._moves_leaders = False

    def create(self, record: PartitionRecord) -> bool:
        """The next index, or one that was removed or is an alias."""
        index = record.partition_id
        if index == len(self.epochs):
            self.epochs.append(record.leader_epoch)
        elif index in self._aliases.now and record.leader_epoch > self.epochs[index]:
            del self._aliases.own[index]
            self.epochs[index] = record.leader_epoch
        elif index in self._removed and record.leader_epoch >= self.epochs[index]:
            self._own_removed().remove(index)
            self.epochs[index] = record.leader_epoch
        else:
            return False
        self._moves_leaders |= not self._is_new
        if record.source >= 0:
            self._created_from.own[index] = CreatedFrom(record.source, record.source_epoch)
        if record.before_deletion:
            self._before_deletion.own[index] = _by_ancestor(record.before_deletion)
        if record.is_removed:
            self._own_removed().add(index)
        self._set_assignment(index, Assignment(record.replicas, record.adding_replicas, record.removing_replicas))
        return True

    def assign(self, record: PartitionChangeRecord) -> bool:
        """Leader and in-sync replicas of another writer mean nothing here: both follow from live agents."""
        if not self._has(record.partition_id):
            return False
        self._moves_leaders = True
        old = self._assignments.now.get(record.partition_id, ANYBODY)
        changed = Assignment(
            old.replicas if record.replicas is None else record.replicas,
            old.adding if record.adding_replicas is None else record.adding_replicas,
            old.removing if record.removing_replicas is None else record.removing_replicas,
        )
        self._set_assignment(record.partition_id, changed)
        return True

    def set_count(self, record: PartitionCountRecord) -> bool:
        """The epochs of the partitions that took records until now rise; aliases follow the keys."""
        self._count_plain()
        count = self._undeleted if self._undeleted >= 0 else len(self.epochs)
        if not 0 < record.initial_partition_count <= record.undeleted_partition_count or count > len(self.epochs):
            return False
        self._moves_leaders = True
        for index in range(count):
            self.epochs[index] += index not in self._aliases.now
        self._initial, self._undeleted = record.initial_partition_count, record.undeleted_partition_count
        self._splits = _Copied({})
        self._doubling = -1
        for alias in [each for each in self._aliases.now if each >= self._undeleted]:
            self._aliases.own[alias] = nearest(alias, self._initial, self._undeleted)
        return True

    def announce(self, record: DoubleTopicRecord) -> bool:
        """Twice the present count."""
        self._count_plain()
        count = self._undeleted if self._undeleted >= 0 else len(self.epochs)
        if record.partition_count != 2 * count:
            return False
        self._doubling = record.partition_count
        return True

    def mark(self, record: MarkPartitionRecord) -> bool:
        """A partition beyond the count."""
        if not self._has(record.partition_id) or record.partition_id < self._undeleted or not record.before_deletion:
            return False
        self._before_deletion.own[record.partition_id] = _by_ancestor(record.before_deletion)
        return True

    def split(self, record: SplitPartitionRecord) -> bool:
        """A partition and its newest child, below the count; a boundary is set once."""
        parent, child = record.partition_id, record.child
        if not (self._has(parent) and self._has(child) and parent < child < self._undeleted):
            return False
        known, source = self._splits.now.get(parent), self._created_from.now.get(child)
        if source is None or source.source != parent or (known is not None and known != (child, None)):
            return False
        self._splits.own[parent] = Split(child, None if record.boundary < 0 else record.boundary)
        return True

    def halve(self, record: HalveTopicRecord) -> bool:
        """The beginning, or the end."""
        count = record.partition_count
        if count >= 0 and (self._halving >= 0 or self._undeleted not in (count, 2 * count)):
            return False
        self._halving = count
        return True

    def alias(self, record: AliasPartitionRecord) -> bool:
        """A child goes to its parent, and with it the aliases of the child."""
        child, parent = record.partition_id, record.parent
        if not (self._has(child) and self._has(parent)) or {child, parent} & self._aliases.now.keys():
            return False
        if parent not in ancestors(child, self._initial):
            return False
        for alias in [each for each, of in self._aliases.now.items() if of == child]:
            self._aliases.own[alias] = parent
        self._aliases.own[child] = parent
        return True

    def remove(self, index: int) -> bool:
        """A marked partition."""
        if not self._has(index) or index not in self._before_deletion.now:
            return False
        self._moves_leaders = True
        self._own_removed().add(index)
        for copied in (self._before_deletion, self._created_from, self._assignments):
            copied.own.pop(index, None)
        return True

    def applied_to(self, topic: TopicImage, end_offset: int) -> TopicImage:
        """The topic with these partitions; `end_offset`: of the log, after the last record.

        Another count of partitions moves leaders (agent/cluster/spread.py), but for those of the topic's creation.
        """
        self._count_plain()
        moves_leaders = self._moves_leaders or not (self._is_new or len(self.epochs) == len(topic.leader_epochs))
        return replace(
            topic,
            initial_partition_count=self._initial,
            undeleted_partition_count=self._undeleted,
            leader_epochs=tuple(self.epochs),
            assignments=self._assignments.now,
            created_from=self._created_from.now,
            before_deletion=self._before_deletion.now,
            removed=frozenset(self._removed),
            splits=self._splits.now,
            doubling=self._doubling,
            aliases=self._aliases.now,
            halving=self._halving,
            moved_at=end_offset if moves_leaders else topic.moved_at,
        )

    def _count_plain(self) -> None:
        """Partitions without a source count as initial ones, where the topic's own record stated a count."""
        if self._undeleted >= 0:
            plain = len(self.epochs) - len(self._created_from.now) - len(self._removed)
            self._initial, self._undeleted = max(self._initial, plain), max(self._undeleted, plain)

    def _own_removed(self) -> set[int]:
        if not isinstance(self._removed, set):
            self._removed = set(self._removed)
        return self._removed

    def _has(self, index: int) -> bool:
        return 0 <= index < len(self.epochs) and index not in self._removed

    def _set_assignment(self, index: int, assignment: Assignment) -> None:
        if assignment != ANYBODY:
            self._assignments.own[index] = assignment
        elif index in self._assignments.now:
            del self._assignments.own[index]


def _by_ancestor(before: tuple[AncestorEpoch, ...]) -> Mapping[int, int]:
    return MappingProxyType({each.ancestor: each.leader_epoch for each in before})
