"""How a group gets from one generation to the next: the transitions under group.py. Pure.

Place: group.py takes requests and deadlines and calls these; nothing else does.
Invariant: in PreparingRebalance a member either waits with its join or is given until `_join_until`;
in CompletingRebalance the leader's assignment is stored before anybody gets it. Each transition
leaves its answers in `_effects`, in order.
If the process dies, the next coordinator restores the last stored generation (saved.py).
Source: Kafka's GroupCoordinator; KIP-134 (initial delay), KIP-345 (static members).
"""

from __future__ import annotations

import random

import msgspec
from kio.schema.errors import ErrorCode

from headrace.agent.groups.classic.roster import ClassicMember, ClassicRoster
from headrace.agent.groups.classic.saved import SavedGroup
from headrace.agent.groups.values import (
    GroupEffect,
    GroupState,
    JoinAnswer,
    JoinRequest,
    Reply,
    Save,
    SyncAnswer,
    Token,
)

NEW_MEMBER_JOIN_SECONDS = 300.0
"""A new member whose join waits longer is given up: its client has left or asks again."""
NO_LIMIT = 2**31 - 1
"""As many members as like to come."""


class Rebalancing:
    """State and transitions of one group."""

    def __init__(
        self, group_id: str, rng: random.Random, *, initial_rebalance_delay: float, max_size: int = NO_LIMIT
    ) -> None:
        self.group_id = group_id
        self.state = GroupState.EMPTY
        self.generation = 0
        self.protocol_type: str | None = None
        self.protocol_name: str | None = None
        self.roster = ClassicRoster()
        self._rng = rng
        self._initial_delay = initial_rebalance_delay
        self._max_size = max_size
        self._promised_ids: dict[str, float] = {}
        """Member ids that were handed out and not yet used, with the time when they lapse."""
        self._join_until = 0.0
        self._initial_left: float | None = None
        """While a group's first members gather: how much longer that may be put off. None: no such wait."""
        self._newcomer = False
        """Somebody joined since the gathering was put off last."""
        self._to_sync: set[str] = set()
        self._sync_until = 0.0
        self._revision = 0
        self._assignment_revision: int | None = None
        """The save that the members' sync requests wait for."""
        self._replies_after: list[tuple[int, Reply]] = []
        """Answers that wait for another save."""
        self._last_saved: SavedGroup | None = None
        """What the next coordinator would restore."""
        self._effects: list[GroupEffect] = []
        self._owes_rebalance = False
        """It was a consumer group before, and its members have not all joined it yet."""

    def _add(self, now: float, request: JoinRequest, member_id: str, token: Token) -> None:
        if not len(self.roster):
            self.protocol_type = request.protocol_type
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
        self.roster.add(member)
        self._newcomer = True
        self._save_incarnation(member)
        self._rejoin(now)

    def _update(self, now: float, member: ClassicMember, request: JoinRequest, token: Token) -> None:
        """The member wants to be in the next generation, maybe with another subscription."""
        member.update(request)
        self._answer_join(member, ErrorCode.rebalance_in_progress)  # an older request of the same member
        member.join_token = token
        self._rejoin(now)

    def _remove(self, now: float, member: ClassicMember) -> None:
        self._answer_join(member, ErrorCode.unknown_member_id)
        self._answer_sync(member, SyncAnswer(ErrorCode.unknown_member_id))
        self.roster.remove(member)
        self._to_sync.discard(member.member_id)
        self._rejoin(now)

    def _replace_static(
        self, now: float, member: ClassicMember, member_id: str, request: JoinRequest, token: Token
    ) -> None:
        """A static member was started again: its new incarnation takes its place, usually without a rebalance."""
        self._answer_join(member, ErrorCode.fenced_instance_id)
        self._answer_sync(member, SyncAnswer(ErrorCode.fenced_instance_id))
        previous_leader = self.roster.leader_id or ""
        if member.member_id in self._to_sync:
            self._to_sync = self._to_sync - {member.member_id} | {member_id}
        self.roster.rename(member, member_id)
        member.update(request)
        member.is_new = False
        member.touch(now)
        if self.state is not GroupState.STABLE or self.roster.choose_protocol() != self.protocol_name:
            member.join_token = token
            self._save_incarnation(member)
            self._rejoin(now)
            return
        leads = self.roster.leader_id == member_id
        if not request.can_skip_assignment:
            # Named as a follower, it does not compute an assignment that nobody would wait for.
            answer = self._generation_of(member, leader_id=previous_leader)
        else:
            answer = self._generation_of(member, with_members=leads, skip_assignment=leads)
        self._replies_after.append((self._save(), Reply(token, answer)))

    def _rejoin(self, now: float) -> None:
        """Somebody joined or went: start a rebalance, or see whether the one under way is complete."""
        if self.state in (GroupState.STABLE, GroupState.COMPLETING_REBALANCE, GroupState.EMPTY):
            self._prepare_rebalance(now)
        else:
            self._maybe_complete_join(now)

    def _prepare_rebalance(self, now: float) -> None:
        if self.state is GroupState.COMPLETING_REBALANCE:
            self._fail_syncs(now, ErrorCode.rebalance_in_progress)
        self._to_sync.clear()
        timeout = self.roster.rebalance_timeout()
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
        if not gathering and not self._promised_ids and self.roster.all_joined():
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
        """Whoever is here makes the next generation."""
        self._initial_left = None
        self._owes_rebalance = False
        for member in self.roster:
            if member.join_token is None and member.instance_id is None:
                self.roster.remove(member)
        if len(self.roster) and not self.roster.elect():
            self._join_until = now + self.roster.rebalance_timeout()  # absent static members may still come
            return
        self.generation += 1
        if not len(self.roster):
            self.state = GroupState.EMPTY
            self.protocol_name = None
            self._save()
            return
        self.protocol_name = self.roster.choose_protocol()
        self.state = GroupState.COMPLETING_REBALANCE
        self._to_sync = {member.member_id for member in self.roster}
        self._sync_until = now + self.roster.rebalance_timeout()
        for member in self.roster:
            if member.join_token is not None:
                leads = member.member_id == self.roster.leader_id
                answer = self._generation_of(member, with_members=leads)
                if member.incarnation_save is None:
                    self._reply(member.join_token, answer)
                else:
                    self._replies_after.append((member.incarnation_save, Reply(member.join_token, answer)))
                member.join_token = None
                member.is_new = False
                member.touch(now)

    def _complete_sync(self, now: float, code: ErrorCode) -> None:
        """The assignment was stored, or could not be."""
        if code is not ErrorCode.none:
            self._fail_syncs(now, code)
            self._prepare_rebalance(now)
            return
        self._assignment_revision = None
        self.state = GroupState.STABLE
        for member in self.roster:
            if member.sync_token is not None:
                self._answer_sync(member, self._assignment_of(member))
                member.touch(now)

    def _fail_syncs(self, now: float, code: ErrorCode) -> None:
        self._assignment_revision = None
        for member in self.roster:
            if member.sync_token is not None:
                self._answer_sync(member, SyncAnswer(code))
                member.touch(now)

    def _save(self) -> int:
        """Ask for the group to be stored as it is now; the save's revision."""
        state = self.snapshot()
        if self.state is GroupState.PREPARING_REBALANCE:
            state = msgspec.structs.replace(state, leader_id=None, members=[], gathering=True)
        return self._store(state)

    def _save_incarnation(self, member: ClassicMember) -> None:
        """A static member has another member id than the next coordinator would restore, before it is told.

        If the generation that it joins is never saved, it must not be taken for an impostor of itself:
        clients give up on FENCED_INSTANCE_ID.
        """
        last = self._last_saved
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

    def _incarnations_saved(self, revision: int, code: ErrorCode) -> None:
        for member in self.roster:
            if member.incarnation_save == revision:
                member.incarnation_save = None
                if code is not ErrorCode.none:
                    self._answer_join(member, code)

    def _store(self, state: SavedGroup) -> int:
        self._revision += 1
        self._last_saved = state
        self._effects.append(Save(self._revision, state))
        return self._revision

    def snapshot(self) -> SavedGroup:
        """The group as it is now, with everybody who is in it or about to be."""
        members = [member.saved() for member in self.roster]
        return SavedGroup(
            self.generation,
            self.protocol_type,
            self.protocol_name,
            self.roster.leader_id,
            members,
            owes_rebalance=self._owes_rebalance,
        )

    def _generation_of(
        self,
        member: ClassicMember,
        *,
        leader_id: str | None = None,
        with_members: bool = False,
        skip_assignment: bool = False,
    ) -> JoinAnswer:
        return JoinAnswer(
            ErrorCode.none,
            member.member_id,
            self.generation,
            self.protocol_type,
            self.protocol_name,
            leader_id if leader_id is not None else self.roster.leader_id or "",
            skip_assignment,
            self.roster.introduce(self.protocol_name) if with_members else (),
        )

    def _assignment_of(self, member: ClassicMember) -> SyncAnswer:
        return SyncAnswer(ErrorCode.none, member.assignment, self.protocol_type, self.protocol_name)

    def _answer_join(self, member: ClassicMember, code: ErrorCode) -> None:
        """Refuse the join that the member waits for, if any."""
        if member.join_token is not None:
            self._reply(member.join_token, JoinAnswer(code, member.member_id))
            member.join_token = None

    def _answer_sync(self, member: ClassicMember, answer: SyncAnswer) -> None:
        """Answer the sync that the member waits for, if any."""
        if member.sync_token is not None:
            self._reply(member.sync_token, answer)
            member.sync_token = None

    def _reply(self, token: Token, answer: JoinAnswer | SyncAnswer) -> None:
        self._effects.append(Reply(token, answer))

    def _drain(self) -> list[GroupEffect]:
        effects, self._effects = self._effects, []
        return effects
