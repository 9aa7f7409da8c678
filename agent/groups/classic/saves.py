"""What a classic group stores, so that the next coordinator continues with it.

Place: under rebalance.py and group.py; saved.py is the stored form, outbox.py carries the saves.
Invariant: a stored generation is complete: every member with its assignment. A restarted static member's new member
id is stored before the member learns it.
"""

from __future__ import annotations

import msgspec
from kio.schema.errors import ErrorCode

from headrace.agent.groups.classic.answers import Generation, MemberAnswers
from headrace.agent.groups.classic.roster import ClassicMember, ClassicRoster
from headrace.agent.groups.classic.saved import SavedGroup
from headrace.agent.groups.outbox import Outbox


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
