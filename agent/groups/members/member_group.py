"""A group of which members heartbeat with an epoch: the requests that all such kinds have. A pure state machine.

Place: driven by held_groups.py as a CoordinatedGroup, and by heartbeats.py, which brings heartbeats. Its parts are
membership.py and ../outbox.py; a kind adds its assignment in a subclass.
Invariant: epochs never go back; a member learns only what is stored; every token gets one answer. A heartbeat that
changes nothing stores nothing.
If the process crashes, the next coordinator restores what was stored, and members continue: each has learned at most of
what was stored, and one that missed the last answer shows the epoch before it.
Source: KIP-848, Kafka's GroupMetadataManager.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from typing import Any, Generic, TypeVar

from kio.schema.errors import ErrorCode

from headrace.agent.groups.coordinated import ClassicProtocol
from headrace.agent.groups.group_memory import group_bytes, sizes_of_group
from headrace.agent.groups.group_values import Abandon, GroupEffect, MemberRef, Token
from headrace.agent.groups.members.member import (
    LEAVE_EPOCH,
    GroupMember,
    MemberHeartbeat,
    MemberHeartbeatAnswer,
    Partitions,
)
from headrace.agent.groups.members.membership import GroupEpochs, GroupMembership, MemberRoster
from headrace.metastore.api.groups import GroupKind, GroupRecord
from headrace.metastore.log.image import MetadataImage

M = TypeVar("M", bound=GroupMember[Any])
H = TypeVar("H", bound=MemberHeartbeat)


class MemberGroup(ABC, Generic[M, H]):
    """Implements agent.groups.coordinated.CoordinatedGroup, but for what depends on the kind."""

    kind: GroupKind
    protocol_type: str | None
    keeps_offsets = True

    def __init__(self, group_id: str, membership: GroupMembership[M]) -> None:
        self.group_id = group_id
        self._membership = membership
        self._outbox = membership.outbox

    # -- what differs

    @abstractmethod
    def _new_member(self, member_id: str) -> M:
        """A member of which nothing else is known yet."""

    @abstractmethod
    def _advance(self, now: float, known: M | None, wishes: M, request: H) -> M:
        """Take the member's wishes in and bring it one step on; `known`: as it was before, None for a new one."""

    @abstractmethod
    def _shows_its_epoch(self, member: M, request: H) -> bool:
        """The member's epoch, or the one before it from a member that missed the last answer."""

    @abstractmethod
    def _has_news(self, known: M | None, member: M, request: H) -> bool:
        """Return whether the member is to be answered its assignment, although it did not ask for it."""

    @abstractmethod
    def check_commit(self, now: float, ref: MemberRef, version: int, keys: Collection[int] = ()) -> ErrorCode:
        """See CoordinatedGroup."""

    @abstractmethod
    def check_fetch(self, ref: MemberRef) -> ErrorCode:
        """See CoordinatedGroup."""

    @abstractmethod
    def metadata_changed(self, now: float, image: MetadataImage) -> list[GroupEffect]:
        """See CoordinatedGroup. The next heartbeat is judged by the new topics anyway."""

    def _refused(self, request: H, answer: MemberHeartbeatAnswer, code: ErrorCode) -> MemberHeartbeatAnswer:
        """Return what the member gets if `answer` cannot be given."""
        return MemberHeartbeatAnswer(code, request.member_id)

    def _why_not(self, request: H) -> MemberHeartbeatAnswer | None:
        """Return why a member that is known or may join is refused; nothing has changed yet."""
        return None

    def _refusal(self, request: H, code: ErrorCode) -> MemberHeartbeatAnswer:
        """Return the answer to a heartbeat that is refused by what is known of the member."""
        return MemberHeartbeatAnswer(code, request.member_id)

    def _answer(self, now: float, member: M, request: H, assigned: Partitions | None) -> MemberHeartbeatAnswer:
        """Return the answer to a heartbeat that was taken in; `assigned` None: as in the last answer."""
        return MemberHeartbeatAnswer(ErrorCode.none, member.member_id, member.epoch, assigned)

    # -- see CoordinatedGroup

    @property
    def classic_protocol(self) -> ClassicProtocol | None:
        """See CoordinatedGroup."""
        return None

    @property
    def roster(self) -> MemberRoster[M]:
        return self._membership.roster

    @property
    def target(self) -> GroupEpochs:
        return self._membership.target

    @property
    def state_name(self) -> str:
        return self._membership.state_name

    @property
    def is_dead(self) -> bool:
        """Another agent, or another group, continues."""
        return self._membership.is_dead

    def epochs_from(self, lowest: int) -> None:
        """The next group epoch is at least this."""
        self.target.lowest = lowest

    def sizes(self) -> Mapping[str, int]:
        """See CoordinatedGroup."""
        return sizes_of_group(self._own_bytes(), ((each.client_host, each.size_bytes()) for each in self.roster))

    def _own_bytes(self) -> int:
        """Bytes that are no member's."""
        return group_bytes(self.group_id)

    def member_bytes(self, member_id: str) -> int:
        """See CoordinatedGroup."""
        member = self.roster.get(member_id)
        return 0 if member is None else member.size_bytes()

    def subscribed_topics(self) -> frozenset[str]:
        """Names of the topics that the members consume, whether or not they exist."""
        return self._membership.subscribed_topics()

    def judges_by(self, topics: object) -> bool:
        """Return whether the next heartbeat is judged by the same topics as the last: nothing has to be caught up
        with.
        """
        return self.target.is_judged_by(topics)

    def generation_by(self, topics: object) -> int | None:
        """See CoordinatedGroup."""
        return self.target.group_epoch if self.judges_by(topics) else None

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
        if self.is_dead:
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

    def deleted(self) -> None:
        """See CoordinatedGroup."""

    def restore(self, now: float, record: GroupRecord) -> None:
        """Continue where the last coordinator was: the same epochs and assignments, new sessions."""
        self._membership.restore(now, record)

    # -- heartbeats

    def member_heartbeat(self, now: float, request: H, token: Token) -> list[GroupEffect]:
        """Join, continue or leave; answered once what the heartbeat says is stored."""
        if self.is_dead:
            answer = MemberHeartbeatAnswer(ErrorCode.not_coordinator, request.member_id)
        elif request.member_epoch <= LEAVE_EPOCH:
            answer = self._leave_by(request)
        else:
            answer = self._go_on(now, request)
        self._outbox.answer(token, answer, lambda code: self._refused(request, answer, code))
        return self._membership.drain()

    def _go_on(self, now: float, request: H) -> MemberHeartbeatAnswer:
        known = self._find(request)
        if isinstance(known, ErrorCode):
            return self._refusal(request, known)
        if refusal := self._why_not(request):
            return refusal
        wishes = (known or self._new_member(request.member_id)).updated_by(request)
        member = self._advance(now, known, wishes, request)
        self._membership.heard_of(now, member)
        tell = request.joins or request.is_full or self._has_news(known, member, request)
        return self._answer(now, member, request, member.assigned if tell else None)

    def _find(self, request: H) -> M | ErrorCode | None:
        """The member as it is known; None for one that is new; or why the request is refused."""
        known = self.roster.get(request.member_id)
        if request.instance_id is not None:
            known = self.roster.static_member(request.instance_id)
            if known is not None and known.member_id != request.member_id:
                if not request.joins:
                    return ErrorCode.fenced_instance_id
                if not known.may_be_replaced:
                    return ErrorCode.unreleased_instance_id
                return self._membership.take_over(known, request.member_id)
        if known is None:
            if not request.joins:
                return ErrorCode.unknown_member_id
            return ErrorCode.group_max_size_reached if self._membership.is_full() else None
        if request.joins:
            return self._membership.take_over(known, known.member_id) if known.is_away else known
        return known if self._shows_its_epoch(known, request) else ErrorCode.fenced_member_epoch

    def _leave_by(self, request: H) -> MemberHeartbeatAnswer:
        member = self._membership.named(MemberRef(request.member_id, request.instance_id))
        if isinstance(member, ErrorCode):
            return self._refusal(request, member)
        if request.member_epoch == LEAVE_EPOCH:
            self._membership.remove(member)
        else:
            self._membership.go_away(member)
        return MemberHeartbeatAnswer(ErrorCode.none, member.member_id, request.member_epoch)
