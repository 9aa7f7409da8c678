"""Answers to a classic group's members: the generation that a join leads to, the assignment that a sync asks for.

Place: used by group.py and rebalance.py, which decide when; outbox.py carries the answers.
Invariant: a request that waits has its token on its member, and an answer takes the token off: each token gets one
answer.
Source: Kafka's message schemas; KIP-814 (skip assignment).
"""

from __future__ import annotations

from dataclasses import dataclass

from kio.schema.errors import ErrorCode

from headrace.agent.groups.classic.roster import ClassicMember, ClassicRoster
from headrace.agent.groups.group_values import JoinAnswer, SyncAnswer
from headrace.agent.groups.outbox import Outbox


@dataclass(slots=True)
class Generation:
    """The generation that a group is in, and the protocol that its members agreed on; None before the first."""

    number: int = 0
    lowest: int = 0
    """Lowest number of those that begin from now on."""
    protocol_type: str | None = None
    protocol_name: str | None = None


class MemberAnswers:
    """What members are answered, as of the generation and the roster now."""

    def __init__(self, roster: ClassicRoster, generation: Generation, outbox: Outbox) -> None:
        self._roster = roster
        self._generation = generation
        self._outbox = outbox

    def generation_of(
        self,
        member: ClassicMember,
        *,
        leader_id: str | None = None,
        with_members: bool = False,
        skip_assignment: bool = False,
    ) -> JoinAnswer:
        """The member is in this generation; a leader gets the list of members, too."""
        generation = self._generation
        return JoinAnswer(
            ErrorCode.none,
            member.member_id,
            generation.number,
            generation.protocol_type,
            generation.protocol_name,
            leader_id if leader_id is not None else self._roster.leader_id or "",
            skip_assignment,
            self._roster.introduce(generation.protocol_name) if with_members else (),
        )

    def assignment_of(self, member: ClassicMember) -> SyncAnswer:
        """Return what the leader assigned to the member."""
        generation = self._generation
        return SyncAnswer(ErrorCode.none, member.assignment, generation.protocol_type, generation.protocol_name)

    def refuse_join(self, member: ClassicMember, code: ErrorCode) -> None:
        """Refuse the join that the member waits for, if any."""
        if member.join_token is not None:
            self._outbox.reply(member.join_token, JoinAnswer(code, member.member_id))
            member.join_token = None

    def complete_join(self, member: ClassicMember) -> None:
        """Answer the join that the member waits for; a new member id of a static member is stored first."""
        assert member.join_token is not None
        answer = self.generation_of(member, with_members=member.member_id == self._roster.leader_id)
        if member.incarnation_save is None:
            self._outbox.reply(member.join_token, answer)
        else:
            self._outbox.answer_after(member.incarnation_save, member.join_token, answer, refused_join)
        member.join_token = None

    def answer_sync(self, member: ClassicMember, answer: SyncAnswer) -> None:
        """Answer the sync that the member waits for, if any."""
        if member.sync_token is not None:
            self._outbox.reply(member.sync_token, answer)
            member.sync_token = None

    def refuse(self, member: ClassicMember, code: ErrorCode) -> None:
        """Refuse every request of the member that waits."""
        self.refuse_join(member, code)
        self.answer_sync(member, SyncAnswer(code))


def refused_join(code: ErrorCode) -> JoinAnswer:
    """Answer a join with an answer that could not be stored."""
    return JoinAnswer(code, "")
