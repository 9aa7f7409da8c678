"""A consumer group (KIP-848): a pure state machine. The coordinator assigns, and members follow by heartbeats.

Place: a MemberGroup (../members/member_group.py), with what only this kind has. Its parts:
    membership.py        roster, target, deadlines, and the steps of members of both protocols
    classic_members.py   JoinGroup, SyncGroup, Heartbeat and LeaveGroup, for members of the classic protocol
    topics.py             which children of split partitions may be read
Invariant: no partition has two holders. After a crash members continue without a rebalance.
Source: KIP-848, Kafka's GroupMetadataManager.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping

from kio.schema.errors import ErrorCode

from headrace.agent.groups.consumer.classic_members import ClassicMembers
from headrace.agent.groups.consumer.members import ConsumerHeartbeat, ConsumerMember, ConsumerRoster
from headrace.agent.groups.consumer.membership import ConsumerGroupMembership, Target
from headrace.agent.groups.consumer.rules import ConsumerGroupRules, GroupTimes
from headrace.agent.groups.consumer.saved import PROTOCOL_TYPE, SavedConsumerGroup
from headrace.agent.groups.consumer.topics import Gate, GroupGates, KnownTopics, matches_bytes
from headrace.agent.groups.coordinated import FIRST_COMMIT_WITH_MEMBER_EPOCH
from headrace.agent.groups.group_values import GroupEffect, MemberRef
from headrace.agent.groups.members.member import JOIN_EPOCH, MemberHeartbeatAnswer
from headrace.agent.groups.members.member_group import MemberGroup
from headrace.metastore.api.groups import GroupKind, ParentPosition
from headrace.metastore.log.image import MetadataImage

LOOK_SECONDS = 1.0
"""Least number of seconds between two looks at a group's positions in partitions that are split in two."""


class ConsumerGroup(MemberGroup[ConsumerMember, ConsumerHeartbeat]):
    """Members, their partitions, and what they may commit."""

    kind = GroupKind.CONSUMER
    protocol_type: str | None = PROTOCOL_TYPE
    _membership: ConsumerGroupMembership

    def __init__(
        self,
        group_id: str,
        rules: ConsumerGroupRules,
        topics: Callable[[Iterable[str]], KnownTopics],
        times: Callable[[], GroupTimes],
        rng: random.Random,
    ) -> None:
        """`topics` by the patterns that are needed; `times` are the group's own, as configured now."""
        super().__init__(group_id, ConsumerGroupMembership(rules, topics, times))
        self._classic_members = ClassicMembers(self._membership, rng)
        self._next_look = 0.0

    @property
    def classic_protocol(self) -> ClassicMembers:
        """See CoordinatedGroup."""
        return self._classic_members

    @property
    def roster(self) -> ConsumerRoster:
        return self._membership.roster

    @property
    def target(self) -> Target:
        return self._membership.target

    def sizes(self) -> Mapping[str, int]:
        """See CoordinatedGroup. What the patterns match counts for the first member."""
        sizes = Counter(super().sizes())
        if patterns := self.roster.patterns:
            first = next(iter(self.roster)).client_host
            matches = self._membership.topics(()).matches
            sizes[first] += matches_bytes({each: matches[each] for each in patterns if each in matches})
        return sizes

    # -- gates

    def gates_to_judge(self, now: float, topics: KnownTopics, numbers: Iterable[int]) -> list[Gate] | None:
        """Closed gates of these topics and of those that the group consumes already; None before the next look is due.

        For these, the group's positions are wanted in `judge_gates`.
        """
        if now < self._next_look:
            return None
        consumed = (topics.by_name[name].topic_number for name in self.target.subscribed if name in topics.by_name)
        return self._membership.gates.to_judge(topics.gates_of({*numbers, *consumed}))

    def judge_gates(self, now: float, asked: Iterable[Gate], positions: Iterable[ParentPosition]) -> None:
        """Open gates; the next heartbeat gives the children behind them to members."""
        self._next_look = now + LOOK_SECONDS
        self._membership.gates.judge(now, asked, positions)

    @property
    def gates(self) -> GroupGates:
        """What the group may not read yet."""
        return self._membership.gates

    # -- offsets

    def check_commit(self, now: float, ref: MemberRef, version: int, keys: Collection[int] = ()) -> ErrorCode:
        """STALE_MEMBER_EPOCH asks the member to heartbeat and to commit under its new epoch. An epoch that is over
        counts if the member has had all these partitions since then (KIP-1251).
        """
        if ref.generation < 0 and not len(self.roster):
            return ErrorCode.none  # a consumer that assigns itself, or an admin
        member = self._membership.named(MemberRef(ref.member_id))
        if isinstance(member, ErrorCode):
            return member
        if member.classic is not None:
            return ErrorCode.none if ref.generation == member.epoch else ErrorCode.illegal_generation
        if version < FIRST_COMMIT_WITH_MEMBER_EPOCH:
            return ErrorCode.unsupported_version
        is_valid = ref.generation == member.epoch or member.has_had(keys, ref.generation)
        return ErrorCode.none if is_valid else ErrorCode.stale_member_epoch

    def check_fetch(self, ref: MemberRef) -> ErrorCode:
        """The same as `check_commit`, for a reader that says who it is."""
        if ref.generation < 0 and not ref.member_id:
            return ErrorCode.none  # an admin
        member = self._membership.named(MemberRef(ref.member_id))
        if isinstance(member, ErrorCode):
            return member
        stale = ErrorCode.stale_member_epoch if member.classic is None else ErrorCode.illegal_generation
        return ErrorCode.none if ref.generation == member.epoch else stale

    def metadata_changed(self, now: float, image: MetadataImage) -> list[GroupEffect]:
        """The next heartbeat is judged by the new topics; but classic members must be asked to join again."""
        if self._membership.is_dead or not self.target.is_judged or self.judges_by(self._membership.topics(()).by_name):
            return []
        if all(member.classic is None for member in self.roster):
            return []
        if self.target.refresh(self.roster, self._membership.topics(self.roster.patterns), changed=False):
            self._outbox.changed()
        return self._membership.drain()

    # -- what is stored

    def snapshot(self) -> SavedConsumerGroup:
        """The group as it is to be stored now."""
        return self._membership.snapshot()

    def begin(self, now: float, generation: int, members: Iterable[ConsumerMember]) -> None:
        """Take the place of a classic group: what its members were assigned is the first target."""
        self._membership.begin(now, generation, members)

    # -- insides

    def _new_member(self, member_id: str) -> ConsumerMember:
        return ConsumerMember(member_id)

    def _advance(
        self, now: float, known: ConsumerMember | None, wishes: ConsumerMember, request: ConsumerHeartbeat
    ) -> ConsumerMember:
        return self._membership.advance(now, known, wishes, request.owned)

    def _has_news(self, known: ConsumerMember | None, member: ConsumerMember, request: ConsumerHeartbeat) -> bool:
        return known is None or member.assigned != known.assigned

    def _shows_its_epoch(self, member: ConsumerMember, request: ConsumerHeartbeat) -> bool:
        """The epoch before it too, from a member that missed the last answer and owns no more than it says."""
        return member.shows(request.member_epoch, request.owned)

    def _refused(
        self, request: ConsumerHeartbeat, answer: MemberHeartbeatAnswer, code: ErrorCode
    ) -> MemberHeartbeatAnswer:
        if code is ErrorCode.rebalance_in_progress:  # by now it is a classic group, without this member
            left = request.member_epoch < JOIN_EPOCH
            return answer if left else MemberHeartbeatAnswer(ErrorCode.unknown_member_id, request.member_id)
        return super()._refused(request, answer, code)
