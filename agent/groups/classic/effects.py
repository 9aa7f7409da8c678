"""What a classic group gives out: the answers to its members, the saves for its next coordinator.

Place: used by group.py and rebalance.py, which decide when; saved.py is the stored form, ../outbox.py carries
answers and saves. Members are answered the generation that a join leads to, and the assignment that a sync asks for.
Invariant: a request that waits has its token on its member, and an answer takes the token off: each token gets one
answer. A stored generation is complete: every member with its assignment. A restarted static member's new member
id is stored before the member learns it.
Source: Kafka's message schemas; KIP-814 (skip assignment).
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
from kio.schema.errors import ErrorCode

from headrace.agent.groups.classic.roster import ClassicMember, ClassicRoster
from headrace.agent.groups.classic.saved import SavedGroup
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


class ClassicSaves:
    """Asks for saves, and knows what the last one holds."""

    def __init__(self, roster: ClassicRoster, generation: Generation, answers: MemberAnswers, outbox: Outbox) -> None:
        self._roster = roster
        self._generation = generation
        self._answers = answers
        self._outbox = outbox
        self._last: SavedGroup | None = None
        """What the next coordinator would restore."""
        self.owes_rebalance = False
        """It was a consumer group before, and its members have not all joined it yet."""

    def restored(self, state: SavedGroup) -> None:
        """This is what is stored."""
        self._last = state
        self.owes_rebalance = state.owes_rebalance

    def snapshot(self) -> SavedGroup:
        """The group as it is now, with every member that is in it or about to be."""
        return SavedGroup(
            self._generation.number,
            self._generation.protocol_type,
            self._generation.protocol_name,
            self._roster.leader_id,
            [member.saved() for member in self._roster],
            owes_rebalance=self.owes_rebalance,
        )

    def save(self) -> int:
        """Store the group as it is now; the save's revision."""
        return self._store(self.snapshot())

    def save_gathering(self) -> int:
        """Store that the group's first members gather: its offsets are in use, and it has no generation yet."""
        return self._store(msgspec.structs.replace(self.snapshot(), leader_id=None, members=[], gathering=True))

    def save_incarnation(self, member: ClassicMember) -> None:
        """Store the new member id of a static member, if the next coordinator would restore another one.

        If the generation that it joins is never saved, it must not be taken for an impostor of itself:
        clients give up on FENCED_INSTANCE_ID.
        """
        last = self._last
        known = None if last is None or member.instance_id is None else last.find_instance(member.instance_id)
        if last is not None and known is not None and known.member_id != member.member_id:
            renamed = msgspec.structs.replace(known, member_id=member.member_id)
            member.incarnation_save = self._store(
                msgspec.structs.replace(
                    last,
                    leader_id=member.member_id if last.leader_id == known.member_id else last.leader_id,
                    members=[renamed if each is known else each for each in last.members],
                )
            )

    def ended(self, revision: int, code: ErrorCode) -> None:
        """A save was stored, or failed with `code`: give or refuse the answers that waited for it."""
        for member in self._roster:
            if member.incarnation_save == revision:
                member.incarnation_save = None
                if code is not ErrorCode.none:
                    self._answers.refuse_join(member, code)
        if code is ErrorCode.none:
            self._outbox.stored(revision)
            self._outbox.release()
        else:
            self._outbox.refuse(revision, code)

    def _store(self, state: SavedGroup) -> int:
        self._last = state
        return self._outbox.save(state)
