"""Coordinates the groups that routing gives to this agent: clock, waiting requests and storage around group.py.

Place: between the handlers of group requests and the metastore's GroupApi.
Invariant: a group is kept only while this agent is its coordinator by routing, under the lease and
registration it was claimed with; whatever is stored carries the claim's epoch, so that a successor's
claim fences it. Saves of one group are stored in order; so are its offset commits.
If the process dies, the next coordinator claims the group and restores its last stored generation;
requests that waited here end with their connections, and clients send them to the successor.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import logging
import random
from collections.abc import Coroutine, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from kio.schema.errors import ErrorCode

from agent.cluster.view import ClusterView
from agent.groups import saved
from agent.groups.group import Group
from agent.groups.values import (
    Departure,
    Effect,
    JoinAnswer,
    JoinRequest,
    MemberRef,
    Save,
    SyncAnswer,
    SyncRequest,
)
from agent.protocol.errors import coordinator_error
from metastore.api import GroupApi
from metastore.values import CommittedOffset
from storage.clock import Clock
from storage.errors import FencedError, HeadraceError, OutcomeUnknownError

logger = logging.getLogger(__name__)

TICK_SECONDS = 0.05
"""How finely deadlines are kept."""
IDLE_SECONDS = 60.0
"""A group without members that nobody asked about is dropped from memory after this."""


@dataclass(slots=True, eq=False)
class _Coordinated:
    """A group that this agent has claimed."""

    group: Group
    epoch: int
    broker_epoch: int
    used_at: float
    wake_at: float | None = None
    saves: asyncio.Lock = field(default_factory=asyncio.Lock)
    commits: asyncio.Lock = field(default_factory=asyncio.Lock)


class GroupCoordinator:
    """All groups of this agent. Every answer carries a code; nothing raises for what clients can do."""

    def __init__(
        self, api: GroupApi, cluster: ClusterView, clock: Clock, rng: random.Random, *, initial_rebalance_delay_ms: int
    ) -> None:
        self._api = api
        self._cluster = cluster
        self._clock = clock
        self._rng = rng
        self._initial_delay = initial_rebalance_delay_ms / 1000
        self._groups: dict[str, _Coordinated] = {}
        self._loading: dict[str, asyncio.Task[_Coordinated | ErrorCode]] = {}
        self._deadlines: list[tuple[float, int, _Coordinated]] = []
        self._order = itertools.count()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._timer: asyncio.Task[None] | None = None
        self._routed_by = cluster.image

    async def join(self, group_id: str, request: JoinRequest) -> JoinAnswer:
        """Answered when the next generation is complete."""
        held = await self._coordinated(group_id)
        if isinstance(held, ErrorCode):
            return JoinAnswer(held, request.member.member_id)
        answer: asyncio.Future[JoinAnswer] = asyncio.get_running_loop().create_future()
        self._perform(held, held.group.join(self._clock.monotonic(), request, answer))
        return await answer

    async def sync(self, group_id: str, request: SyncRequest) -> SyncAnswer:
        """Answered when the leader's assignment is stored."""
        held = await self._coordinated(group_id)
        if isinstance(held, ErrorCode):
            return SyncAnswer(held)
        answer: asyncio.Future[SyncAnswer] = asyncio.get_running_loop().create_future()
        self._perform(held, held.group.sync(self._clock.monotonic(), request, answer))
        return await answer

    async def heartbeat(self, group_id: str, member: MemberRef) -> ErrorCode:
        """NONE while the member may go on."""
        held = await self._coordinated(group_id)
        return held if isinstance(held, ErrorCode) else held.group.heartbeat(self._clock.monotonic(), member)

    async def leave(self, group_id: str, members: Iterable[MemberRef]) -> list[Departure] | ErrorCode:
        """One departure per member, in order; a code when the group is not here."""
        held = await self._coordinated(group_id)
        if isinstance(held, ErrorCode):
            return held
        departures, effects = held.group.leave(self._clock.monotonic(), members)
        self._perform(held, effects)
        return departures

    async def commit_offsets(
        self, group_id: str, member: MemberRef, offsets: Sequence[CommittedOffset]
    ) -> list[bool] | ErrorCode:
        """Per position whether it was stored (False: its partition is gone); a code when none was."""
        held = await self._coordinated(group_id)
        if isinstance(held, ErrorCode):
            return held
        async with held.commits:
            code = held.group.check_commit(self._clock.monotonic(), member)
            if code is not ErrorCode.none or not offsets:
                return code if code is not ErrorCode.none else []
            try:
                return await self._api.commit_offsets(group_id, held.epoch, offsets)
            except FencedError:
                self._drop(held)
                return ErrorCode.not_coordinator
            except HeadraceError as error:
                logger.warning("offset commit failed: group=%s error=%s", group_id, error)
                return ErrorCode(coordinator_error(error))

    async def fetch_offsets(
        self, group_id: str, partition_keys: Sequence[int] | None
    ) -> list[CommittedOffset] | ErrorCode:
        """Stored positions, all when `partition_keys` is None; after every commit that came here before."""
        code = self._refusal(group_id)
        if code is not ErrorCode.none:
            return code
        held = self._groups.get(group_id)
        try:
            if held is None:
                return await self._api.fetch_offsets(group_id, partition_keys)
            async with held.commits:
                return await self._api.fetch_offsets(group_id, partition_keys)
        except HeadraceError as error:
            logger.warning("offset fetch failed: group=%s error=%s", group_id, error)
            return ErrorCode.coordinator_load_in_progress  # the one that consumers of any age ask again for

    async def close(self) -> None:
        """Let all groups go; whoever waits is told to look for the coordinator."""
        for held in list(self._groups.values()):
            self._drop(held)
        tasks = [*self._tasks, *self._loading.values(), *([self._timer] if self._timer else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # -- which groups are here

    async def _coordinated(self, group_id: str) -> _Coordinated | ErrorCode:
        """The group, claimed and restored if it was not here yet; a code when it is not this agent's."""
        code = self._refusal(group_id)
        held = self._groups.get(group_id)
        if held is not None and (code is not ErrorCode.none or held.broker_epoch != self._cluster.broker_epoch):
            self._drop(held)
            held = None
        if code is not ErrorCode.none:
            return code
        if held is None:
            if group_id not in self._loading:
                self._loading[group_id] = asyncio.create_task(self._load(group_id))
            return await asyncio.shield(self._loading[group_id])
        held.used_at = self._clock.monotonic()
        return held

    def _refusal(self, group_id: str) -> ErrorCode:
        coordinator = self._cluster.coordinator(group_id)
        if coordinator is None:
            return ErrorCode.coordinator_not_available
        return ErrorCode.none if coordinator.node_id == self._cluster.node_id else ErrorCode.not_coordinator

    async def _load(self, group_id: str) -> _Coordinated | ErrorCode:
        broker_epoch = self._cluster.broker_epoch
        try:
            epoch, data = await self._api.claim_group(group_id, self._cluster.node_id, broker_epoch)
            state = saved.decode(data)
        except OutcomeUnknownError:
            return ErrorCode.coordinator_not_available  # to claim again does no harm
        except HeadraceError as error:
            logger.warning("group not loaded: group=%s error=%s", group_id, error)
            return ErrorCode(coordinator_error(error))
        finally:
            del self._loading[group_id]
        code = self._refusal(group_id)
        if code is not ErrorCode.none:
            return code
        now = self._clock.monotonic()
        group = Group(group_id, self._rng, initial_rebalance_delay=self._initial_delay)
        if state is not None:
            group.restore(now, state)
        held = self._groups[group_id] = _Coordinated(group, epoch, broker_epoch, now)
        logger.info("group loaded: group=%s coordinator_epoch=%d members=%d", group_id, epoch, len(group.roster))
        self._schedule(held)
        return held

    def _drop(self, held: _Coordinated) -> None:
        if self._is_current(held):
            del self._groups[held.group.group_id]
            logger.info("group let go: group=%s coordinator_epoch=%d", held.group.group_id, held.epoch)
            self._perform(held, held.group.close(ErrorCode.not_coordinator))

    def _is_current(self, held: _Coordinated) -> bool:
        return self._groups.get(held.group.group_id) is held

    # -- what a group asks for

    def _perform(self, held: _Coordinated, effects: Iterable[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Save):
                self._spawn(self._save(held, effect))
            else:
                assert isinstance(effect.token, asyncio.Future)
                if not effect.token.done():  # the client may be gone
                    effect.token.set_result(effect.answer)
        if self._is_current(held):
            self._schedule(held)

    async def _save(self, held: _Coordinated, save: Save) -> None:
        async with held.saves:
            if not self._is_current(held):
                return
            code = ErrorCode.none
            try:
                await self._api.save_group(held.group.group_id, held.epoch, saved.encode(save.state))
            except FencedError:
                self._drop(held)
            except HeadraceError as error:
                logger.warning("group not saved: group=%s error=%s", held.group.group_id, error)
                code = ErrorCode.coordinator_not_available
        self._perform(held, held.group.saved(self._clock.monotonic(), save.revision, code))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # -- time

    def _schedule(self, held: _Coordinated) -> None:
        """Wake up for the group's next deadline. Heartbeats only postpone it: they need no call."""
        deadline = held.used_at + IDLE_SECONDS if held.group.is_idle() else held.group.next_deadline()
        if deadline is not None and (held.wake_at is None or deadline < held.wake_at):
            held.wake_at = deadline
            heapq.heappush(self._deadlines, (deadline, next(self._order), held))
        if self._timer is None:
            self._timer = asyncio.create_task(self._keep_time())

    async def _keep_time(self) -> None:
        while True:
            await self._clock.sleep(TICK_SECONDS)
            self._let_go_of_others_groups()
            now = self._clock.monotonic()
            while self._deadlines and self._deadlines[0][0] <= now:
                deadline, _, held = heapq.heappop(self._deadlines)
                if self._is_current(held) and deadline == held.wake_at:
                    held.wake_at = None
                    self._tick(held, now)

    def _tick(self, held: _Coordinated, now: float) -> None:
        busy = held.saves.locked() or held.commits.locked()
        if held.group.is_idle() and not busy and now - held.used_at >= IDLE_SECONDS:
            self._drop(held)
            return
        try:
            self._perform(held, held.group.tick(now))
        except Exception:
            logger.exception("group tick failed: group=%s", held.group.group_id)
            self._drop(held)  # its members find a coordinator that restores it; the other groups go on

    def _let_go_of_others_groups(self) -> None:
        """When agents came or went, or the own lease ran out: any one group shows that for all."""
        image = self._cluster.image
        sample = next(iter(self._groups), None)
        if sample is None or (image is self._routed_by and self._refusal(sample) is ErrorCode.none):
            return
        self._routed_by = image
        for group_id, held in list(self._groups.items()):
            if self._refusal(group_id) is not ErrorCode.none or held.broker_epoch != self._cluster.broker_epoch:
                self._drop(held)
