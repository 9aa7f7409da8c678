"""The members of a share group: the partitions that each reads, the form in which they are stored. Pure.

Place: under group.py, above ../members/membership.py. Kafka's `simple` assignor is asked for each target. The stored
form is written by each change and read when an agent becomes the coordinator.
    member epoch   the group epoch that the member's assignment was made for
Invariant: a member's assignment is its part of the target: several members may read one partition, so nothing has to
be given up before. The assignor is deterministic. Every partition is given to a member that subscribes to its topic.
If there are more members than partitions, several members share one. Members that subscribe to the same topics get
about equally many. Stored fields are added with defaults, never renumbered; an unknown format is refused.
Source: KIP-932; Kafka's SimpleAssignor and GroupMetadataManager.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import msgspec

from headrace.agent.groups.coordinated import decode_saved
from headrace.agent.groups.members.member import GroupMember, MemberHeartbeat
from headrace.agent.groups.members.membership import GroupEpochs, GroupMembership, MemberRoster
from headrace.agent.limits.client_memory import text_bytes
from headrace.metastore.api.groups import GroupKind, GroupRecord


@dataclass(frozen=True, slots=True)
class ShareMember(GroupMember[MemberHeartbeat]):
    """A member of a share group is what all kinds have; `assigned` is its part of the target."""

    def size_bytes(self) -> int:
        """The memory that it uses, about."""
        return GroupMember.size_bytes(self) + text_bytes(self.client_host)


class ShareTopics(NamedTuple):
    """The cluster's topics as of one image: `numbers` by name, and the keys of all partitions of each number."""

    source: Mapping[str, object]
    """The same object as long as no topic came, went or changed its partitions."""
    numbers: Mapping[str, int]
    partitions: Mapping[int, Sequence[int]]


NAME = "simple"


def assign(
    subscriptions: Mapping[str, frozenset[int]], partitions: Mapping[int, Sequence[int]]
) -> dict[str, frozenset[int]]:
    """`subscriptions`: member id -> topic numbers; `partitions`: topic number -> keys. Member id -> keys."""
    subscribers: defaultdict[int, list[str]] = defaultdict(list)
    for member_id in sorted(subscriptions):
        for number in subscriptions[member_id]:
            subscribers[number].append(member_id)
    shared: defaultdict[tuple[str, ...], list[int]] = defaultdict(list)
    for number in sorted(subscribers):
        shared[tuple(subscribers[number])] += partitions.get(number, ())
    given: dict[str, set[int]] = {member_id: set() for member_id in subscriptions}
    for members, keys in shared.items():
        for at in range(max(len(members), len(keys)) if keys else 0):
            given[members[at % len(members)]].add(keys[at % len(keys)])
    return {member_id: frozenset(keys) for member_id, keys in given.items()}


FORMAT = 1
PROTOCOL_TYPE = "share"


class _SavedMember(msgspec.Struct, frozen=True):
    member_id: str
    rack_id: str | None
    client_id: str
    client_host: str
    topic_names: list[str]
    epoch: int
    previous_epoch: int
    assigned: list[int]


class SavedShareGroup(msgspec.Struct, frozen=True):
    """`members` in the order they joined."""

    group_epoch: int
    target_epoch: int
    state_name: str
    members: list[_SavedMember]
    format: int = FORMAT

    def record(self) -> GroupRecord:
        """Return it as the metastore keeps it, and what it may tell without opening it."""
        names = sorted({name for member in self.members for name in member.topic_names})
        data = msgspec.msgpack.encode(self)
        return GroupRecord(GroupKind.SHARE, self.state_name, PROTOCOL_TYPE, tuple(names), data)


def saved_group(group_epoch: int, target_epoch: int, state: str, members: Iterable[ShareMember]) -> SavedShareGroup:
    """Return the group in its stored form."""
    saved = [
        _SavedMember(
            each.member_id,
            each.rack_id,
            each.client_id,
            each.client_host,
            sorted(each.topic_names),
            each.epoch,
            each.previous_epoch,
            sorted(each.assigned),
        )
        for each in members
    ]
    return SavedShareGroup(group_epoch, target_epoch, state, saved)


def decode(data: bytes) -> tuple[SavedShareGroup, list[ShareMember]]:
    """CorruptError, or InvalidError for a newer format."""
    state = decode_saved(data, SavedShareGroup, "share group", FORMAT)
    members = [
        ShareMember(
            each.member_id,
            None,
            each.rack_id,
            each.client_id,
            each.client_host,
            frozenset(each.topic_names),
            each.epoch,
            each.previous_epoch,
            frozenset(each.assigned),
        )
        for each in state.members
    ]
    return state, members


class ShareGroupMembership(GroupMembership[ShareMember]):
    """Members, and the target that they are brought to by one heartbeat each."""

    def __init__(
        self,
        size_max: Callable[[], int],
        session_timeout: Callable[[], float],
        topics: Callable[[], ShareTopics],
        on_rebalance: Callable[[], None],
    ) -> None:
        """`size_max` and `session_timeout` (seconds) as configured now; `topics`: the newest picture."""
        super().__init__(size_max)
        self.roster = MemberRoster[ShareMember]()
        self.target = GroupEpochs(on_rebalance)
        self._topics, self._timeout = topics, session_timeout

    def advance(self, now: float, before: ShareMember | None, member: ShareMember) -> ShareMember:
        """Take the member's new wishes in and bring it to the target; `before`: as it was known, None for a new one."""
        if member is not before:
            self.put(member)
        self._judge(changed=before is None or before.topic_names != member.topic_names)
        judged = self.roster.get(member.member_id) or member
        after = judged.at_epoch(self.target.epoch)
        if after is not judged:
            self.put(after)
        return after

    def _judge(self, *, changed: bool) -> None:
        """Make the target again if members, subscriptions or topics changed."""
        topics = self._topics()
        if not changed and self.target.is_made and self.target.is_judged_by(topics.source):
            return
        subscriptions = {
            member.member_id: frozenset(topics.numbers[name] for name in member.topic_names if name in topics.numbers)
            for member in self.roster
        }
        target = assign(subscriptions, topics.partitions)
        self.target.judged_by = topics.source
        moved = [
            replace(member, assigned=keys)
            for member in self.roster
            if (keys := target[member.member_id]) != member.assigned
        ]
        if changed or moved or not self.target.is_made:
            self.target.raise_epoch()
            self.target.epoch = self.target.group_epoch
            for member in moved:
                self.roster.put(member)
            self.outbox.changed()

    def _session_timeout(self, member: ShareMember) -> float:
        return self._timeout()

    def _state(self) -> str:
        return "Stable" if len(self.roster) else "Empty"

    # -- what is stored

    def snapshot(self) -> SavedShareGroup:
        """The group as it is to be stored now."""
        return saved_group(self.target.group_epoch, self.target.epoch, self.state_name, self.roster)

    def restore(self, now: float, record: GroupRecord) -> None:
        """Continue where the last coordinator was: the same epochs and assignments, new sessions."""
        state, members = decode(record.data)
        self.target.group_epoch, self.target.epoch = state.group_epoch, state.target_epoch
        for member in members:
            self.adopt(now, member)
        self.state_name = self._state()
