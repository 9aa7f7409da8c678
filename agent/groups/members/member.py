"""One member that has an epoch: what it says in heartbeats, which partitions it has, how it is kept.

Place: under the rosters and memberships of the kinds. Partitions are sets of keys, or topic by topic, as requests
and saved groups name them. Heartbeats and their answers are plain values between the handlers, which know fields and
topic names, and member_group.py, which knows the rules. A kind with more fields adds them in a subclass.
Invariant: a member is immutable. With slots, a subclass names this class where it calls it: `super()` finds no
dataclass.
Source: KIP-848 (member epochs).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Generic, Self, TypeVar

from kio.schema.errors import ErrorCode

from headrace.agent.groups.group_memory import MEMBER_BYTES
from headrace.agent.limits.client_memory import text_bytes
from headrace.metastore.keys import partition_key, split_partition_key
from headrace.metastore.log.image import TopicImage
from headrace.protocol.typed import Schema

A = TypeVar("A")
Partitions = frozenset[int]
"""A set of partition keys (metastore/keys.py)."""
NOTHING: Partitions = frozenset()
PartitionsByTopic = dict[int, list[int]]
"""Topic number -> partition indexes."""


def by_topic(partitions: Partitions) -> PartitionsByTopic:
    """Topic number -> partition indexes, ascending."""
    found: defaultdict[int, list[int]] = defaultdict(list)
    for key in sorted(partitions):
        number, index = split_partition_key(key)
        found[number].append(index)
    return dict(found)


def from_topics(topics: Mapping[int, list[int]]) -> Partitions:
    """The inverse of `by_topic`."""
    return frozenset(partition_key(number, index) for number, indexes in topics.items() for index in indexes)


def assignment(
    schema: Schema, message: type[A], topic: type, topics: Mapping[int, TopicImage], partitions: Partitions
) -> A:
    """Return the assignment of an answer, and its topics, in classes of the API. `topics` by number: what was just
    deleted is left out.
    """
    return schema.make(
        message,
        topic_partitions=tuple(
            schema.make(
                topic,
                topic_id=topics[number].topic_id,
                topic_name=topics[number].name,
                partitions=tuple(indexes),
            )
            for number, indexes in by_topic(partitions).items()
            if number in topics
        ),
    )


JOIN_EPOCH = 0
LEAVE_EPOCH = -1
LEAVE_FOR_A_WHILE_EPOCH = -2
"""A static member goes and means to come back: its partitions wait for it."""


@dataclass(frozen=True, slots=True)
class MemberHeartbeat:
    """What each kind's heartbeat says; None: not sent, so nothing changed."""

    member_id: str
    member_epoch: int
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    topic_names: frozenset[str] | None = None

    @property
    def joins(self) -> bool:
        """The member is new, or begins again."""
        return self.member_epoch == JOIN_EPOCH

    @property
    def subscribes(self) -> bool:
        """It says what the member subscribes to."""
        return self.topic_names is not None

    @property
    def is_full(self) -> bool:
        """Sent when joining and after an error: the member asks for its whole assignment."""
        return self.subscribes


@dataclass(frozen=True, slots=True)
class MemberHeartbeatAnswer:
    """`assigned` None: as in the last answer."""

    code: ErrorCode
    member_id: str
    member_epoch: int = 0
    assigned: Partitions | None = None
    message: str | None = None


H = TypeVar("H", bound=MemberHeartbeat)
PARTITION_BYTES = 64
_NAME_BYTES = 16
"""Bytes of a name or a partition in a set, besides the text of a name."""


def names_bytes(names: Iterable[str]) -> int:
    """Return the size of a member's subscription by names."""
    return sum(_NAME_BYTES + text_bytes(name) for name in names)


@dataclass(frozen=True, slots=True)
class GroupMember(Generic[H]):
    """`epoch` is the last target that the member was brought to; it shows it in every request."""

    member_id: str
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    topic_names: frozenset[str] = frozenset()
    epoch: int = 0
    previous_epoch: int = 0
    """Shown by a member that missed the answer which brought it to `epoch`."""
    assigned: Partitions = NOTHING

    @property
    def is_away(self) -> bool:
        """A static member that left and may come back within its session."""
        return self.epoch == LEAVE_FOR_A_WHILE_EPOCH

    @property
    def may_be_replaced(self) -> bool:
        """Another process may join as the same static member."""
        return self.is_away

    @property
    def holds(self) -> Partitions:
        """What it may be consuming."""
        return self.assigned

    def size_bytes(self) -> int:
        """The memory that it uses, about."""
        texts = text_bytes(self.member_id, self.instance_id, self.rack_id, self.client_id)
        return MEMBER_BYTES + texts + names_bytes(self.topic_names) + PARTITION_BYTES * len(self.assigned)

    def at_epoch(self, epoch: int) -> Self:
        """Brought to another epoch."""
        return self if epoch == self.epoch else replace(self, epoch=epoch, previous_epoch=self.epoch)

    def updated_by(self, request: H) -> Self:
        """Return the member with what its heartbeat changes; itself if that is nothing, as in most of them."""
        said = self._said_by(request).items()
        changed = {name: value for name, value in said if value is not None and value != getattr(self, name)}
        return replace(self, **changed) if changed else self

    def _said_by(self, request: H) -> dict[str, Any]:
        """The fields that a heartbeat says; None: not sent."""
        return {
            "instance_id": request.instance_id,
            "rack_id": request.rack_id,
            "client_id": request.client_id,
            "client_host": request.client_host,
            "topic_names": request.topic_names,
        }

    def back_as(self, member_id: str) -> Self:
        """A static member that came back, maybe as another process."""
        return replace(self, member_id=member_id, epoch=0, previous_epoch=0)

    def gone_for_a_while(self) -> Self:
        """A static member that left and means to come back."""
        return replace(self, epoch=LEAVE_FOR_A_WHILE_EPOCH)
