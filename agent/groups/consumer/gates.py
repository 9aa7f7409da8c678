"""Decide which children of split partitions a group's members may read: each is behind a gate until its parent was
read. Pure.

Place: asked by membership.py for each target; coordinator.py brings the positions. The rule of producers is in
metastore/partitions/splitting.py: from a parent's boundary on, it has no record with a key that moved to the child.
A gate opens when the boundary of its parent is set, and the group's committed offset in the parent, or the parent's log
start, is at it or past it. Until then the child is in no member's assignment.
Invariant: an open gate stays open until the group has no members, also if a member commits an earlier offset in the
parent: it may be reading the child. A group without members that starts again is judged by its offsets alone, so after
a reset to earlier offsets it reads parents before children again.
What is open is saved with the group. If that was not saved, no member knows it, and offsets and the image say it again.
Source: KIP-848; decisions/0054.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from headrace.agent.groups.members.partitions import NOTHING, Partitions
from headrace.metastore.api.groups import ParentPosition
from headrace.metastore.log.image import TopicImage


class Gate(NamedTuple):
    """Gate between a partition that was split and its child, both as partition keys. `boundary`: None until it is
    set.
    """

    parent_key: int
    child_key: int
    boundary: int | None


def gates_of(topic: TopicImage) -> tuple[Gate, ...]:
    """One per split of the topic."""
    keys = ((topic.key(parent), topic.key(split.child), split.boundary) for parent, split in topic.splits.items())
    return tuple(Gate(parent, child, at) for parent, child, at in keys if parent is not None and child is not None)


def may_open(gate: Gate, position: ParentPosition) -> bool:
    """Return whether the group has all that is before the boundary behind it, or it is gone."""
    read = position.log_start if position.committed is None else max(position.committed, position.log_start)
    return gate.boundary is not None and read >= gate.boundary


def children_to_begin(gates: Iterable[Gate], positions: Iterable[ParentPosition]) -> dict[int, int]:
    """Child key -> the offset that the group needs there before its gate opens.

    A child that was an alias has records from before the parent took its keys. A group that comes later and reads them
    after the parent would read those keys backwards.
    """
    by_parent = {position.parent_key: position for position in positions}
    return {
        gate.child_key: position.child_begins
        for gate in gates
        if (position := by_parent.get(gate.parent_key)) is not None
        and position.child_begins is not None
        and may_open(gate, position)
    }


class GroupGates:
    """One group's. Times are seconds of the clock's monotonic()."""

    def __init__(self) -> None:
        self._open: dict[int, int] = {}
        """Child key -> the boundary that the group has passed. A child that returns has a parent with another one, or
        one to which nothing was added since."""
        self.late_since: float | None = None
        """Since when a gate is closed only because the group has not read, or not committed, far enough."""
        self.late: tuple[Gate, ...] = ()

    def closed(self, gates: Iterable[Gate]) -> Partitions:
        """The children that no member may have."""
        return frozenset(gate.child_key for gate in gates if not self._is_open(gate)) or NOTHING

    def to_judge(self, gates: Iterable[Gate]) -> list[Gate]:
        """The closed ones that could open now, by the group's position."""
        return [gate for gate in gates if gate.boundary is not None and not self._is_open(gate)]

    def judge(self, now: float, asked: Iterable[Gate], positions: Iterable[ParentPosition]) -> bool:
        """Open those that may open, by the group's newest positions; whether there were any."""
        by_parent: Mapping[int, ParentPosition] = {position.parent_key: position for position in positions}
        closed = self.to_judge(asked)
        opened = {
            gate.child_key: gate.boundary
            for gate in closed
            if gate.boundary is not None
            and (position := by_parent.get(gate.parent_key)) is not None
            and may_open(gate, position)
        }
        self._open.update(opened)
        self.late = tuple(gate for gate in closed if gate.child_key not in opened)
        if not self.late:
            self.late_since = None
        elif self.late_since is None:
            self.late_since = now
        return bool(opened)

    def forget(self) -> None:
        """The last member went."""
        self._open, self.late, self.late_since = {}, (), None

    def saved(self, gates: Iterable[Gate]) -> dict[int, int]:
        """Child key -> boundary, of those that are open."""
        return {gate.child_key: gate.boundary for gate in gates if gate.boundary is not None and self._is_open(gate)}

    def restore(self, opened: Mapping[int, int]) -> None:
        """Restore the gates that the last coordinator saved."""
        self._open = dict(opened)

    def _is_open(self, gate: Gate) -> bool:
        return gate.boundary is not None and self._open.get(gate.child_key) == gate.boundary
