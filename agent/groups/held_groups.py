"""The groups that this agent holds: claimed, restored, kept in time, stored, released. Of any kind.

Place: under classic/coordinator.py, consumer/coordinator.py and offsets/; above the metastore's GroupApi.
Invariant: a group is kept only while this agent is its coordinator by routing, under the lease and registration it was
claimed with. No other agent can claim it before this one released it or lost its lease, by a count that began before
the heartbeat was sent: so two agents never both answer from memory. All saves carry the claim's epoch, so that a
successor's claim fences those that are still on their way. Saves of one group are stored in order.
If the process crashes, the next coordinator claims the group once the lease ran out, and restores what was stored last;
requests that waited here end with their connections, and clients send them to the successor.
"""

from __future__ import annotations

import asyncio
import functools
import heapq
import itertools
import logging
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from typing import Any

from kio.schema.errors import ErrorCode

from headrace.agent.cluster.view import ClusterView
from headrace.agent.groups.claims import CLAIM_RETRY_SECONDS, CLAIM_WAIT_SECONDS, GroupClaims, Held, NewGroups
from headrace.agent.groups.coordinated import CoordinatedGroup, Restore
from headrace.agent.groups.group_memory import GroupMemory, MeasuredGroups
from headrace.agent.groups.group_values import Abandon, Become, GroupEffect, Reply, Save
from headrace.agent.groups.metrics import GroupMetrics
from headrace.agent.limits.work_slices import ELEMENT_UNITS, WorkSlices
from headrace.config.memory_budget import IDLE_GROUPS_BYTES
from headrace.metastore.api.groups import GroupClaim, GroupKind
from headrace.metastore.life.numbers import epoch_floor, life_of_number
from headrace.protocol.errors import coordinator_error
from headrace.storage.clock import Clock
from headrace.storage.errors import FencedError, HeadraceError
from headrace.storage.supervision import Supervisor

logger = logging.getLogger(__name__)

TICK_SECONDS = 0.05
"""How finely deadlines are kept."""
IDLE_SECONDS = 60.0
"""A group without members and without requests is released after this."""
GROUPS_MAX = 10_000
"""Above this number, or above IDLE_GROUPS_BYTES, the least recently used groups without members are released."""
RELEASED_AT_ONCE = 100
"""The number of groups that are released in one step."""


