"""Decides who gets which records of a share group: one turn for each ShareFetch or ShareAcknowledge of its members.

Place: at the group's coordinator. agent/fetch/share asks it, on this agent or over a link (peers/share_turns.py).
A turn applies acknowledgements, stores them, then acquires records, or waits for some.
Invariant: a record is acquired only from a state that is stored, by the group's holder under its lease, and for a
client that is still there. A turn says that an acknowledgement was applied only after it is stored. What a client had
acquired is free when its connection or its session ends, unless the member has come by another connection since.
If this process is killed before an answer, the client does not know whether its acknowledgements are stored: the next
owner does, and delivers the records again if they are not.
Source: KIP-932.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from functools import partial

import msgspec
from kio.schema.errors import ErrorCode

from headrace.agent.groups.claims import Held
from headrace.agent.groups.group_memory import NO_ADDRESS
from headrace.agent.groups.held_groups import HeldGroups
from headrace.agent.groups.share.answered import AnsweredShares
from headrace.agent.groups.share.group import ShareGroup
from headrace.agent.groups.share.group_partitions import GroupPartitions, ShareLogs, ShareWaiter
from headrace.agent.groups.share.in_flight import AckBatch
from headrace.agent.groups.share.metrics import ShareMetrics
from headrace.agent.groups.share.rules import ShareGroupRules
from headrace.agent.groups.share.share_memory import MemberConnections, Ref, ShareMemory
from headrace.agent.groups.share.share_partition import Acquired, SharePartition, end_of
from headrace.agent.limits.work_slices import WorkSlices
from headrace.agent.peers.share_turns import (
    VERSION,
    PartitionAsk,
    PartitionTurn,
    ShareTurn,
    TurnAnswer,
    decode_turn,
    encode,
)
from headrace.metastore.api.read import ReadableEnds
from headrace.protocol.errors import error_code
from headrace.protocol.request import ClientConnection, CloseConnection, Request, Response
from headrace.storage.clock import Clock
from headrace.storage.errors import HeadraceError

logger = logging.getLogger(__name__)

LOOK_AGAIN = 1 << 40
RANGE_UNITS = 4
"""What a range or a type costs that an acknowledgement looks at, in units of WorkSlices."""
NOT_OWNER = ErrorCode.not_leader_or_follower
"""Members ask again after they looked for the leader, which every agent can be."""


class ShareOwner:
    """All share groups that this agent holds. Every answer carries codes; nothing raises for what clients can do."""

    def __init__(
        self,
        groups: HeldGroups,
        clock: Clock,
        rules: ShareGroupRules,
        answered: AnsweredShares,
        metrics: ShareMetrics,
        memory: ShareMemory,
        logs: ShareLogs | None = None,
    ) -> None:
        """`memory`: limits on what is remembered. `logs`: what share groups read; None: no turn is served."""
        self._metrics, self.memory, self.logs = metrics, memory, logs
        self._groups, self._cluster, self._clock = groups, groups.cluster, clock
        self._rules, self.answered = rules, answered
        self._owned: dict[str, GroupPartitions] = {}
        self._waiting: dict[str, dict[ShareWaiter, None]] = {}
        """By group, in order of arrival."""
        self._connections = MemberConnections(self.memory, self._release)
        self._first = 0
        metrics.watch(self._partitions_in_use)

    async def handle(self, request: Request) -> Response:
        """Serve a turn that another agent forwards. CloseConnection for one that comes from a client."""
        if not request.connection.is_forwarded or request.api_version != VERSION:
            raise CloseConnection("share turn: not from an agent")
        return Response([encode(await self.turn(decode_turn(request.body), request.connection))])

    async def turn(self, turn: ShareTurn, client: ClientConnection) -> TurnAnswer:
        """Take one turn for a client of this agent, or of the agent that forwards it."""
        asked_at = self._clock.monotonic()
        owned = await self._find(turn.group_id)
        if isinstance(owned, ErrorCode):
            return TurnAnswer(owned)
        keys = [each.key for each in turn.partitions]
        assert self.logs is not None
        try:
            codes = await owned.ready(keys, self.logs)
        except HeadraceError as error:
            logger.warning("share group not loaded: group=%s error=%s", turn.group_id, error)
            return TurnAnswer(error_code(error))
        if owned.is_over:
            return TurnAnswer(NOT_OWNER)
        self._give_back(owned, turn, client)
        ack_codes = await self._acknowledge(owned, turn)
        if turn.closes:
            self._release(self._connections.end_session(client, turn.group_id, turn.member_id))
        if applied := [key for key, code in ack_codes.items() if code is ErrorCode.none]:
            ack_codes |= dict.fromkeys(await owned.not_stored(applied), NOT_OWNER)
        wanted = [each.key for each in turn.partitions if each.wants and each.key not in codes]
        acquired: dict[int, list[Acquired]] = {}
        if wanted and not turn.closes and turn.max_records > 0 and not owned.is_over:
            member_id, wanted = self._connections.note(client, turn.group_id, turn.member_id, wanted)
            turn, began = msgspec.structs.replace(turn, member_id=member_id), self._clock.monotonic()
            acquired = await self._acquire_or_wait(owned, turn, client, wanted, codes)
            self._metrics.acquire(len(wanted), acquired.values(), self._clock.monotonic() - began)
        elif owned.is_over:
            codes = dict.fromkeys(keys, NOT_OWNER)
        self._measure(owned.group)
        return self._answer(owned, turn, codes, ack_codes, acquired, self._clock.monotonic() - asked_at)

    # -- the group

    async def _find(self, group_id: str) -> GroupPartitions | ErrorCode:
        """The group's partitions; a code when this agent does not own them, or it is no share group."""
        if not self._rules.is_offered:
            return ErrorCode.unsupported_version
        held = await self._groups.find(group_id)
        if isinstance(held, ErrorCode):
            return NOT_OWNER
        if not isinstance(held.group, ShareGroup):
            return ErrorCode.group_id_not_found
        return self.partitions_of(held, held.group)

    def partitions_of(self, held: Held, group: ShareGroup) -> GroupPartitions:
        """The partitions of a group that this agent holds."""
        owned = self._owned.get(group.group_id)
        if owned is None or owned.held is not held or owned.group is not group:
            owned = self._owned[group.group_id] = GroupPartitions(held, group, self._groups, self._clock, self._metrics)
            group.on_freed, group.on_deleted = partial(self._freed, group), partial(self.forget, owned)
            group.on_gone = partial(self._gone, owned)
        return owned

    def drop(self, owned: GroupPartitions) -> None:
        """Let the group go: it is restored from what is stored."""
        self._groups.drop(owned.held)

    def _partitions_in_use(self) -> list[SharePartition]:
        """Called on another thread, while groups come and go."""
        return [each for owned in list(self._owned.values()) for each in list(owned.group.partitions.values())]

    def forget(self, owned: GroupPartitions, keys: Collection[int] | None = None) -> None:
        """What the group had done in these partitions, or in all, was deleted on demand: no restore loses it."""
        for key in list(owned.states) if keys is None else keys:
            owned.states.pop(key, None)
        self.answered.forget(owned.group.group_id, keys)

    def record_answered(self) -> None:
        """Begin to write to the bucket what members were answered: Postgres may have lost it, or will be gone."""
        self.answered.record(state for owned in self._owned.values() for state in owned.states.values())

    def life_begins(self) -> None:
        """A life of the metastore begins: what is in memory may be of records that it never had."""
        self.record_answered()
        for owned in list(self._owned.values()):
            self._groups.drop(owned.held)

    def _freed(self, group: ShareGroup) -> None:
        """Records became available, or the group ended."""
        if group.is_dead:
            owned = self._owned.get(group.group_id)
            if owned is not None and owned.group is group:
                del self._owned[group.group_id]
                self.answered.note_released(owned.states.values())
                self.memory.measured(group.group_id, NO_ADDRESS, 0)
        else:
            self._measure(group)
        for waiter in list(self._waiting.get(group.group_id, ())):
            waiter.hear(LOOK_AGAIN)

    def _measure(self, group: ShareGroup) -> None:
        owned = self._owned.get(group.group_id)
        if owned is not None and owned.group is group:
            ranges = sum(len(each.ranges) for each in group.partitions.values())
            self.memory.measured(group.group_id, group.address, ranges)

    def _gone(self, owned: GroupPartitions, keys: Iterable[int]) -> None:
        """Partitions were removed: what the group had done there is of no use, and its memory is free."""
        for key in keys:
            owned.states.pop(key, None)
        self._measure(owned.group)
        self._changed(owned)

    def _is_lost(self, owned: GroupPartitions) -> bool:
        return owned.is_over or self._groups.lost(owned.held) is not ErrorCode.none

    # -- acknowledgements

    async def _acknowledge(self, owned: GroupPartitions, turn: ShareTurn) -> dict[int, ErrorCode]:
        """Return a code for each partition that has acknowledgements. Between partitions other turns may run."""
        codes: dict[int, ErrorCode] = {}
        slices, limits = WorkSlices(), owned.group.configs().limits
        may_grow = self.memory.has_room(owned.group.address)
        for each in turn.partitions:
            partition = owned.group.partitions.get(each.key)
            if not each.acks:
                continue
            if partition is None:
                codes[each.key] = ErrorCode.unknown_topic_or_partition
                continue
            batches = [AckBatch(first, last, types) for first, last, types in each.acks]
            units, now = len(partition.ranges) + sum(len(batch.types) for batch in batches), self._clock.monotonic()
            codes[each.key] = partition.acknowledge(now, turn.member_id, batches, limits, may_grow=may_grow)
            if codes[each.key] is ErrorCode.none:
                self._metrics.acknowledge(batches)
            await slices.did(RANGE_UNITS * units)
        if codes and not owned.is_over:
            self._changed(owned)
        return codes

    def _give_back(self, owned: GroupPartitions, turn: ShareTurn, client: ClientConnection) -> None:
        """Late returns free nothing: the member has the records again by another connection. Aborted ones are done, and
        offsets without a record, if it was this claim that gave them: another life of the metastore may have records
        there.
        """
        returned: defaultdict[tuple[int, bool], list[tuple[int, int]]] = defaultdict(list)
        for each in turn.returned:
            returned[each.key, each.is_done].append((each.first, each.last))
        for (key, is_done), ranges in returned.items():
            partition = owned.group.partitions.get(key)
            is_late = self._connections.get((turn.group_id, turn.member_id, key)) is not client
            if partition is None:
                continue
            if is_done and turn.claim == owned.held.epoch:
                partition.are_holes(turn.member_id, ranges)
            elif is_done or not is_late:
                partition.give_back(turn.member_id, ranges, is_done=is_done)
        if turn.returned:
            self._changed(owned)

    def _changed(self, owned: GroupPartitions) -> None:
        """Deadlines moved, and records may be available."""
        self._groups.perform(owned.held, [])
        self._freed(owned.group)

    # -- acquisitions

    async def _acquire_or_wait(
        self,
        owned: GroupPartitions,
        turn: ShareTurn,
        client: ClientConnection,
        wanted: Sequence[int],
        codes: dict[int, ErrorCode],
    ) -> dict[int, list[Acquired]]:
        """Return what was acquired, as soon as there is something. Adds to `codes`."""
        assert self.logs is not None
        deadline = self._clock.monotonic() + turn.max_wait_ms / 1000
        acquired = await self._acquire(owned, turn, client, wanted, codes)
        if acquired or not self._may_wait(owned, client, deadline, wanted, codes):
            return acquired
        with self.logs.watch(wanted) as waiter:
            waiting = self._waiting.setdefault(turn.group_id, {})
            waiting[waiter] = None
            try:
                while True:
                    waiter.reset()
                    acquired = await self._acquire(owned, turn, client, wanted, codes)
                    if acquired or not self._may_wait(owned, client, deadline, wanted, codes):
                        return acquired
                    await waiter.wait(1, self._clock, deadline - self._clock.monotonic())
            finally:
                waiting.pop(waiter, None)
                if not waiting and self._waiting.get(turn.group_id) is waiting:
                    del self._waiting[turn.group_id]

    def _may_wait(
        self,
        owned: GroupPartitions,
        client: ClientConnection,
        deadline: float,
        wanted: Iterable[int],
        codes: dict[int, ErrorCode],
    ) -> bool:
        assert self.logs is not None
        if self.logs.is_draining or client.closed or self._is_lost(owned) or any(key in codes for key in wanted):
            return False
        return self._clock.monotonic() < deadline

    async def _acquire(
        self,
        owned: GroupPartitions,
        turn: ShareTurn,
        client: ClientConnection,
        wanted: Sequence[int],
        codes: dict[int, ErrorCode],
    ) -> dict[int, list[Acquired]]:
        """Acquire what there is now. From the last await on nothing can change before it is done."""
        assert self.logs is not None
        group, configs = owned.group, owned.group.configs()
        offsets = {key: group.partitions[key].end for key in wanted if key in group.partitions}
        ends = await self.logs.ends(offsets, committed=configs.read_committed)
        self._first += 1
        known = [key for key in _rotated(wanted, self._first) if isinstance(ends.get(key), ReadableEnds)]
        self._expire(owned, known, ends)
        if unstored := owned.unstored(known):
            await owned.store(unstored)
        if self._is_lost(owned):
            codes |= dict.fromkeys(wanted, NOT_OWNER)
            return {}
        codes |= {key: code for key, code in ends.items() if isinstance(code, ErrorCode)}
        if client.closed:
            return {}
        left, acquired, now = turn.max_records, dict[int, list[Acquired]](), self._clock.monotonic()
        stale, is_sparing = set(owned.unstored(known)), not self.memory.has_room(group.address)
        for key in known:
            end, partition = ends[key], group.partitions.get(key)
            if partition is None or left <= 0 or key in stale or not isinstance(end, ReadableEnds):
                continue
            if now >= (partition.next_deadline() or now + 1):
                continue  # it expired while others were stored: the next turn stores that first
            how = {"takes_batches": turn.takes_batches, "is_sparing": is_sparing}
            got = partition.acquire(now, turn.member_id, end.end, left, configs.limits, **how)
            if got:
                acquired[key] = got
                left -= sum(each.records for each in got)
        if acquired:
            self._groups.perform(owned.held, [])
        return acquired

    def _expire(self, owned: GroupPartitions, keys: Iterable[int], ends: dict[int, ReadableEnds | ErrorCode]) -> None:
        now, attempts = self._clock.monotonic(), owned.group.configs().limits.attempts
        for key in keys:
            end, partition = ends[key], owned.group.partitions.get(key)
            if partition is not None and isinstance(end, ReadableEnds):
                partition.expire(now, attempts)
                partition.log_start_moved(end.start)

    # -- clients that go

    def _release(self, refs: Iterable[Ref]) -> None:
        """Release what members acquired by a connection, or in a session, that has ended."""
        freed: dict[str, GroupPartitions] = {}
        for group_id, member_id, key in refs:
            owned = self._owned.get(group_id)
            partition = None if owned is None else owned.group.partitions.get(key)
            if owned is None or partition is None:
                continue
            if partition.release(member_id, owned.group.configs().limits.attempts):
                freed[group_id] = owned
        for owned in freed.values():
            self._changed(owned)

    def _answer(
        self,
        owned: GroupPartitions,
        turn: ShareTurn,
        codes: dict[int, ErrorCode],
        ack_codes: dict[int, ErrorCode],
        acquired: dict[int, list[Acquired]],
        waited: float,
    ) -> TurnAnswer:
        """Return it with what was acquired just now, after `waited` seconds."""
        configs, left = owned.group.configs(), turn.max_records
        ends = {}
        for key, got in acquired.items():
            ends[key] = end_of(got, left)
            left -= sum(each.records for each in got)

        def one(ask: PartitionAsk) -> PartitionTurn:
            ranges = [(each.first, each.last, each.tries) for each in acquired.get(ask.key, ())]
            error, ack_error = codes.get(ask.key, ErrorCode.none), ack_codes.get(ask.key, ErrorCode.none)
            return PartitionTurn(ask.key, error, ack_error, ranges, ends.get(ask.key, 0))

        return TurnAnswer(
            partitions=list(map(one, turn.partitions)),
            lock_ms=int(configs.limits.lock_seconds * 1000),
            read_committed=configs.read_committed,
            waited_ms=int(waited * 1000),
            claim=owned.held.epoch,
        )


def _rotated(keys: Sequence[int], first: int) -> list[int]:
    """Begin with another one each time, so that each gets its turn."""
    at = first % len(keys) if keys else 0
    return [*keys[at:], *keys[:at]]
