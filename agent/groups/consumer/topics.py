"""The topics that a group's members may read: what subscriptions mean, which children of split partitions are open.

Place: asked by membership.py, which judges a group by one picture of the topics at a time; coordinator.py brings the
positions. The rule of producers is in metastore/partitions/splitting.py: from a parent's boundary on, it has no
record with a key that moved to the child. Each child is behind a gate: it opens when the boundary of its parent is
set, and the group's committed offset in the parent, or the parent's log start, is at it or past it. Until then the
child is in no member's assignment: to the group it is not there. Gates are pure.
Subscriptions are names, and patterns in RE2's syntax. Matches are kept per pattern until topics come or go, and are
made on a thread. If ACLs are enforced, a pattern matches only topics that its member may describe, from the address
it last had.
Invariant: two pictures have the same `by_name` only if no topic came, went or changed its partitions between them.
An open gate stays open until the group has no members, also if a member commits an earlier offset in the parent: it
may be reading the child. A group without members that starts again is judged by its offsets alone, so after a reset
to earlier offsets it reads parents before children again. What is open is saved with the group. If that was not
saved, no member knows it, and offsets and the image say it again.
Source: KIP-848 (SubscribedTopicRegex); decisions/0054.
"""

from __future__ import annotations

import asyncio
import itertools
import sys
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from headrace.agent.access.authorization.authorizer import Authorizer
from headrace.agent.access.authorization.operations import AclOperation, AclResource
from headrace.agent.cluster.view import ClusterView
from headrace.agent.groups.members.member import NOTHING, Partitions
from headrace.agent.limits.client_memory import ENTRY_BYTES, text_bytes
from headrace.config.memory_budget import REMEMBERED_BYTES
from headrace.config.patterns import compile_pattern
from headrace.metastore.api.groups import ParentPosition
from headrace.metastore.keys import split_partition_key
from headrace.metastore.log.image import TopicImage
from headrace.metastore.log.shown_counts import undeleted_count
from headrace.metastore.segment_logs.topics import RENDERED_TOPICS, rendered_topic


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


PATTERNS_MAX = 1_000
MATCHES_BYTES = REMEMBERED_BYTES["topic_patterns"]
"""Patterns and the numbers of topics that they match. Clients may ask for any number of patterns: beyond this all are
dropped. Those of a group's members count for the group, too (group_memory.py)."""


@dataclass(frozen=True, slots=True)
class KnownTopics:
    """The cluster's topics as of one image, and the metadata log's, which a group may follow too."""

    by_name: Mapping[str, TopicImage]
    by_number: Mapping[int, TopicImage]
    matches: dict[str, frozenset[int]]
    """Topic pattern (`pattern_of`) -> numbers of the topics with a name that it matches as a whole; filled
    as patterns are asked for. The metadata log's topic has to be named."""
    gates: Mapping[int, Sequence[Gate]] = field(default_factory=dict)
    """Topic number -> gates, of topics that double or have doubled."""
    closed: Partitions = NOTHING
    """The children that the group may not read yet."""

    def behind(self, gates: GroupGates) -> KnownTopics:
        """Return the topics as the group of these gates sees them."""
        closed = gates.closed(self.all_gates()) if self.gates else NOTHING
        return replace(self, closed=closed) if closed else self

    def all_gates(self) -> Iterable[Gate]:
        """Return the gates of all topics."""
        return itertools.chain.from_iterable(self.gates.values())

    def gates_of(self, numbers: Iterable[int]) -> list[Gate]:
        """Return the gates of these topics."""
        return [gate for number in numbers for gate in self.gates.get(number, ())]

    def of(self, names: Iterable[str], pattern: str) -> frozenset[int]:
        """The topics that a subscription means; what is not there (yet) is left out."""
        named = frozenset(self.by_name[name].topic_number for name in names if name in self.by_name)
        return named | self.matches[pattern] if pattern else named

    def counts(self, numbers: Iterable[int]) -> dict[int, int]:
        """Topic number -> partitions that take records; while children are behind closed gates, without any child."""
        return {number: self._first_child(number) or undeleted_count(self.by_number[number]) for number in numbers}

    def apart(self, numbers: Iterable[int]) -> dict[int, Sequence[int]]:
        """Topic number -> indexes of the partitions that are assigned by themselves, of topics that have any.

        These are partitions that are marked for deletion, and children with open gates while others are closed.
        """
        each = ((number, self.by_number[number].marked or self._open_children(number)) for number in numbers)
        return {number: indexes for number, indexes in each if indexes}

    def _first_child(self, number: int) -> int | None:
        """The lowest index of a child; None if no gate of the topic is closed."""
        children = [gate.child_key for gate in self.gates.get(number, ())] if self.closed else []
        return None if self.closed.isdisjoint(children) else split_partition_key(min(children))[1]

    def _open_children(self, number: int) -> Sequence[int]:
        """Ascending; none if all are open, for then they are like all others."""
        if self._first_child(number) is None:
            return ()
        opened = {gate.child_key for gate in self.gates[number]} - self.closed
        return sorted(split_partition_key(child)[1] for child in opened)


