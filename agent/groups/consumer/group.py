"""A consumer group (KIP-848): a pure state machine. The coordinator assigns, and members follow by heartbeats.

Place: driven by held_groups.py as a CoordinatedGroup, and by coordinator.py here, which brings heartbeats. Its parts:
    membership.py        roster, target, deadlines, and the steps of members of both protocols
    classic_members.py   JoinGroup, SyncGroup, Heartbeat and LeaveGroup, for members of the classic protocol
    ../outbox.py         answers that wait for saves
    group epoch    rises when members, subscriptions or topics change
    target epoch   the group epoch that the target assignment was made for
    member epoch   the target epoch that the member was brought to; it shows it in every request
Invariant: no partition has two holders; epochs never go back; a member learns only what is stored; every
token gets one answer. A heartbeat that changes nothing stores nothing.
If the process crashes, the next coordinator restores what was stored, and members continue without a rebalance:
each has learned at most of what was stored, and one that missed the last answer shows the epoch before it.
Source: KIP-848, Kafka's GroupMetadataManager.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace

from kio.schema.errors import ErrorCode

from headrace.agent.groups.consumer.assignors.assignor import NOTHING
from headrace.agent.groups.consumer.classic_members import ClassicMembers
from headrace.agent.groups.consumer.consumer_values import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    LEAVE_FOR_A_WHILE_EPOCH,
    ConsumerHeartbeatAnswer,
    HeartbeatRequest,
    MemberState,
)
from headrace.agent.groups.consumer.gates import Gate, GroupGates
from headrace.agent.groups.consumer.member import ConsumerMember
from headrace.agent.groups.consumer.membership import GroupMembership
from headrace.agent.groups.consumer.roster import ConsumerRoster
from headrace.agent.groups.consumer.rules import ConsumerGroupRules, GroupTimes
from headrace.agent.groups.consumer.saved import PROTOCOL_TYPE, SavedConsumerGroup
from headrace.agent.groups.consumer.target import Target
from headrace.agent.groups.consumer.topics import KnownTopics, matches_bytes
from headrace.agent.groups.group_memory import group_bytes, sizes_of_group
from headrace.agent.groups.group_values import Abandon, GroupEffect, MemberRef, Token
from headrace.metastore.api.groups import GroupKind, GroupRecord, ParentPosition
from headrace.metastore.log.image import MetadataImage, TopicImage

FIRST_COMMIT_WITH_MEMBER_EPOCH = 9
LOOK_SECONDS = 1.0
"""Least number of seconds between two looks at a group's positions in partitions that are split in two."""


