"""A group of the classic protocol: a pure state machine.

Place: a CoordinatedGroup; coordinator.py and held_groups.py own clock, waiting requests and storage. Every
method takes the time and returns what is to be done now (values.GroupEffect), in order. Its parts:
    roster.py         the members, and the member ids that were handed out and not used yet
    rebalance.py      the state, the way from one generation to the next, who is let in and under which member id
    effects.py        what members are answered, and what is stored
    ../outbox.py      answers that wait for saves
Invariant: a generation has one leader; in a stable generation every member has one assignment, and
it was stored before any member learned it; every token gets one answer, also if its member goes.
Assignments and subscriptions are opaque bytes, so cooperative assignors need nothing special.
If the process crashes, the next coordinator restores the last stored generation (saved.py).
Source: Kafka's group protocol; KIP-62 (rebalance timeout), KIP-345 (static members), KIP-394
(member ids first), KIP-814 (skip assignment).
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable, Mapping

from kio.schema.errors import ErrorCode

from headrace.agent.groups.classic.effects import ClassicSaves, Generation, MemberAnswers
from headrace.agent.groups.classic.rebalance import Joining, Rebalance
from headrace.agent.groups.classic.roster import ClassicMember, ClassicRoster, PromisedIds
from headrace.agent.groups.classic.saved import SavedGroup, subscribed_topics
from headrace.agent.groups.group_memory import PROMISED_BYTES, group_bytes, sizes_of_group
from headrace.agent.groups.group_values import (
    Departure,
    DescribedMember,
    GroupDescription,
    GroupEffect,
    GroupState,
    JoinRequest,
    MemberProtocol,
    MemberRef,
    SyncAnswer,
    SyncRequest,
    Token,
)
from headrace.agent.groups.outbox import Outbox
from headrace.agent.limits.client_memory import text_bytes
from headrace.metastore.api.groups import GroupKind
from headrace.metastore.log.image import MetadataImage

NO_LIMIT = 2**31 - 1
"""The absence of a limit on members."""


class ClassicGroup:
    """One group: its requests, its deadlines, and what became of its saves."""

    keeps_offsets = True

    def __init__(
        self, group_id: str, rng: random.Random, *, initial_rebalance_delay: float, max_size: int = NO_LIMIT
    ) -> None:
        self.group_id = group_id
        self.roster = ClassicRoster()
        self._generation = Generation()
        self._promised_ids = PromisedIds()
        self._outbox = Outbox()
        self._answers = MemberAnswers(self.roster, self._generation, self._outbox)
        self._saves = ClassicSaves(self.roster, self._generation, self._answers, self._outbox)
        self._rebalance = Rebalance(
            self.roster,
            self._generation,
            self._promised_ids,
            self._answers,
            self._saves,
            self._outbox,
            initial_delay=initial_rebalance_delay,
        )
        self._joining = Joining(
            self.roster,
            self._generation,
            self._promised_ids,
            self._answers,
            self._rebalance,
            self._outbox,
            rng,
            max_size=max_size,
        )

    @property
    def kind(self) -> GroupKind:
        return GroupKind.CLASSIC

    @property
    def classic_protocol(self) -> ClassicGroup:
        return self

    @property
    def state(self) -> GroupState:
        return self._rebalance.state

    @property
    def state_name(self) -> str:
        return self.state.value

    def epochs_from(self, lowest: int) -> None:
        """The next generation's number is at least this."""
        self._generation.lowest = lowest

    @property
    def generation(self) -> int:
        return self._generation.number

    def generation_by(self, topics: object) -> int:
        """See CoordinatedGroup: its members watch the topics."""
        return self.generation

    @property
    def protocol_type(self) -> str | None:
        return self._generation.protocol_type

    # -- requests

    def join(self, now: float, request: JoinRequest, token: Token) -> list[GroupEffect]:
        """A member wants to be in the next generation; its answer may come much later."""
        self._joining.join(now, request, token)
        return self._outbox.drain()

    def sync(self, now: float, request: SyncRequest, token: Token) -> list[GroupEffect]:
        """A member of the new generation asks for its assignment; the leader brings all of them."""
        member = self._find(request.member)
        if not isinstance(member, ClassicMember):
            self._outbox.reply(token, SyncAnswer(member))
        elif not self._speaks(request):
            self._outbox.reply(token, SyncAnswer(ErrorCode.inconsistent_group_protocol))
        elif self.state is GroupState.PREPARING_REBALANCE:
            self._outbox.reply(token, SyncAnswer(ErrorCode.rebalance_in_progress))
        else:
            member.touch(now)
            self._rebalance.sync(member, request, token)
        return self._outbox.drain()

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
        return departures, self._outbox.drain()

    def check_commit(self, now: float, ref: MemberRef, version: int, keys: Collection[int] = ()) -> ErrorCode:
        """Return whether an offset commit that names this member and generation is to be stored."""
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

    def check_fetch(self, ref: MemberRef) -> ErrorCode:
        """Classic members may read committed offsets at any time."""
        return ErrorCode.none

    def describe(self) -> GroupDescription:
        """Describe the group for admin tools."""
        stable = self.state is GroupState.STABLE
        protocol_name = self._generation.protocol_name
        members = tuple(
            DescribedMember(
                member.member_id,
                member.instance_id,
                member.client_id,
                member.client_host,
                member.metadata(protocol_name) if stable else b"",
                member.assignment if stable else b"",
            )
            for member in self.roster
        )
        shown_name = (protocol_name or "") if stable else ""
        return GroupDescription(self.state_name, self.protocol_type or "", shown_name, members)

    def subscribed_topics(self) -> frozenset[str] | None:
        """Return the topics of all members' subscriptions, by the protocol that they agreed on; None while there is
        none, or it is not Kafka's.
        """
        protocol_name = self._generation.protocol_name
        if protocol_name is None:
            return None
        return subscribed_topics(self.protocol_type, [member.metadata(protocol_name) for member in self.roster])

    # -- what happens without a request

    def metadata_changed(self, now: float, image: MetadataImage) -> list[GroupEffect]:
        """Members watch their topics themselves."""
        return []

    def tick(self, now: float) -> list[GroupEffect]:
        """Act on every deadline that has passed."""
        for member_id in self._promised_ids.lapsed(now):
            self._promised_ids.take(member_id)
            self._rebalance.promise_ended(now)
        for member in self.roster:
            if member.can_expire() and now >= member.expires_at:
                self._rebalance.remove(now, member)
        self._rebalance.tick(now)
        return self._outbox.drain()

    def next_deadline(self) -> float | None:
        """Return when `tick` has something to do; None: never, unless something happens."""
        deadlines = [member.expires_at for member in self.roster if member.can_expire()]
        deadlines += self._rebalance.deadlines()
        lapse = self._promised_ids.next_deadline()
        return min(deadlines if lapse is None else [*deadlines, lapse], default=None)

    def is_idle(self) -> bool:
        """No member is in it or about to be."""
        return self.state is GroupState.EMPTY and not self._promised_ids

    def sizes(self) -> Mapping[str, int]:
        """See CoordinatedGroup."""
        own = group_bytes(self.group_id, self.protocol_type)
        sizes = sizes_of_group(own, ((member.client_host, member.size_bytes()) for member in self.roster))
        for address, member_id in self._promised_ids.addresses():
            sizes[address] += PROMISED_BYTES + text_bytes(member_id)
        return sizes

    def member_bytes(self, member_id: str) -> int:
        """See CoordinatedGroup."""
        member = self.roster.get(member_id)
        return 0 if member is None else member.size_bytes()

    def saved(self, now: float, revision: int, code: ErrorCode) -> list[GroupEffect]:
        """A Save was stored, or failed with `code`: answer the requests that waited for it."""
        self._rebalance.saved(now, revision, code)
        return self._outbox.drain()

    def deleted(self) -> None:
        """See CoordinatedGroup."""

    def close(self, code: ErrorCode) -> list[GroupEffect]:
        """This agent coordinates the group no more: every request that waits is refused with `code`."""
        self._rebalance.close(code)
        return self._outbox.drain()

    # -- what is stored

    def snapshot(self) -> SavedGroup:
        """The group as it is now, with every member that is in it or about to be."""
        return self._saves.snapshot()

    def restore(self, now: float, state: SavedGroup) -> list[GroupEffect]:
        """Continue with the last coordinator's last generation, with fresh sessions."""
        self._saves.restored(state)
        self._generation.number = state.generation
        self._generation.protocol_type, self._generation.protocol_name = state.protocol_type, state.protocol_name
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
        self._rebalance.restore(now, owes_rebalance=state.owes_rebalance, gathering=state.gathering)
        return self._outbox.drain()

    # -- insides

    def _find(self, ref: MemberRef) -> ClassicMember | ErrorCode:
        """The member of this generation, or why the request is refused."""
        if self.state is GroupState.DEAD:
            return ErrorCode.not_coordinator
        member = self.roster.find(ref)
        if isinstance(member, ClassicMember) and ref.generation != self.generation:
            return ErrorCode.illegal_generation
        return member

    def _speaks(self, request: SyncRequest) -> bool:
        names = (None, self._generation.protocol_name)
        return request.protocol_type in (None, self.protocol_type) and request.protocol_name in names

    def _leave(self, now: float, ref: MemberRef) -> ErrorCode:
        if self.state is GroupState.DEAD:
            return ErrorCode.not_coordinator
        if self._promised_ids.take(ref.member_id):
            self._rebalance.promise_ended(now)
            return ErrorCode.none
        static = None if ref.member_id else self.roster.static_member(ref.instance_id)
        member = static or self.roster.find(ref)
        if not isinstance(member, ClassicMember):
            return member
        self._rebalance.remove(now, member)
        return ErrorCode.none