class GroupTopics:
    """The topics of the newest image, with what patterns match there."""

    def __init__(self, cluster: ClusterView, authorizer: Authorizer | None) -> None:
        """`authorizer`: None if ACLs are not enforced."""
        self._cluster = cluster
        self._authorizer = authorizer
        self._acls: object = None
        self._source: Mapping[str, TopicImage] | None = None
        self._newest = KnownTopics({}, {}, {})

    @property
    def in_use_bytes(self) -> int:
        """What is remembered of patterns."""
        return matches_bytes(dict(self._newest.matches))

    async def prepare(self, patterns: Iterable[str]) -> None:
        """Match them on a thread, so that `topics` has nothing left to do."""
        matches, source = self._matches(), self._cluster.image.topics_by_name
        missing = set(patterns) - matches.keys() - {""}
        if missing and _is_full(matches):
            self._newest = replace(self._newest, matches={})
            matches, missing = self._newest.matches, set(patterns) - {""}
        for pattern in missing:
            matches[pattern] = self._describable(pattern, await asyncio.to_thread(_matching, pattern, source))

    def topics(self, patterns: Iterable[str] = ()) -> KnownTopics:
        """The newest picture, with the matches of these patterns."""
        matches = self._matches()
        for pattern in set(patterns) - matches.keys() - {""}:
            matches[pattern] = self._describable(pattern, _matching(pattern, self._cluster.image.topics_by_name))
        return self._newest

    def _describable(self, pattern: str, found: Iterable[TopicImage]) -> frozenset[int]:
        """The numbers of the topics that the pattern's client may describe."""
        _, _, client = pattern.partition("\0")
        if self._authorizer is not None and client:
            principal, _, client_host = client.partition("\0")
            access = self._authorizer.of(principal, client_host.removeprefix("/"))
            found = (each for each in found if access.allows(AclOperation.DESCRIBE, AclResource.TOPIC, each.name))
        return frozenset(topic.topic_number for topic in found)

    def by_id(self, topic_id: uuid.UUID) -> TopicImage | None:
        """The topic of that id, on the newest picture."""
        return rendered_topic(topic_id) or self._cluster.image.topics_by_id.get(topic_id)

    def _matches(self) -> dict[str, frozenset[int]]:
        """Return the topics that match, from the newest picture, which is made again when topics came, went or
        grew, or an enforced ACL changed.
        """
        image = self._cluster.image
        acls = None if self._authorizer is None else image.access_controls
        if image.topics_by_name is not self._source or acls is not self._acls:
            self._source, self._acls = image.topics_by_name, acls
            self._newest = KnownTopics(
                {**image.topics_by_name, **{own.name: own for own in RENDERED_TOPICS}},
                {**image.topics_by_number, **{own.topic_number: own for own in RENDERED_TOPICS}},
                {},
                {topic.topic_number: gates_of(topic) for topic in image.topics_by_id.values() if topic.splits},
            )
        return self._newest.matches


def _is_full(matches: Mapping[str, frozenset[int]]) -> bool:
    return len(matches) >= PATTERNS_MAX or matches_bytes(matches) >= MATCHES_BYTES


def matches_bytes(matches: Mapping[str, frozenset[int]]) -> int:
    """The memory that patterns and their matches use."""
    return sum(ENTRY_BYTES + text_bytes(pattern) + sys.getsizeof(numbers) for pattern, numbers in matches.items())


def is_valid(pattern: str) -> bool:
    """Return whether it is RE2 syntax, and small enough."""
    try:
        compile_pattern(pattern)
    except ValueError:
        return False
    return True


def _matching(pattern: str, by_name: Mapping[str, TopicImage]) -> list[TopicImage]:
    compiled = compile_pattern(pattern.partition("\0")[0])
    return [topic for name, topic in by_name.items() if compiled.fullmatch(name) is not None]