class ConsumerGroup:
    """Implements agent.groups.coordinated.CoordinatedGroup."""

    kind = GroupKind.CONSUMER
    protocol_type: str | None = PROTOCOL_TYPE

    def __init__(
        self,
        group_id: str,
        rules: ConsumerGroupRules,
        topics: Callable[[Iterable[str]], KnownTopics],
        times: Callable[[], GroupTimes],
        rng: random.Random,
    ) -> None:
        """`topics` by the patterns that are needed; `times` are the group's own, as configured now."""
        self.group_id = group_id
        self._membership = GroupMembership(rules, topics, times)
        self._outbox = self._membership.outbox
        self._classic_members = ClassicMembers(self._membership, rng)
        self._next_look = 0.0

    @property
    def classic_protocol(self) -> ClassicMembers:
        """See CoordinatedGroup."""
        return self._classic_members

    @property
    def roster(self) -> ConsumerRoster:
        return self._membership.roster

    def epochs_from(self, lowest: int) -> None:
        """The next group epoch is at least this."""
        self.target.lowest = lowest

    @property
    def target(self) -> Target:
        return self._membership.target

    @property
    def state_name(self) -> str:
        return self._membership.state_name

    def sizes(self) -> Mapping[str, int]:
        """See CoordinatedGroup."""
        own = group_bytes(self.group_id)
        sizes = sizes_of_group(own, ((member.client_host, member.size_bytes()) for member in self.roster))
        if patterns := self.roster.patterns:
            first = next(iter(self.roster)).client_host
            matches = self._membership.topics(()).matches
            sizes[first] += matches_bytes({each: matches[each] for each in patterns if each in matches})
        return sizes

    def member_bytes(self, member_id: str) -> int:
        """See CoordinatedGroup."""
        member = self.roster.get(member_id)
        return 0 if member is None else member.size_bytes()

    # -- members of the consumer protocol

    def consumer_heartbeat(self, now: float, request: HeartbeatRequest, token: Token) -> list[GroupEffect]:
        """ConsumerGroupHeartbeat: join, continue or leave; answered once what it says is stored."""
        if self._membership.is_dead:
            answer = ConsumerHeartbeatAnswer(ErrorCode.not_coordinator, request.member_id)
        elif request.member_epoch in (LEAVE_EPOCH, LEAVE_FOR_A_WHILE_EPOCH):
            answer = self._leave_by(request)
        else:
            answer = self._go_on(now, request)

        def refused(code: ErrorCode) -> ConsumerHeartbeatAnswer:
            if code is ErrorCode.rebalance_in_progress:  # by now it is a classic group, without this member
                left = request.member_epoch < JOIN_EPOCH
                return answer if left else ConsumerHeartbeatAnswer(ErrorCode.unknown_member_id, request.member_id)
            return ConsumerHeartbeatAnswer(code, request.member_id)

        self._outbox.answer(token, answer, refused)
        return self._membership.drain()

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

    def judges_by(self, by_name: Mapping[str, TopicImage]) -> bool:
        """Return whether the next heartbeat is judged by the same topics as the last: nothing has to be caught up
        with.
        """
        return self.target.is_judged_by(by_name)

    def check_commit(self, now: float, ref: MemberRef, version: int, keys: Collection[int] = ()) -> ErrorCode:
        """STALE_MEMBER_EPOCH asks the member to heartbeat and to commit under its new epoch. An epoch that is over
        counts if the member has had all these partitions since then (KIP-1251).
        """
        if ref.generation < 0 and not len(self.roster):
            return ErrorCode.none  # a consumer that assigns itself, or an admin
        member = self.roster.get(ref.member_id)
        if self._membership.is_dead or member is None:
            return ErrorCode.not_coordinator if self._membership.is_dead else ErrorCode.unknown_member_id
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
        member = self.roster.get(ref.member_id)
        if self._membership.is_dead or member is None:
            return ErrorCode.not_coordinator if self._membership.is_dead else ErrorCode.unknown_member_id
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

    def tick(self, now: float) -> list[GroupEffect]:
        """Late members are given up; the others learn of it as they heartbeat."""
        self._membership.remove_late(now)
        return self._membership.drain()

    def next_deadline(self) -> float | None:
        """A lower bound: heartbeats postpone deadlines without a call."""
        return self._membership.deadlines.next

    def is_idle(self) -> bool:
        """No member is in it."""
        return not len(self.roster)

    def saved(self, now: float, revision: int, code: ErrorCode) -> list[GroupEffect]:
        """Return what was not stored for certain must not be built upon: the group is restored from the store."""
        if self._membership.is_dead:
            return []
        if code is ErrorCode.none:
            self._outbox.stored(revision)
            return self._membership.drain()
        self._outbox.refuse_all(code)
        self._outbox.emit(Abandon())
        return self.close(code)

    def close(self, code: ErrorCode) -> list[GroupEffect]:
        """Requests that wait are refused with `code`; nothing is stored any more."""
        return self._membership.close(code)

    # -- what is stored

    def subscribed_topics(self) -> frozenset[str]:
        """Names of the topics that the members consume, whether or not they exist."""
        return self._membership.subscribed_topics()

    def snapshot(self) -> SavedConsumerGroup:
        """The group as it is to be stored now."""
        return self._membership.snapshot()

    def restore(self, now: float, record: GroupRecord) -> None:
        """Continue where the last coordinator was: the same epochs and assignments, fresh sessions."""
        self._membership.restore(now, record)

    def begin(self, now: float, generation: int, members: Iterable[ConsumerMember]) -> None:
        """Take the place of a classic group: what its members were assigned is the first target."""
        self._membership.begin(now, generation, members)

    # -- insides

    def _go_on(self, now: float, request: HeartbeatRequest) -> ConsumerHeartbeatAnswer:
        known = self._find(request)
        if isinstance(known, ErrorCode):
            return ConsumerHeartbeatAnswer(known, request.member_id)
        wishes = (known or ConsumerMember(request.member_id)).updated_by(request)
        member = self._membership.advance(now, known, wishes, request.owned)
        self._membership.deadlines.heard_of(now, member)
        joins = request.member_epoch == JOIN_EPOCH
        tell = joins or request.is_full or known is None or member.assigned != known.assigned
        return ConsumerHeartbeatAnswer(
            ErrorCode.none, member.member_id, member.epoch, assigned=member.assigned if tell else None
        )

    def _find(self, request: HeartbeatRequest) -> ConsumerMember | ErrorCode | None:
        """The member as it is known; None for one that is new; or why the request is refused."""
        joins = request.member_epoch == JOIN_EPOCH
        known = self.roster.get(request.member_id)
        if request.instance_id is not None:
            known = self.roster.static_member(request.instance_id)
            if known is not None and known.member_id != request.member_id:
                if not joins:
                    return ErrorCode.fenced_instance_id
                if known.classic is None and not known.is_away:
                    return ErrorCode.unreleased_instance_id
                return self._membership.take_over(known, request.member_id)
        if known is None:
            if not joins:
                return ErrorCode.unknown_member_id
            return ErrorCode.group_max_size_reached if self._membership.is_full() else None
        if joins:
            return self._membership.take_over(known, known.member_id) if known.is_away else known
        return known if self._shows_its_epoch(known, request) else ErrorCode.fenced_member_epoch

    @staticmethod
    def _shows_its_epoch(member: ConsumerMember, request: HeartbeatRequest) -> bool:
        """The epoch before it too, from a member that missed the last answer and owns no more than it says."""
        if request.member_epoch == member.epoch:
            return True
        missed = request.member_epoch == member.previous_epoch and request.member_epoch < member.epoch
        return missed and request.owned is not None and request.owned <= member.assigned

    def _leave_by(self, request: HeartbeatRequest) -> ConsumerHeartbeatAnswer:
        member = self._membership.named(MemberRef(request.member_id, request.instance_id))
        if isinstance(member, ErrorCode):
            return ConsumerHeartbeatAnswer(member, request.member_id)
        if request.member_epoch == LEAVE_EPOCH:
            self._membership.remove(member)
        else:
            self._membership.put(
                replace(member, epoch=LEAVE_FOR_A_WHILE_EPOCH, state=MemberState.STABLE, to_revoke=NOTHING)
            )
            self._membership.deadlines.met(member.member_id)
        return ConsumerHeartbeatAnswer(ErrorCode.none, member.member_id, request.member_epoch)
