"""Drives a ClassicGroup manually: named members, answers by token, saves on demand."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable

from kio.schema.errors import ErrorCode

from headrace.agent.groups.classic.group import NO_LIMIT, ClassicGroup
from headrace.agent.groups.classic.saved import SavedGroup, decode, encode
from headrace.agent.groups.group_values import (
    Departure,
    GroupEffect,
    GroupState,
    JoinAnswer,
    JoinRequest,
    MemberProtocol,
    MemberRef,
    Reply,
    Save,
    SyncAnswer,
    SyncRequest,
)

RANGE = (MemberProtocol("range", b"range-subscription"),)


class Script:
    """A group with its clock, and every answer that it gave."""

    def __init__(
        self, *, initial_delay: float = 0.0, restored: SavedGroup | None = None, max_size: int = NO_LIMIT, seed: int = 1
    ) -> None:
        self.now = 0.0
        self.group = ClassicGroup("g", random.Random(seed), initial_rebalance_delay=initial_delay, max_size=max_size)
        self.answers: dict[int, object] = {}
        self.saves: list[Save] = []
        self._tokens = itertools.count()
        if restored is not None:
            self.perform(self.group.restore(self.now, restored))

    def join(
        self,
        member_id: str = "",
        instance_id: str | None = None,
        *,
        protocols: tuple[MemberProtocol, ...] = RANGE,
        protocol_type: str = "consumer",
        session: float = 10.0,
        rebalance: float = 60.0,
        id_required: bool = False,
        can_skip_assignment: bool = True,
    ) -> int:
        token = next(self._tokens)
        request = JoinRequest(
            MemberRef(member_id, instance_id),
            "client",
            "/127.0.0.1",
            session,
            rebalance,
            protocol_type,
            protocols,
            id_required,
            can_skip_assignment,
        )
        self.perform(self.group.join(self.now, request, token))
        return token

    def sync(
        self,
        member_id: str,
        assignments: dict[str, bytes] | None = None,
        *,
        generation: int | None = None,
        instance_id: str | None = None,
        protocol_name: str | None = None,
    ) -> int:
        token = next(self._tokens)
        ref = MemberRef(member_id, instance_id, self.group.generation if generation is None else generation)
        request = SyncRequest(ref, assignments or {}, None, protocol_name)
        self.perform(self.group.sync(self.now, request, token))
        return token

    def heartbeat(self, member_id: str, generation: int | None = None, instance_id: str | None = None) -> ErrorCode:
        generation = self.group.generation if generation is None else generation
        return self.group.heartbeat(self.now, MemberRef(member_id, instance_id, generation))

    def commit(self, member_id: str = "", generation: int = -1) -> ErrorCode:
        return self.group.check_commit(self.now, MemberRef(member_id, None, generation), 8)

    def leave(self, *refs: MemberRef) -> list[Departure]:
        departures, effects = self.group.leave(self.now, refs)
        self.perform(effects)
        return departures

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.perform(self.group.tick(self.now))

    def store(self, code: ErrorCode = ErrorCode.none) -> SavedGroup:
        """The oldest save ends; what it stored, as the next coordinator reads it."""
        save = self.saves.pop(0)
        self.perform(self.group.saved(self.now, save.revision, code))
        assert isinstance(save.state, SavedGroup)
        return decode(encode(save.state))

    def close(self) -> None:
        self.perform(self.group.close(ErrorCode.not_coordinator))

    def perform(self, effects: Iterable[GroupEffect]) -> None:
        for effect in effects:
            if isinstance(effect, Save):
                assert isinstance(effect.state, SavedGroup)
                if effect.state.gathering:  # no request waits for it
                    self.perform(self.group.saved(self.now, effect.revision, ErrorCode.none))
                else:
                    self.saves.append(effect)
            else:
                assert isinstance(effect, Reply)
                assert isinstance(effect.token, int)
                assert effect.token not in self.answers, "answered twice"
                self.answers[effect.token] = effect.answer

    def is_in(self, state: GroupState) -> bool:
        return self.group.state is state

    def joined(self, token: int) -> JoinAnswer:
        answer = self.answers[token]
        assert isinstance(answer, JoinAnswer)
        return answer

    def synced(self, token: int) -> SyncAnswer:
        answer = self.answers[token]
        assert isinstance(answer, SyncAnswer)
        return answer

    def stable(self, *instance_ids: str | None, **join: object) -> list[str]:
        """A stable group with a member per instance id (None: a dynamic one); their member ids, leader first."""
        known = [self.join("", instance_id, **join) for instance_id in instance_ids[:1]]  # type: ignore[arg-type]
        for instance_id in instance_ids[1:]:
            known.append(self.join("", instance_id, **join))  # type: ignore[arg-type]
            leader = self.joined(known[0])
            known[0] = self.join(leader.member_id, instance_ids[0], **join)  # type: ignore[arg-type]
            for position in range(1, len(known) - 1):
                known[position] = self.join(
                    self.joined(known[position]).member_id,
                    instance_ids[position],
                    **join,  # type: ignore[arg-type]
                )
        ids = [self.joined(token).member_id for token in known]
        for member_id, instance_id in zip(reversed(ids), reversed(instance_ids), strict=True):
            self.sync(member_id, {m: f"for {m}".encode() for m in ids}, instance_id=instance_id)
        self.store()
        return ids