class HeldGroups:
    """All groups of this agent. Every answer carries a code; nothing raises for what clients can do."""

    def __init__(
        self,
        new_groups: NewGroups,
        cluster: ClusterView,
        clock: Clock,
        restore: Mapping[GroupKind | None, Restore],
        metrics: GroupMetrics,
        memory: GroupMemory,
        supervisor: Supervisor,
    ) -> None:
        """`restore` by the kind that was saved; None for a group of which nothing was."""
        self.api, self.rows = new_groups.api, new_groups.rows
        self._new_groups = new_groups
        self.cluster = cluster
        self._clock = clock
        self._restore = restore
        self._metrics = metrics
        self._claims = GroupClaims(self.api, cluster, clock, metrics)
        self.memory = memory
        self.measured = MeasuredGroups(memory)
        self._held: dict[str, Held] = {}
        self._loading: dict[str, asyncio.Task[Held | ErrorCode]] = {}
        self._to_release: dict[str, tuple[int, int]] = {}
        """Group id -> (coordinator epoch, broker epoch) of claims to be given back."""
        self._deadlines: list[tuple[float, int, Held]] = []
        self._order = itertools.count()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._timer: asyncio.Task[None] | None = None
        self._supervisor = supervisor
        self._image = cluster.image
        metrics.watch(lambda: [(held.group.kind.value, held.group.state_name) for held in self])

    def __iter__(self) -> Iterator[Held]:
        return iter(list(self._held.values()))

    def get(self, group_id: str) -> Held | None:
        """The group if it is in memory, even if another agent coordinates it by now."""
        return self._held.get(group_id)

    async def find(self, group_id: str) -> Held | ErrorCode:
        """The group, claimed and restored if it was not here yet; a code when it is not this agent's."""
        code = self.refusal(group_id)
        held = self._held.get(group_id)
        if held is not None and (code is not ErrorCode.none or held.broker_epoch != self.cluster.broker_epoch):
            self.drop(held)
            held = None
        if code is not ErrorCode.none:
            return code
        if held is None:
            loaded = await self._loaded(group_id)
            return loaded if isinstance(loaded, ErrorCode) else self._unless_lost(loaded)
        held.used_at = self._clock.monotonic()
        return held

    def lost(self, held: Held) -> ErrorCode:
        """Return NONE while this agent still coordinates the group; ask again after every wait."""
        if not self.is_current(held) or held.broker_epoch != self.cluster.broker_epoch:
            return ErrorCode.not_coordinator
        return self.refusal(held.group.group_id)

    def refusal(self, group_id: str) -> ErrorCode:
        """NONE where this agent coordinates the group, by routing and by its own lease."""
        coordinator = self.cluster.coordinator(group_id)
        if coordinator is None:
            return ErrorCode.coordinator_not_available
        return ErrorCode.none if coordinator.node_id == self.cluster.node_id else ErrorCode.not_coordinator

    def perform(self, held: Held, effects: Iterable[GroupEffect], *, is_quiet: bool = False) -> None:
        """Do what the group asks for. Tokens are the futures of requests that wait. `is_quiet`, of a heartbeat or a new
        image: if nothing is to be stored, the group uses as much memory as before, about.
        """
        is_same = is_quiet
        for effect in effects:
            is_same = is_same and isinstance(effect, Reply)
            if isinstance(effect, Save):
                self._spawn(self._save(held, held.group, effect))
            elif isinstance(effect, Abandon):
                self.drop(held)
            elif isinstance(effect, Become):
                restore = self._restore[effect.record.kind]
                self.replace(held, *restore(held.group.group_id, self._clock.monotonic(), effect.record))
            else:
                assert isinstance(effect.token, asyncio.Future)
                if not effect.token.done():  # the client may be gone
                    effect.token.set_result(effect.answer)
        self._note_state(held)
        if self.is_current(held):
            self.measured.note(held.group.group_id, is_same=is_same)
            self._schedule(held)

    def replace(self, held: Held, group: CoordinatedGroup, effects: Iterable[GroupEffect]) -> None:
        """The group continues as another one, of another kind; `effects` are the new one's."""
        self.perform(held, held.group.close(ErrorCode.rebalance_in_progress))
        group.epochs_from(epoch_floor(life_of_number(held.epoch)))
        held.group = group
        self.perform(held, effects)

    def drop(self, held: Held) -> None:
        """Release the group; NOT_COORDINATOR to the requests that wait."""
        if self.is_current(held):
            group_id = held.group.group_id
            del self._held[group_id]
            self.measured.forget(group_id)
            logger.info("group released: group=%s coordinator_epoch=%d", group_id, held.epoch)
            self._metrics.let_go.inc()
            self.perform(held, held.group.close(ErrorCode.not_coordinator))
            self._give_back(group_id, held.epoch, held.broker_epoch)

    def is_current(self, held: Held) -> bool:
        """Return whether it was not dropped."""
        return self._held.get(held.group.group_id) is held

    async def close(self) -> None:
        """Drop all groups. What could not be given back ends with this agent's registration."""
        for held in self:
            self.drop(held)
        tasks = [*self._tasks, *self._loading.values(), *([self._timer] if self._timer else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # -- claims

    async def _loaded(self, group_id: str) -> Held | ErrorCode:
        """Wait for the one load of the group that is in progress, for a limited time."""
        load = self._loading.get(group_id)
        if load is None:
            load = self._loading[group_id] = asyncio.create_task(self._load(group_id))
        patience = asyncio.ensure_future(self._clock.sleep(CLAIM_WAIT_SECONDS))
        try:
            await asyncio.wait((load, patience), return_when=asyncio.FIRST_COMPLETED)
        finally:
            patience.cancel()
        return load.result() if load.done() else ErrorCode.coordinator_not_available

    def _unless_lost(self, held: Held) -> Held | ErrorCode:
        code = self.lost(held)
        return held if code is ErrorCode.none else code

    async def _load(self, group_id: str) -> Held | ErrorCode:
        broker_epoch = self.cluster.broker_epoch
        try:
            if (code := await self._new_groups.refusal(group_id)) is not ErrorCode.none:
                return code
            claim = await self._claims.claim(group_id, broker_epoch)
            if isinstance(claim, ErrorCode):
                return claim
            code = self.refusal(group_id)
            if code is not ErrorCode.none or broker_epoch != self.cluster.broker_epoch:
                self._give_back(group_id, claim.coordinator_epoch, broker_epoch)
                return code if code is not ErrorCode.none else ErrorCode.not_coordinator
            return self._take(group_id, claim, broker_epoch)
        except HeadraceError as error:
            self._metrics.load_failed.inc()
            logger.warning("group not loaded: group=%s error=%s", group_id, error)
            return ErrorCode(coordinator_error(error))
        finally:
            del self._loading[group_id]
            if self._claims.has_doubts:
                self._start_timer()

    def _look_for_late_claims(self, now: float) -> None:
        for group_id in self._claims.to_look_at(now):
            if not (group_id in self._held or group_id in self._loading or group_id in self._to_release):
                self._loading[group_id] = asyncio.create_task(self._look_at(group_id))

    async def _look_at(self, group_id: str) -> ErrorCode:
        """Give back what a late claim took, of a group that is not here. Requests for the group wait meanwhile."""
        broker_epoch = self.cluster.broker_epoch
        try:
            claim = await self._claims.look(group_id, broker_epoch)
            if claim is not None:
                self._give_back(group_id, claim.coordinator_epoch, broker_epoch)
            return ErrorCode.coordinator_not_available
        finally:
            del self._loading[group_id]

    def _take(self, group_id: str, claim: GroupClaim, broker_epoch: int) -> Held:
        now = self._clock.monotonic()
        record = claim.record
        group, effects = self._restore[None if record is None else record.kind](group_id, now, record)
        group.epochs_from(epoch_floor(life_of_number(claim.coordinator_epoch)))
        if len(self._held) >= GROUPS_MAX or self.memory.idle_bytes > IDLE_GROUPS_BYTES:
            self._drop_idle()
        is_empty = record is None or record.is_empty
        held = Held(group, claim.coordinator_epoch, broker_epoch, now, group.state_name, is_empty)
        self._held[group_id] = held
        self._metrics.loaded.inc()
        logger.info(
            "group loaded: group=%s coordinator_epoch=%d state=%s", group_id, claim.coordinator_epoch, group.state_name
        )
        self.perform(held, effects)
        return held

    def _drop_idle(self) -> None:
        """Make room for groups, if some have no members and no work in progress."""
        idle = (held for held in self if held.group.is_idle() and not held.saves.locked() and not held.commits.locked())
        for held in heapq.nsmallest(RELEASED_AT_ONCE, idle, key=lambda held: held.used_at):
            self.drop(held)

    def _sizes(self, group_id: str) -> Mapping[str, int]:
        held = self._held.get(group_id)
        return {} if held is None else held.group.sizes()

    def _give_back(self, group_id: str, epoch: int, broker_epoch: int) -> None:
        if not self._to_release:
            self._spawn(self._release())
        self._to_release[group_id] = (epoch, broker_epoch)

    async def _release(self) -> None:
        """Release the groups; repeat it until the metastore has confirmed it. A claim of an older registration is
        void already.
        """
        while self._to_release:
            claims = {
                group_id: epoch
                for group_id, (epoch, broker_epoch) in self._to_release.items()
                if broker_epoch == self.cluster.broker_epoch
            }
            given = dict(self._to_release)
            try:
                await self.api.release_groups(claims)
            except HeadraceError as error:
                logger.warning("groups not given back: groups=%d error=%s", len(claims), error)
                await self._clock.sleep(CLAIM_RETRY_SECONDS)
                continue
            for group_id, claim in given.items():
                if self._to_release[group_id] == claim:
                    del self._to_release[group_id]

    # -- saves

    async def _save(self, held: Held, group: CoordinatedGroup, save: Save) -> None:
        async with held.saves:
            if not self.is_current(held) or held.group is not group:
                return
            code = ErrorCode.none
            try:
                code = await self._before_members(held, group, save) or await self._store(held, group, save)
            except FencedError:
                self._metrics.saves_failed.inc()
                self.drop(held)
            except HeadraceError as error:
                self._metrics.saves_failed.inc()
                logger.warning("group not saved: group=%s error=%s", group.group_id, error)
                code = ErrorCode.coordinator_not_available
        if held.group is group:
            self.perform(held, group.saved(self._clock.monotonic(), save.revision, code))

    async def _before_members(self, held: Held, group: CoordinatedGroup, save: Save) -> ErrorCode:
        """NONE once the group may have members, if this is its first: maybe after seconds, for a link's source."""
        if held.is_empty and group.keeps_offsets and not save.state.record().is_empty:
            return await self._new_groups.may_have_members(group.group_id)
        return ErrorCode.none

    async def _store(self, held: Held, group: CoordinatedGroup, save: Save) -> ErrorCode:
        async with self.memory.storing:
            if not self.is_current(held) or held.group is not group:
                return ErrorCode.not_coordinator
            record = save.state.record()
            await self.api.save_group(group.group_id, held.epoch, record)
            held.is_empty = record.is_empty
            return ErrorCode.none

    def _note_state(self, held: Held) -> None:
        if held.group.state_name != held.state_name:
            held.state_name = held.group.state_name
            self._metrics.state_changes.labels(held.group.kind.value, held.state_name).inc()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # -- time

    def _schedule(self, held: Held) -> None:
        """Wake up for the group's next deadline. Heartbeats only postpone it: they need no call."""
        deadline = held.used_at + IDLE_SECONDS if held.group.is_idle() else held.group.next_deadline()
        if deadline is not None and (held.wake_at is None or deadline < held.wake_at):
            held.wake_at = deadline
            heapq.heappush(self._deadlines, (deadline, next(self._order), held))
        self._start_timer()

    def _start_timer(self) -> None:
        if self._timer is None:
            self._timer = self._supervisor.keep("deadlines of groups", self._keep_time)

    async def _keep_time(self) -> None:
        while True:
            await self._clock.sleep(TICK_SECONDS)
            self._let_go_of_others_groups()
            self.measured.measure(self._sizes)
            now = self._clock.monotonic()
            self._look_for_late_claims(now)
            await self._follow_metadata(now)
            while self._deadlines and self._deadlines[0][0] <= now:
                deadline, _, held = heapq.heappop(self._deadlines)
                if self.is_current(held) and deadline == held.wake_at:
                    held.wake_at = None
                    self._tick(held, now)

    def _tick(self, held: Held, now: float) -> None:
        busy = held.saves.locked() or held.commits.locked()
        if held.group.is_idle() and not busy and now - held.used_at >= IDLE_SECONDS:
            self.drop(held)
        else:
            self._guarded(held, functools.partial(held.group.tick, now))

    async def _follow_metadata(self, now: float) -> None:
        image = self.cluster.image
        if image is not self._image:
            self._image = image
            slices = WorkSlices()
            for held in self:
                if held.group.kind is GroupKind.CLASSIC or not self.is_current(held):
                    continue  # members of classic groups watch their topics themselves
                self._guarded(held, functools.partial(held.group.metadata_changed, now, image), is_quiet=True)
                await slices.did(ELEMENT_UNITS)

    def _guarded(self, held: Held, step: Callable[[], list[GroupEffect]], *, is_quiet: bool = False) -> None:
        try:
            self.perform(held, step(), is_quiet=is_quiet)
        except Exception:
            logger.exception("group dropped: group=%s", held.group.group_id)
            self.drop(held)  # its members find a coordinator that restores it; the other groups continue

    def _let_go_of_others_groups(self) -> None:
        """Release groups that other agents coordinate, when agents came or went or the own lease ran out."""
        oldest = next(iter(self._held.values()), None)
        have_changed = self.cluster.image.agents is not self._image.agents
        if oldest is None or (not have_changed and self.lost(oldest) is ErrorCode.none):
            return
        for group_id, held in list(self._held.items()):
            if self.refusal(group_id) is not ErrorCode.none or held.broker_epoch != self.cluster.broker_epoch:
                self.drop(held)
