"""How a classic group gets from one generation to the next, from the joins that it lets in. Pure.

Place: group.py takes requests and deadlines and calls this; effects.py carries out what it decides.
Invariant: a member joins only with a protocol that all others support, and under an id that it was given here.
In PreparingRebalance a member either waits with its join or has until `_join_until`; in
CompletingRebalance the leader's assignment is stored before any member gets it.
Source: Kafka's GroupCoordinator; KIP-134 (initial delay), KIP-345 (static members), KIP-394 (member ids first).
"""

from __future__ import annotations

import random
import uuid

from kio.schema.errors import ErrorCode

from headrace.agent.groups.classic.effects import ClassicSaves, Generation, MemberAnswers, refused_join
from headrace.agent.groups.classic.roster import PROMISE_SECONDS, ClassicMember, ClassicRoster, PromisedIds
from headrace.agent.groups.group_values import GroupState, JoinAnswer, JoinRequest, SyncAnswer, SyncRequest, Token
from headrace.agent.groups.outbox import Outbox

NEW_MEMBER_JOIN_SECONDS = 300.0
"""Longest wait of a new member's join, after which the member is given up: its client has left or asks again."""


class Rebalance:
    """The group's state, and the transitions between states."""

    def __init__(
        self,
        roster: ClassicRoster,
        generation: Generation,
        promised_ids: PromisedIds,
        answers: MemberAnswers,
        saves: ClassicSaves,
        outbox: Outbox,
        *,
        initial_delay: float,
    ) -> None:
        self.state = GroupState.EMPTY
        self._roster = roster
        self._generation = generation
        self._promised_ids = promised_ids
        self._answers = answers
        self._saves = saves
        self._outbox = outbox
        self._initial_delay = initial_delay
        self._join_until = 0.0
        self._initial_left: float | None = None
        """While a group's first members gather: how much longer that may be put off. None: no such wait."""
        self._newcomer = False
        """A member joined since the gathering was put off last."""
        self._to_sync: set[str] = set()
        self._sync_until = 0.0
        self._assignment_revision: int | None = None
        """The save that the members' sync requests wait for."""

    # -- members come and go

    def add(self, now: float, request: JoinRequest, member_id: str, token: Token) -> None:
        """A new member waits for the next generation."""
        if not len(self._roster):
            self._generation.protocol_type = request.protocol_type
        member = ClassicMember(
            member_id,
            request.member.instance_id,
            request.client_id,
            request.client_host,
            request.session_timeout,
            request.rebalance_timeout,
            request.protocols,
            now + NEW_MEMBER_JOIN_SECONDS,
            is_new=True,
            join_token=token,
        )
        self._roster.add(member)
        self._newcomer = True
        self._saves.save_incarnation(member)
        self._rejoin(now)

    def update(self, now: float, member: ClassicMember, request: JoinRequest, token: Token) -> None:
        """The member wants to be in the next generation, maybe with another subscription."""
        member.update(request)
        self._answers.refuse_join(member, ErrorCode.rebalance_in_progress)  # an older request of the same member
        member.join_token = token
        self._rejoin(now)

    def remove(self, now: float, member: ClassicMember) -> None:
        """The member left or is given up."""
        self._answers.refuse(member, ErrorCode.unknown_member_id)
        self._roster.remove(member)
        self._to_sync.discard(member.member_id)
        self._rejoin(now)

    def replace_static(
        self, now: float, member: ClassicMember, member_id: str, request: JoinRequest, token: Token
    ) -> None:
        """A static member was restarted: its new incarnation takes its place, usually without a rebalance."""
        self._answers.refuse(member, ErrorCode.fenced_instance_id)
        previous_leader = self._roster.leader_id or ""
        if member.member_id in self._to_sync:
            self._to_sync = self._to_sync - {member.member_id} | {member_id}
        self._roster.rename(member, member_id)
        member.update(request)
        member.is_new = False
        member.touch(now)
        if self.state is not GroupState.STABLE or self._roster.choose_protocol() != self._generation.protocol_name:
            member.join_token = token
            self._saves.save_incarnation(member)
            self._rejoin(now)
            return
        leads = self._roster.leader_id == member_id
        if not request.can_skip_assignment:
            # Named as a follower, it does not compute an assignment that no member would wait for.
            answer = self._answers.generation_of(member, leader_id=previous_leader)
        else:
            answer = self._answers.generation_of(member, with_members=leads, skip_assignment=leads)
        self._outbox.answer_after(self._saves.save(), token, answer, refused_join)

    def restore(self, now: float, *, owes_rebalance: bool, gathering: bool) -> None:
        """The roster and the generation are as the last coordinator stored them."""
        self.state = GroupState.STABLE if len(self._roster) else GroupState.EMPTY
        if owes_rebalance:
            self._save()
            self._prepare(now)
        if gathering:
            self._save()  # those who gathered join again, or are gone: from now on it is empty

    # -- joining

    def promise_ended(self, now: float) -> None:
        """A promised member id was given back or lapsed: the others may have waited for it only."""
        self._maybe_complete_join(now)

    def _rejoin(self, now: float) -> None:
        """A member joined or went: start a rebalance, or see whether the one in progress is complete."""
        if self.state in (GroupState.STABLE, GroupState.COMPLETING_REBALANCE, GroupState.EMPTY):
            self._prepare(now)
        else:
            self._maybe_complete_join(now)

    def _prepare(self, now: float) -> None:
        if self.state is GroupState.COMPLETING_REBALANCE:
            self._fail_syncs(now, ErrorCode.rebalance_in_progress)
        self._to_sync.clear()
        timeout = self._roster.rebalance_timeout()
        if self.state is GroupState.EMPTY and self._initial_delay > 0:
            self._initial_left = max(timeout - self._initial_delay, 0.0)
            self._newcomer = False
            timeout = self._initial_delay
        self._join_until = now + timeout
        was_empty = self.state is GroupState.EMPTY
        self.state = GroupState.PREPARING_REBALANCE
        if was_empty:
            self._save()  # its offsets are in use from now on
        self._maybe_complete_join(now)

    def _maybe_complete_join(self, now: float) -> None:
        gathering = self.state is not GroupState.PREPARING_REBALANCE or self._initial_left is not None
        if not gathering and not self._promised_ids and self._roster.all_joined():
            self._complete_join(now)

    def _join_deadline(self, now: float) -> None:
        if self._initial_left and self._newcomer:
            delay = min(self._initial_delay, self._initial_left)
            self._initial_left -= delay
            self._newcomer = False
            self._join_until = now + delay
        else:
            self._complete_join(now)

    def _complete_join(self, now: float) -> None:
        """The members that have joined make the next generation."""
        self._initial_left = None
        self._saves.owes_rebalance = False
        for member in self._roster:
            if member.join_token is None and member.instance_id is None:
                self._roster.remove(member)
        if len(self._roster) and not self._roster.elect():
            self._join_until = now + self._roster.rebalance_timeout()  # absent static members may still come
            return
        self._generation.number = max(self._generation.number + 1, self._generation.lowest)
        if not len(self._roster):
            self.state = GroupState.EMPTY
            self._generation.protocol_name = None
            self._save()
            return
        self._generation.protocol_name = self._roster.choose_protocol()
        self.state = GroupState.COMPLETING_REBALANCE
        self._to_sync = {member.member_id for member in self._roster}
        self._sync_until = now + self._roster.rebalance_timeout()
        for member in self._roster:
            if member.join_token is not None:
                self._answers.complete_join(member)
                member.is_new = False
                member.touch(now)

    # -- syncing

    def sync(self, member: ClassicMember, request: SyncRequest, token: Token) -> None:
        """The member asks for its assignment; the leader brings all of them."""
        self._to_sync.discard(member.member_id)
        if self.state is GroupState.STABLE:
            self._outbox.reply(token, self._answers.assignment_of(member))
            return
        older = SyncAnswer(ErrorCode.rebalance_in_progress)
        self._answers.answer_sync(member, older)  # an older request of the same member
        member.sync_token = token
        if member.member_id == self._roster.leader_id and self._assignment_revision is None:
            for each in self._roster:
                each.assignment = request.assignments.get(each.member_id, b"")
            self._assignment_revision = self._save()

    def _complete_sync(self, now: float, code: ErrorCode) -> None:
        """The assignment was stored, or could not be."""
        if code is not ErrorCode.none:
            self._fail_syncs(now, code)
            self._prepare(now)
            return
        self._assignment_revision = None
        self.state = GroupState.STABLE
        for member in self._roster:
            if member.sync_token is not None:
                self._answers.answer_sync(member, self._answers.assignment_of(member))
                member.touch(now)

    def _fail_syncs(self, now: float, code: ErrorCode) -> None:
        self._assignment_revision = None
        for member in self._roster:
            if member.sync_token is not None:
                self._answers.answer_sync(member, SyncAnswer(code))
                member.touch(now)

    # -- saves and time

    def saved(self, now: float, revision: int, code: ErrorCode) -> None:
        """A save was stored, or failed with `code`."""
        self._saves.ended(revision, code)
        if self._assignment_revision == revision:
            self._complete_sync(now, code)

    def close(self, code: ErrorCode) -> None:
        """The group ends here: every request that waits is refused with `code`."""
        for member in self._roster:
            self._answers.refuse(member, code)
        self._outbox.refuse_all(code)
        self._assignment_revision = None
        self.state = GroupState.DEAD

    def tick(self, now: float) -> None:
        """Act on the deadlines of joining and syncing."""
        if self.state is GroupState.PREPARING_REBALANCE and now >= self._join_until:
            self._join_deadline(now)
        if self._to_sync and now >= self._sync_until:
            for member in [member for member in self._roster if member.member_id in self._to_sync]:
                self.remove(now, member)

    def deadlines(self) -> list[float]:
        """Return when joining and syncing have to be complete."""
        found = [self._join_until] if self.state is GroupState.PREPARING_REBALANCE else []
        return [*found, self._sync_until] if self._to_sync else found

    def _save(self) -> int:
        preparing = self.state is GroupState.PREPARING_REBALANCE
        return self._saves.save_gathering() if preparing else self._saves.save()


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
