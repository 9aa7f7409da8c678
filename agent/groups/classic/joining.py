"""Joins of a classic group: which are refused, and what the others lead to. Pure.

Place: under group.py; rebalance.py carries on with a join that is let in.
Invariant: a member joins only with a protocol that all others support, and under an id that it was given here.
Source: KIP-345 (static members), KIP-394 (member ids first).
"""

from __future__ import annotations

import random
import uuid

from kio.schema.errors import ErrorCode

from headrace.agent.groups.classic.answers import Generation, MemberAnswers
from headrace.agent.groups.classic.promised_ids import PROMISE_SECONDS, PromisedIds
from headrace.agent.groups.classic.rebalance import Rebalance
from headrace.agent.groups.classic.roster import ClassicMember, ClassicRoster
from headrace.agent.groups.group_values import GroupState, JoinAnswer, JoinRequest, Token
from headrace.agent.groups.outbox import Outbox


class Joining:
    """Judges JoinGroup requests."""

    def __init__(
        self,
        roster: ClassicRoster,
        generation: Generation,
        promised_ids: PromisedIds,
        answers: MemberAnswers,
        rebalance: Rebalance,
        outbox: Outbox,
        rng: random.Random,
        *,
        max_size: int,
    ) -> None:
        self._roster = roster
        self._generation = generation
        self._promised_ids = promised_ids
        self._answers = answers
        self._rebalance = rebalance
        self._outbox = outbox
        self._rng = rng
        self._max_size = max_size

    def join(self, now: float, request: JoinRequest, token: Token) -> None:
        """Refuse it, answer it, or let the member wait for the next generation."""
        code = self._refusal(request)
        if code is not ErrorCode.none:
            self._outbox.reply(token, JoinAnswer(code, request.member.member_id))
        elif request.member.member_id:
            self._join_known(now, request, token)
        else:
            self._join_unknown(now, request, token)

    def _refusal(self, request: JoinRequest) -> ErrorCode:
        if self._rebalance.state is GroupState.DEAD:
            return ErrorCode.not_coordinator
        if not request.protocol_type or not request.protocols:
            return ErrorCode.inconsistent_group_protocol
        static = self._roster.static_member(request.member.instance_id)
        own_id = static.member_id if static is not None else request.member.member_id
        if self._is_full(own_id):
            return ErrorCode.group_max_size_reached
        if len(self._roster) and (
            request.protocol_type != self._generation.protocol_type
            or not self._roster.agrees(request.protocols, besides=own_id)
        ):
            return ErrorCode.inconsistent_group_protocol
        return ErrorCode.none

    def _is_full(self, member_id: str) -> bool:
        """Return whether the group is full. Between generations those members count that came: of too many, as
        after a lower limit, the quickest get in.
        """
        if self._rebalance.state is GroupState.EMPTY:
            return False
        if self._rebalance.state is GroupState.PREPARING_REBALANCE:
            came = {member.member_id for member in self._roster if member.join_token is not None}
            return member_id not in came and len(came) >= self._max_size
        return member_id not in self._roster and len(self._roster) >= self._max_size

    def _join_unknown(self, now: float, request: JoinRequest, token: Token) -> None:
        instance_id = request.member.instance_id
        unique = uuid.UUID(int=self._rng.getrandbits(128), version=4)
        member_id = f"{request.client_id if instance_id is None else instance_id}-{unique}"
        static = self._roster.static_member(instance_id)
        if static is not None:
            self._rebalance.replace_static(now, static, member_id, request, token)
        elif instance_id is None and request.id_required:
            lapse_at = now + min(request.session_timeout, PROMISE_SECONDS)
            self._promised_ids.promise(member_id, lapse_at, request.client_host)
            self._outbox.reply(token, JoinAnswer(ErrorCode.member_id_required, member_id))
        else:
            self._rebalance.add(now, request, member_id, token)

    def _join_known(self, now: float, request: JoinRequest, token: Token) -> None:
        member_id = request.member.member_id
        if self._promised_ids.take(member_id):
            self._rebalance.add(now, request, member_id, token)
            return
        member = self._roster.find(request.member)
        if not isinstance(member, ClassicMember):
            self._outbox.reply(token, JoinAnswer(member, member_id))
            return
        leads = member_id == self._roster.leader_id
        same = member.protocols == request.protocols
        if self._rebalance.state is GroupState.COMPLETING_REBALANCE and same:
            member.touch(now)  # it missed the answer to its last join
            self._outbox.reply(token, self._answers.generation_of(member, with_members=leads))
        elif self._rebalance.state is GroupState.STABLE and same and not leads:
            member.touch(now)
            self._outbox.reply(token, self._answers.generation_of(member))
        else:
            self._rebalance.update(now, member, request, token)  # a leader joins again when what it assigns has changed
