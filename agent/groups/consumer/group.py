"""A consumer group (KIP-848): a pure state machine. The coordinator assigns, and members follow by heartbeats.

Place: driven by held_groups.py as a CoordinatedGroup, and by coordinator.py here, which brings heartbeats.
    group epoch    rises when members, subscriptions or topics change
    target epoch   the group epoch that the target assignment was made for
    member epoch   the target epoch that the member was brought to; it shows it in every request
Invariant: no partition has two holders; epochs never go back; a member is told only what is stored; every
token gets one answer. A heartbeat that changes nothing stores nothing.
If the process dies, the next coordinator restores what was stored, and members go on without a rebalance:
each has heard at most of what was stored, and one that missed the last answer shows the epoch before it.
Source: KIP-848, Kafka's GroupMetadataManager.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from kio.schema.errors import ErrorCode

from headrace.agent.groups.consumer.assignors.assignor import NOTHING
from headrace.agent.groups.consumer.classic_members import ClassicMembers
from headrace.agent.groups.consumer.member import ConsumerMember
from headrace.agent.groups.consumer.values import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    LEAVE_FOR_A_WHILE_EPOCH,
    ConsumerHeartbeatAnswer,
    HeartbeatRequest,
    MemberState,
)
from headrace.agent.groups.values import Abandon, GroupEffect, MemberRef, Token
from headrace.metastore.log.image import MetadataImage, TopicImage

FIRST_COMMIT_WITH_MEMBER_EPOCH = 9


class ConsumerGroup(ClassicMembers):
    """Implements agent.groups.coordinated.CoordinatedGroup."""

    def consumer_heartbeat(self, now: float, request: HeartbeatRequest, token: Token) -> list[GroupEffect]:
        """ConsumerGroupHeartbeat: join, go on or leave; answered once what it says is stored."""
        if self.is_dead:
            answer = ConsumerHeartbeatAnswer(ErrorCode.not_coordinator, request.member_id)
        elif request.member_epoch in (LEAVE_EPOCH, LEAVE_FOR_A_WHILE_EPOCH):
            answer = self._leave_by(request)
        else:
            answer = self._go_on(now, request)

        def refused(code: ErrorCode) -> ConsumerHeartbeatAnswer:
            if (
                code is ErrorCode.rebalance_in_progress
            ):  # the group is a classic one by now, and the member is not in it
                left = request.member_epoch < JOIN_EPOCH
                return answer if left else ConsumerHeartbeatAnswer(ErrorCode.unknown_member_id, request.member_id)
            return ConsumerHeartbeatAnswer(code, request.member_id)

        self._outbox.answer(token, answer, refused)
        return self._drain()

    def judges_by(self, by_name: Mapping[str, TopicImage]) -> bool:
        """Whether the next heartbeat is judged by the same topics as the last: nothing has to be caught up with."""
        return self.target.is_judged_by(by_name)

    def check_commit(self, now: float, ref: MemberRef, version: int) -> ErrorCode:
        """STALE_MEMBER_EPOCH asks the member to heartbeat and to commit under its new epoch."""
        if ref.generation < 0 and not len(self.roster):
            return ErrorCode.none  # a consumer that assigns itself, or an admin
        member = self.roster.get(ref.member_id)
        if self.is_dead or member is None:
            return ErrorCode.not_coordinator if self.is_dead else ErrorCode.unknown_member_id
        if member.classic is not None:
            return ErrorCode.none if ref.generation == member.epoch else ErrorCode.illegal_generation
        if version < FIRST_COMMIT_WITH_MEMBER_EPOCH:
            return ErrorCode.unsupported_version
        return ErrorCode.none if ref.generation == member.epoch else ErrorCode.stale_member_epoch

    def check_fetch(self, ref: MemberRef) -> ErrorCode:
        """As `check_commit`, for a reader that says who it is."""
        if ref.generation < 0:
            return ErrorCode.none
        member = self.roster.get(ref.member_id)
        if self.is_dead or member is None:
            return ErrorCode.not_coordinator if self.is_dead else ErrorCode.unknown_member_id
        stale = ErrorCode.stale_member_epoch if member.classic is None else ErrorCode.illegal_generation
        return ErrorCode.none if ref.generation == member.epoch else stale

    def metadata_changed(self, now: float, image: MetadataImage) -> list[GroupEffect]:
        """The next heartbeat is judged by the new topics; but classic members have to be told to join again."""
        if self.is_dead or not self.target.is_judged or self.judges_by(self._topics(()).by_name):
            return []
        if all(member.classic is None for member in self.roster):
            return []
        if self.target.refresh(self.roster, self._topics(self.roster.patterns), changed=False):
            self._outbox.changed()
        return self._drain()

    def tick(self, now: float) -> list[GroupEffect]:
        """Whoever is late is given up; the others learn of it as they heartbeat."""
        for member in self._late(now):
            self._remove(member)
        return self._drain()

    def next_deadline(self) -> float | None:
        """A lower bound: heartbeats postpone deadlines without a call."""
        return self._wake_at if self._sessions or self._overdue else None

    def is_idle(self) -> bool:
        """Nobody is in it."""
        return not len(self.roster)

    def saved(self, now: float, revision: int, code: ErrorCode) -> list[GroupEffect]:
        """What was not stored for certain must not be built upon: the group is restored from the store."""
        if self.is_dead:
            return []
        if code is ErrorCode.none:
            self._outbox.stored(revision)
            return self._drain()
        self._outbox.refuse_all(code)
        self._outbox.emit(Abandon())
        return self.close(code)

    def close(self, code: ErrorCode) -> list[GroupEffect]:
        """Whoever waits is told `code`; nothing is stored any more."""
        self.is_dead, self.state_name = True, "Dead"
        self._outbox.refuse_all(code)
        self._outbox.give_up()
        return self._drain()

    # -- insides

    def _go_on(self, now: float, request: HeartbeatRequest) -> ConsumerHeartbeatAnswer:
        known = self._find(request)
        if isinstance(known, ErrorCode):
            return ConsumerHeartbeatAnswer(known, request.member_id)
        wishes = (known or ConsumerMember(request.member_id)).updated_by(request)
        member = self._advance(now, known, wishes, request.owned)
        self._heard_of(now, member)
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
                return self._take_over(known, request.member_id)
        if known is None:
            if not joins:
                return ErrorCode.unknown_member_id
            return ErrorCode.group_max_size_reached if self._is_full() else None
        if joins:
            return self._take_over(known, known.member_id) if known.is_away else known
        return known if self._shows_its_epoch(known, request) else ErrorCode.fenced_member_epoch

    @staticmethod
    def _shows_its_epoch(member: ConsumerMember, request: HeartbeatRequest) -> bool:
        """The epoch before it too, from a member that missed the last answer and owns no more than it says."""
        if request.member_epoch == member.epoch:
            return True
        missed = request.member_epoch == member.previous_epoch and request.member_epoch < member.epoch
        return missed and request.owned is not None and request.owned <= member.assigned

    def _leave_by(self, request: HeartbeatRequest) -> ConsumerHeartbeatAnswer:
        member = self._named(MemberRef(request.member_id, request.instance_id))
        if isinstance(member, ErrorCode):
            return ConsumerHeartbeatAnswer(member, request.member_id)
        if request.member_epoch == LEAVE_EPOCH:
            self._remove(member)
        else:
            self._put(replace(member, epoch=LEAVE_FOR_A_WHILE_EPOCH, state=MemberState.STABLE, to_revoke=NOTHING))
            self._overdue.pop(member.member_id, None)  # its session still runs
        return ConsumerHeartbeatAnswer(ErrorCode.none, member.member_id, request.member_epoch)
