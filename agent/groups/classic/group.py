"""A consumer group of the classic protocol: a pure state machine.

Place: a CoordinatedGroup; coordinator.py and held_groups.py own clock, waiting requests and storage. Every
method takes the time and returns what is to be done now (values.Effect), in order.
Invariant: a generation has one leader; in a stable generation every member has one assignment, and
it was stored before anybody was told; every token gets one answer, whatever happens to its member.
Assignments and subscriptions are opaque bytes, so cooperative assignors need nothing special.
If the process dies, the next coordinator restores the last stored generation (saved.py).
Source: Kafka's group protocol; KIP-62 (rebalance timeout), KIP-345 (static members), KIP-394
(member ids first), KIP-814 (skip assignment).
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable

from kio.schema.errors import ErrorCode

from headrace.agent.groups.classic.rebalance import Rebalancing
from headrace.agent.groups.classic.roster import ClassicMember
from headrace.agent.groups.classic.saved import SavedGroup
from headrace.agent.groups.classic.subscriptions import subscribed_topics
from headrace.agent.groups.values import (
    Departure,
    DescribedMember,
    GroupDescription,
    GroupEffect,
    GroupState,
    JoinAnswer,
    JoinRequest,
    MemberProtocol,
    MemberRef,
    SyncAnswer,
    SyncRequest,
    Token,
)
from headrace.metastore.api.groups import GroupKind
from headrace.metastore.log.image import MetadataImage


class ClassicGroup(Rebalancing):
    """One group: its requests, its deadlines, and what became of its saves."""

    def join(self, now: float, request: JoinRequest, token: Token) -> list[GroupEffect]:
        """A member wants to be in the next generation; its answer may come much later."""
        code = self._join_refusal(request)
        if code is not ErrorCode.none:
            self._reply(token, JoinAnswer(code, request.member.member_id))
        elif request.member.member_id:
            self._join_known(now, request, token)
        else:
            self._join_unknown(now, request, token)
        return self._drain()

    def sync(self, now: float, request: SyncRequest, token: Token) -> list[GroupEffect]:
        """A member of the new generation asks for its assignment; the leader brings everybody's."""
        member = self._find(request.member)
        if isinstance(member, ClassicMember):
            self._sync_member(now, member, request, token)
        else:
            self._reply(token, SyncAnswer(member))
        return self._drain()

    def heartbeat(self, now: float, ref: MemberRef) -> ErrorCode:
        """REBALANCE_IN_PROGRESS asks the member to join again."""
        member = self._find(ref)
        if not isinstance(member, ClassicMember):
            return member
        member.touch(now)
        rejoin = self.state is GroupState.PREPARING_REBALANCE
        return ErrorCode.rebalance_in_progress if rejoin else ErrorCode.none

    def leave(self, now: float, refs: Iterable[MemberRef]) -> tuple[list[Departure], list[GroupEffect]]:
        """Members leave, or an admin removes them (static ones by instance id alone)."""
        departures = [Departure(ref, self._leave(now, ref)) for ref in refs]
        return departures, self._drain()

    def check_commit(self, now: float, ref: MemberRef, version: int) -> ErrorCode:
        """Whether an offset commit that names this member and generation is to be stored."""
        if self.state is GroupState.EMPTY:
            if ref.generation < 0:
                return ErrorCode.none  # a consumer that assigns itself, or an admin
            if not self.generation:
                return ErrorCode.illegal_generation  # of a group that is no more
        member = self._find(ref)
        if not isinstance(member, ClassicMember):
            return member
        if self.state is GroupState.COMPLETING_REBALANCE:
            return ErrorCode.rebalance_in_progress
        member.touch(now)
        return ErrorCode.none

    def tick(self, now: float) -> list[GroupEffect]:
        """Act on every deadline that has passed."""
        for member_id in [m for m, lapses in self._promised_ids.items() if now >= lapses]:
            del self._promised_ids[member_id]
            self._maybe_complete_join(now)
        for member in self.roster:
            if member.can_expire() and now >= member.expires_at:
                self._remove(now, member)
        if self.state is GroupState.PREPARING_REBALANCE and now >= self._join_until:
            self._join_deadline(now)
        if self._to_sync and now >= self._sync_until:
            for member in [member for member in self.roster if member.member_id in self._to_sync]:
                self._remove(now, member)
        return self._drain()

    def saved(self, now: float, revision: int, code: ErrorCode) -> list[GroupEffect]:
        """A Save was stored, or failed with `code`: answer who waited for it."""
        self._incarnations_saved(revision, code)
        waiting, self._replies_after = self._replies_after, []
        for after, reply in waiting:
            if after != revision:
                self._replies_after.append((after, reply))
            else:
                self._effects.append(reply if code is ErrorCode.none else reply._replace(answer=JoinAnswer(code, "")))
        if self._assignment_revision == revision:
            self._complete_sync(now, code)
        return self._drain()

    def close(self, code: ErrorCode) -> list[GroupEffect]:
        """This agent coordinates the group no more: everybody who waits is told `code`."""
        for member in self.roster:
            self._answer_join(member, code)
            self._answer_sync(member, SyncAnswer(code))
        for _, reply in self._replies_after:
            self._reply(reply.token, JoinAnswer(code, ""))
        self._replies_after = []
        self._assignment_revision = None
        self.state = GroupState.DEAD
        return self._drain()

    def restore(self, now: float, state: SavedGroup) -> list[GroupEffect]:
        """Carry on where the last coordinator's last generation stood, with fresh sessions."""
        self._last_saved = state
        self.generation = state.generation
        self.protocol_type, self.protocol_name = state.protocol_type, state.protocol_name
        for saved in state.members:
            member = ClassicMember(
                saved.member_id,
                saved.instance_id,
                saved.client_id,
                saved.client_host,
                saved.session_timeout,
                saved.rebalance_timeout,
                tuple(MemberProtocol(name, metadata) for name, metadata in saved.protocols),
                now + saved.session_timeout,
                saved.assignment,
            )
            self.roster.add(member)
        self.roster.leader_id = state.leader_id
        self.state = GroupState.STABLE if state.members else GroupState.EMPTY
        if state.owes_rebalance:
            self._owes_rebalance = True
            self._save()
            self._prepare_rebalance(now)
        if state.gathering:
            self._save()  # those who gathered join again, or are gone: from now on it is empty
        return self._drain()

    @property
    def kind(self) -> GroupKind:
        return GroupKind.CLASSIC

    @property
    def state_name(self) -> str:
        return self.state.value

    def check_fetch(self, ref: MemberRef) -> ErrorCode:
        """Classic members may read whenever they like."""
        return ErrorCode.none

    def describe(self) -> GroupDescription:
        """For admin tools."""
        stable = self.state is GroupState.STABLE
        members = tuple(
            DescribedMember(
                member.member_id,
                member.instance_id,
                member.client_id,
                member.client_host,
                member.metadata(self.protocol_name) if stable else b"",
                member.assignment if stable else b"",
            )
            for member in self.roster
        )
        protocol_name = (self.protocol_name or "") if stable else ""
        return GroupDescription(self.state_name, self.protocol_type or "", protocol_name, members)

    def subscribed_topics(self) -> frozenset[str] | None:
        """Of all members, by the protocol that they agreed on; None while there is none, or it is not Kafka's."""
        if self.protocol_name is None:
            return None
        return subscribed_topics(self.protocol_type, [member.metadata(self.protocol_name) for member in self.roster])

    def metadata_changed(self, now: float, image: MetadataImage) -> list[GroupEffect]:
        """Members watch their topics themselves."""
        return []

    def next_deadline(self) -> float | None:
        """When `tick` has something to do; None: never, unless something happens."""
        deadlines = [member.expires_at for member in self.roster if member.can_expire()]
        deadlines += self._promised_ids.values()
        if self.state is GroupState.PREPARING_REBALANCE:
            deadlines.append(self._join_until)
        if self._to_sync:
            deadlines.append(self._sync_until)
        return min(deadlines, default=None)

    def is_idle(self) -> bool:
        """Nobody is in it or about to be."""
        return self.state is GroupState.EMPTY and not self._promised_ids

    # -- insides

    def _find(self, ref: MemberRef) -> ClassicMember | ErrorCode:
        """The member of this generation, or why the request is refused."""
        if self.state is GroupState.DEAD:
            return ErrorCode.not_coordinator
        member = self.roster.find(ref)
        if isinstance(member, ClassicMember) and ref.generation != self.generation:
            return ErrorCode.illegal_generation
        return member

    def _join_refusal(self, request: JoinRequest) -> ErrorCode:
        if self.state is GroupState.DEAD:
            return ErrorCode.not_coordinator
        if not request.protocol_type or not request.protocols:
            return ErrorCode.inconsistent_group_protocol
        static = self.roster.static_member(request.member.instance_id)
        own_id = static.member_id if static is not None else request.member.member_id
        if self._is_full(own_id):
            return ErrorCode.group_max_size_reached
        if len(self.roster) and (
            request.protocol_type != self.protocol_type or not self.roster.agrees(request.protocols, besides=own_id)
        ):
            return ErrorCode.inconsistent_group_protocol
        return ErrorCode.none

    def _is_full(self, member_id: str) -> bool:
        """Between generations those count who came: of too many, as after a lower limit, the quickest get in."""
        if self.state is GroupState.EMPTY:
            return False
        if self.state is GroupState.PREPARING_REBALANCE:
            came = {member.member_id for member in self.roster if member.join_token is not None}
            return member_id not in came and len(came) >= self._max_size
        return member_id not in self.roster and len(self.roster) >= self._max_size

    def _join_unknown(self, now: float, request: JoinRequest, token: Token) -> None:
        instance_id = request.member.instance_id
        unique = uuid.UUID(int=self._rng.getrandbits(128), version=4)
        member_id = f"{request.client_id if instance_id is None else instance_id}-{unique}"
        static = self.roster.static_member(instance_id)
        if static is not None:
            self._replace_static(now, static, member_id, request, token)
        elif instance_id is None and request.id_required:
            self._promised_ids[member_id] = now + request.session_timeout
            self._reply(token, JoinAnswer(ErrorCode.member_id_required, member_id))
        else:
            self._add(now, request, member_id, token)

    def _join_known(self, now: float, request: JoinRequest, token: Token) -> None:
        member_id = request.member.member_id
        if self._promised_ids.pop(member_id, None) is not None:
            self._add(now, request, member_id, token)
            return
        member = self.roster.find(request.member)
        if not isinstance(member, ClassicMember):
            self._reply(token, JoinAnswer(member, member_id))
            return
        leads = member_id == self.roster.leader_id
        same = member.protocols == request.protocols
        if self.state is GroupState.COMPLETING_REBALANCE and same:
            member.touch(now)  # it missed the answer to its last join
            self._reply(token, self._generation_of(member, with_members=leads))
        elif self.state is GroupState.STABLE and same and not leads:
            member.touch(now)
            self._reply(token, self._generation_of(member))
        else:
            self._update(now, member, request, token)  # a leader joins again when what it assigns has changed

    def _sync_member(self, now: float, member: ClassicMember, request: SyncRequest, token: Token) -> None:
        if not self._speaks(request):
            self._reply(token, SyncAnswer(ErrorCode.inconsistent_group_protocol))
            return
        if self.state is GroupState.PREPARING_REBALANCE:
            self._reply(token, SyncAnswer(ErrorCode.rebalance_in_progress))
            return
        member.touch(now)
        self._to_sync.discard(member.member_id)
        if self.state is GroupState.STABLE:
            self._reply(token, self._assignment_of(member))
            return
        self._answer_sync(member, SyncAnswer(ErrorCode.rebalance_in_progress))  # an older request of the same member
        member.sync_token = token
        if member.member_id == self.roster.leader_id and self._assignment_revision is None:
            for each in self.roster:
                each.assignment = request.assignments.get(each.member_id, b"")
            self._assignment_revision = self._save()

    def _speaks(self, request: SyncRequest) -> bool:
        return request.protocol_type in (None, self.protocol_type) and request.protocol_name in (
            None,
            self.protocol_name,
        )

    def _leave(self, now: float, ref: MemberRef) -> ErrorCode:
        if self.state is GroupState.DEAD:
            return ErrorCode.not_coordinator
        if self._promised_ids.pop(ref.member_id, None) is not None:
            self._maybe_complete_join(now)
            return ErrorCode.none
        static = None if ref.member_id else self.roster.static_member(ref.instance_id)
        member = static or self.roster.find(ref)
        if not isinstance(member, ClassicMember):
            return member
        self._remove(now, member)
        return ErrorCode.none
