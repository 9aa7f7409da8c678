"""Members of the classic protocol in a consumer group: JoinGroup, SyncGroup, Heartbeat, LeaveGroup. Pure.

Place: a part of group.py, above membership.py; this is how a group is upgraded client by client.
Such a member gets partitions like all others. Its generation is its member epoch, no member leads, and
REBALANCE_IN_PROGRESS asks it to join again when there is something new: a revocation, or
partitions that have become free. The partitions that its join says it owns acknowledge a revocation.
Invariant: it never gets a partition before its last holder gave it up; if it has to join or sync, it has its
rebalance timeout to do so.
Source: KIP-848 (supporting the classic protocol), Kafka's classicGroupJoinToConsumerGroup and its kin.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Iterable
from dataclasses import replace

from kio.schema.errors import ErrorCode

from headrace.agent.groups.consumer.conversion import (
    PROTOCOL_TYPE,
    Subscription,
    keys,
    read_subscription,
    write_assignment,
)
from headrace.agent.groups.consumer.members import ClassicSide, ConsumerMember
from headrace.agent.groups.consumer.membership import ConsumerGroupMembership
from headrace.agent.groups.group_values import (
    Departure,
    GroupEffect,
    JoinAnswer,
    JoinRequest,
    MemberRef,
    SyncAnswer,
    SyncRequest,
    Token,
)
from headrace.agent.groups.members.member import Partitions
from headrace.agent.groups.members.reconciliation import MemberState


class ClassicMembers:
    """Implements agent.groups.coordinated.ClassicProtocol in a consumer group."""

    def __init__(self, membership: ConsumerGroupMembership, rng: random.Random) -> None:
        self._membership = membership
        self._outbox = membership.outbox
        self._roster = membership.roster
        self._target = membership.target
        self._deadlines = membership.deadlines
        self._rng = rng

    def join(self, now: float, request: JoinRequest, token: Token) -> list[GroupEffect]:
        """JoinGroup: answered once what it says is stored."""
        answer = self._join(now, request)
        self._outbox.answer(token, answer, lambda code: JoinAnswer(code, request.member.member_id))
        return self._membership.drain()

    def _join(self, now: float, request: JoinRequest) -> JoinAnswer:
        asked = request.member
        subscription = read_subscription(request.protocols)
        code = self._refusal(request)
        if code is not ErrorCode.none or subscription is None:
            refusal = ErrorCode.inconsistent_group_protocol if code is ErrorCode.none else code
            return JoinAnswer(refusal, asked.member_id)
        static = None if asked.instance_id is None else self._roster.static_member(asked.instance_id)
        member_id = asked.member_id or self._new_member_id(request)
        if static is None and not asked.member_id and asked.instance_id is None and request.id_required:
            return JoinAnswer(ErrorCode.member_id_required, member_id)
        known = self._roster.get(member_id) if static is None else static
        if known is not None and known.member_id != member_id:
            known = self._membership.take_over(known, member_id)
        member = self._join_as(known or ConsumerMember(member_id), request, subscription)
        member = self._membership.advance(now, known, member, self._owned(subscription))
        self._membership.heard_of(now, member)
        self._membership.expect(now, member)  # to sync
        if known is not None and known.classic is None:
            self._membership.may_downgrade()
        return JoinAnswer(ErrorCode.none, member_id, member.epoch, PROTOCOL_TYPE, request.protocols[0].name)

    def sync(self, now: float, request: SyncRequest, token: Token) -> list[GroupEffect]:
        """SyncGroup: answered once what it says is stored."""
        self._outbox.answer(token, self._sync(now, request), SyncAnswer)
        return self._membership.drain()

    def _sync(self, now: float, request: SyncRequest) -> SyncAnswer:
        """Return what the member has now; assignments that it brings are ignored."""
        member = self._classic_member(request.member)
        if isinstance(member, ErrorCode):
            return SyncAnswer(member)
        assert member.classic is not None
        name = member.classic.protocols[0].name
        if request.protocol_type not in (None, PROTOCOL_TYPE) or request.protocol_name not in (None, name):
            return SyncAnswer(ErrorCode.inconsistent_group_protocol)
        if member.epoch < self._target.group_epoch and member.state is not MemberState.UNREVOKED:
            self._membership.expect_unless_expected(now, member)
            return SyncAnswer(ErrorCode.rebalance_in_progress)
        self._deadlines.met(member.member_id)
        self._membership.heard_of(now, member)
        assignment = write_assignment(member.classic.protocols, member.assigned, self._membership.topics(()))
        return SyncAnswer(ErrorCode.none, assignment, PROTOCOL_TYPE, name)

    def heartbeat(self, now: float, ref: MemberRef) -> ErrorCode:
        """REBALANCE_IN_PROGRESS asks the member to join again."""
        member = self._classic_member(ref)
        if isinstance(member, ErrorCode):
            return member
        self._membership.heard_of(now, member)
        if not self._has_news(member):
            return ErrorCode.none
        self._membership.expect_unless_expected(now, member)
        return ErrorCode.rebalance_in_progress

    def leave(self, now: float, refs: Iterable[MemberRef]) -> tuple[list[Departure], list[GroupEffect]]:
        """LeaveGroup."""
        departures = [Departure(ref, self._leave(ref)) for ref in refs]
        return departures, self._membership.drain()

    def _leave(self, ref: MemberRef) -> ErrorCode:
        """A classic member leaves, or an admin removes a static one by instance id alone."""
        by_instance = None if ref.instance_id is None or ref.member_id else self._roster.static_member(ref.instance_id)
        member = self._membership.named(ref) if by_instance is None or self._membership.is_dead else by_instance
        if isinstance(member, ErrorCode):
            return member
        if member.classic is None and by_instance is None:
            return ErrorCode.unknown_member_id
        self._membership.remove(member)
        return ErrorCode.none

    # -- insides

    def _owned(self, subscription: Subscription) -> Partitions | None:
        """Return None while it names a topic that is not known here: gone, or so new that this agent lags behind."""
        topics = self._membership.topics(())
        known = all(name in topics.by_name for name, _ in subscription.owned)
        return keys(subscription.owned, topics) if known else None

    @staticmethod
    def _join_as(member: ConsumerMember, request: JoinRequest, subscription: Subscription) -> ConsumerMember:
        return replace(
            member,
            instance_id=request.member.instance_id,
            rack_id=subscription.rack_id,
            client_id=request.client_id,
            client_host=request.client_host,
            rebalance_timeout=request.rebalance_timeout,
            topic_names=subscription.topic_names,
            topic_pattern="",
            assignor=None,
            classic=ClassicSide(request.session_timeout, request.protocols),
        )

    def _refusal(self, request: JoinRequest) -> ErrorCode:
        if self._membership.is_dead:
            return ErrorCode.not_coordinator
        asked = request.member
        static = None if asked.instance_id is None else self._roster.static_member(asked.instance_id)
        if static is not None and asked.member_id not in ("", static.member_id):
            return ErrorCode.fenced_instance_id
        if asked.instance_id is not None and asked.member_id and static is None:
            return ErrorCode.unknown_member_id
        if self._membership.is_full() and static is None and self._roster.get(asked.member_id) is None:
            return ErrorCode.group_max_size_reached
        own_id = asked.member_id if static is None else static.member_id
        if request.protocol_type != PROTOCOL_TYPE or not self._agrees(request, own_id):
            return ErrorCode.inconsistent_group_protocol
        return ErrorCode.none

    def _agrees(self, request: JoinRequest, own_id: str) -> bool:
        """Return whether some protocol is supported by all classic members, as when the group was a classic one."""
        others = [
            {protocol.name for protocol in member.classic.protocols}
            for member in self._roster
            if member.classic is not None and member.member_id != own_id
        ]
        return any(all(protocol.name in names for names in others) for protocol in request.protocols)

    def _new_member_id(self, request: JoinRequest) -> str:
        unique = uuid.UUID(int=self._rng.getrandbits(128), version=4)
        return f"{request.member.instance_id or request.client_id}-{unique}"

    def _has_news(self, member: ConsumerMember) -> bool:
        """Return whether joining again would bring the member on."""
        if member.epoch < self._target.group_epoch or member.state is MemberState.UNREVOKED:
            return True
        missing = self._target.of(member.member_id) - member.assigned
        return member.state is MemberState.UNRELEASED and all(self._roster.holder(key) is None for key in missing)

    def _classic_member(self, ref: MemberRef) -> ConsumerMember | ErrorCode:
        """The member of the classic protocol in this very generation, or why the request is refused."""
        member = self._membership.named(ref)
        if isinstance(member, ErrorCode):
            return member
        if member.classic is None:
            return ErrorCode.unknown_member_id
        return member if member.epoch == ref.generation else ErrorCode.illegal_generation
