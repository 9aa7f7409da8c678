"""The controller of a process with that role: active in one process, standby in all others.

Place: two tasks, with four rounds each per controller.lease.ms: one acquires and renews the
lease, the other does the work, so that slow work cannot cost the lease. Standbys follow the log, so that a new active
controller has the state of the previous one: all state is in the log.
The active controller hides agents that are gone, fences agents with expired leases, completes reassignments,
removes expired delegation tokens and emptied partitions, aborts late transactions, writes snapshots and truncates the
log. Clients do not see it.
Invariant: every action is fenced by the controller epoch in SQL, so a controller that was paused and resumes
after a takeover changes nothing. It considers itself active only until its lease, counted from before
the request was sent, has expired. After a crash, a standby takes over within the lease; at once if it finds that the
process is gone (agent_links.py, decisions/0044). A step that fails is left out for a while (storage/supervision.py). If
whole rounds fail, the role is resigned and not taken for ABSTAIN_SECONDS: a lease without work is worse than none.
Source: KIP-631, the controller; Postgres replaces the Raft quorum.
"""

from __future__ import annotations

import asyncio
import logging
import random
import uuid
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Protocol

from headrace.agent.cluster.agent_links import AgentLinks, Connect, open_link
from headrace.agent.cluster.consumer_lag import ConsumerLags
from headrace.agent.cluster.controller_metrics import ControllerMetrics
from headrace.agent.cluster.controller_times import TURNS_PER_LEASE, ControllerTimes
from headrace.agent.cluster.follower import MetadataFollower
from headrace.agent.cluster.partition_removal import PartitionRemover, RemovalApi
from headrace.agent.cluster.setting_agreement import SettingRecorder, SettingRecorderApi
from headrace.agent.cluster.split_boundaries import BoundaryApi, SplitBoundaries
from headrace.agent.cluster.topic_halvings import TopicHalvings
from headrace.agent.cluster.transaction_ends import TransactionEnds
from headrace.metastore.api.agents import METADATA_FORMAT
from headrace.metastore.api.cluster import ClusterApi
from headrace.metastore.api.controller import ControllerApi, ControllerLease
from headrace.metastore.api.halvings import HalvingStepApi
from headrace.metastore.api.jobs import JobSchedule
from headrace.metastore.api.metadata_log import MetadataRecord, StoredSnapshot
from headrace.metastore.api.reports import JobCount
from headrace.metastore.log.delegation_tokens import expired_tokens
from headrace.metastore.log.features import SCRAM_KEYS_FORMAT
from headrace.metastore.log.image import AgentImage, MetadataImage
from headrace.metastore.log.kip631_records import FeatureLevelRecord
from headrace.metastore.log.reassignment import completions
from headrace.metastore.log.snapshot import encode_snapshot, load_snapshot
from headrace.storage.clock import Clock
from headrace.storage.errors import CorruptError, FencedError, HeadraceError, OutcomeUnknownError, RetryableError
from headrace.storage.supervision import Supervisor

logger = logging.getLogger(__name__)

CONTACTS_PER_SESSION = 3
"""How often the active controller calls for fencing although no agent is silent: its call is a contact. If nothing was
heard for half a session, the metastore takes that for an outage."""
SNAPSHOT_CHECK_SECONDS = 30.0
SCHEDULE_SECONDS = 30.0
"""Pause between checks that the periodic jobs exist and that workers take jobs."""
TRUNCATED_ROWS = 10_000
FAILED_ROUNDS_MAX = 3
"""Rounds in a row that fail by an error of this process, before it resigns. An outage of the metastore is none."""
ABSTAIN_SECONDS = 60.0
"""Time after that in which the process does not ask for the lease, so that another one can take it."""
ROUNDS = "controller rounds"


class ControllerMetastore(
    ClusterApi, ControllerApi, SettingRecorderApi, RemovalApi, BoundaryApi, HalvingStepApi, Protocol
):
    """The metastore operations that a controller needs."""

    async def schedule_jobs(self, controller_epoch: int, schedules: Sequence[JobSchedule]) -> None:
        """See metastore.api.jobs.JobApi."""

    async def count_jobs(self) -> list[JobCount]:
        """See metastore.api.jobs.JobApi."""


class Controller:
    """One candidate, from `start` to `stop`. `node_id` is read in each round, because a leased id may change."""

    def __init__(
        self,
        api: ControllerMetastore,
        follower: MetadataFollower,
        times: Callable[[], ControllerTimes],
        *,
        node_id: Callable[[], int],
        clock: Clock,
        rng: random.Random,
        metrics: ControllerMetrics,
        schedules: Callable[[MetadataImage], Sequence[JobSchedule]] | None = None,
        connect: Connect = open_link,
        listener: str | None = None,
        lags: ConsumerLags | None = None,
        transactions: TransactionEnds | None = None,
        supervisor: Supervisor | None = None,
    ) -> None:
        """`times`: as they are now. `schedules`: the periodic jobs of a cluster; None: none are scheduled here.
        `listener`: inter.broker.listener.name, for the links to agents. `lags`: None if they are not exported.
        `transactions`: None if none are ended. `supervisor`: the process's; None: a separate one."""
        self._api = api
        self._follower = follower
        self._times = times
        self._node_id = node_id
        self._clock = clock
        self._metrics = metrics
        self._incarnation_id = uuid.UUID(int=rng.getrandbits(128), version=4)
        self._lease: ControllerLease | None = None
        self._active_until = 0.0
        self._held_until = 0.0
        """Until then another controller keeps the lease, as the metastore answered."""
        self._asked = asyncio.Event()
        """A round has begun, and the lease was asked for."""
        self._granted_ms = times().granted_ms
        self._schedules = schedules
        self._settings = SettingRecorder(api, clock)
        self._remover = PartitionRemover(api, follower, clock)
        self._boundaries = SplitBoundaries(api, follower, clock)
        self._halvings = TopicHalvings(api, follower, clock)
        self._next_contact = self._next_snapshot_check = 0.0
        self._passwords_seen = 0
        self._snapshot_end = -1
        """Where the newest snapshot ended when this process looked last."""
        self._next_schedule = 0.0
        self._lags = lags
        self._transactions = transactions
        self._supervisor = supervisor or Supervisor(clock)
        self._links = AgentLinks(self._on_gone, clock, connect, listener, self._supervisor)
        self._failed_rounds = 0
        self._abstains_until = 0.0
        self._tasks: list[asyncio.Task[None]] = []
        self._snapshotting: asyncio.Task[bool] | None = None

    @property
    def is_active(self) -> bool:
        """Whether no other controller can have taken over yet."""
        return self._lease is not None and self._lease.is_own and self._clock.monotonic() < self._active_until

    @property
    def active_id(self) -> int:
        """The active controller's node id as of the last round; -1 if unknown."""
        return -1 if self._lease is None else self._lease.controller_id

    def start(self) -> None:
        """Try to acquire the lease from now on."""
        self._tasks = [
            self._supervisor.keep("controller lease", self._keep_asking),
            self._supervisor.keep(ROUNDS, self._keep_working),
        ]

    async def stop(self) -> None:
        """Release the lease. Safe in any state."""
        tasks = [*self._tasks, *([] if self._snapshotting is None else [self._snapshotting])]
        for task in tasks:
            task.cancel()
        lags = [] if self._lags is None else [self._lags.close()]
        await asyncio.gather(*tasks, self._links.close(), *lags, return_exceptions=True)
        if self._lease is not None and self._lease.is_own:
            try:
                await self._api.resign_controller(self._lease.controller_epoch)
            except HeadraceError as error:
                logger.warning("cannot release the lease, it expires instead: error=%s", error)
        self._become(None)

    async def _keep_asking(self) -> None:
        """Rounds begin here. Work that takes longer than a round delays no renewal."""
        while True:
            await self._attempt(self._hold_lease)
            self._asked.set()
            await self._clock.sleep(min(self._times().lease_ms / TURNS_PER_LEASE, self._granted_ms / 2) / 1000)

    async def _keep_working(self) -> None:
        while True:
            await self._asked.wait()
            self._asked.clear()
            if await self._attempt(self._work):
                self._failed_rounds = 0
                self._supervisor.succeeded(ROUNDS)
            await self._supervisor.attempt("agent links", self._keep_links)

    async def _keep_links(self) -> None:
        self._links.keep(self._linked())

    async def _attempt(self, turn: Callable[[], Awaitable[None]]) -> bool:
        try:
            await turn()
        except (FencedError, RetryableError, OutcomeUnknownError) as error:
            logger.warning("controller round failed: active=%s error=%s", self.is_active, error)
        except Exception as error:  # what no other process can be blamed for
            self._supervisor.failed(ROUNDS, error)
            self._failed_rounds += 1
            if self._failed_rounds >= FAILED_ROUNDS_MAX and self._lease is not None and self._lease.is_own:
                await self._abstain(self._lease)
        else:
            return True
        return False

    async def _abstain(self, lease: ControllerLease) -> None:
        """Let another process have the role; this one continues with everything else."""
        logger.error("controller resigns, its rounds fail: rounds=%d seconds=%d", self._failed_rounds, ABSTAIN_SECONDS)
        self._abstains_until = self._clock.monotonic() + ABSTAIN_SECONDS
        self._failed_rounds = 0
        self._active_until = 0.0
        self._become(None)
        try:
            await self._api.resign_controller(lease.controller_epoch)
        except HeadraceError as error:
            logger.warning("cannot release the lease, it expires instead: error=%s", error)

    async def _hold_lease(self) -> None:
        sent_at = self._clock.monotonic()
        if sent_at < self._abstains_until:
            return
        if sent_at < self._held_until and self._linked():
            return  # the active one's agent is a member, so it has not resigned; if its process ends, the link says so
        lease = await self._api.hold_controller_lease(self._node_id(), self._incarnation_id, self._times().granted_ms)
        self._take(lease, sent_at)

    def _take(self, lease: ControllerLease, sent_at: float) -> None:
        self._active_until = sent_at + lease.lease_ms / 1000
        self._held_until = sent_at + lease.remaining_ms / 1000
        self._granted_ms = lease.lease_ms
        self._become(lease)

    async def _work(self) -> None:
        """An action with a stale epoch is refused (FencedError); the next lease round finds the new controller."""
        lease, is_active = self._lease, self.is_active
        if self._lags is not None:
            await self._supervisor.attempt("consumer lag", partial(self._show_lags, self._lags, is_active))
        if lease is not None and is_active:
            await self._act(lease.controller_epoch)
        else:
            await self._follow()
        if self._transactions is not None:
            step = partial(self._transactions.step, lease is not None and is_active)
            await self._supervisor.attempt("late transactions", step)

    async def _act(self, epoch: int) -> None:
        """Do one round of the active controller. Without the first two steps it is none; of the others, one that
        fails holds up none.
        """
        await self._fence_silent(epoch)
        image = await self._follow()
        for name, step in (
            ("due records", lambda: self._append_due(epoch, image)),
            ("settings of the cluster", lambda: self._settings.record(epoch, image)),
            ("partition removal", lambda: self._remover.step(epoch)),
            ("split boundaries", lambda: self._boundaries.step(epoch)),
            ("topic halvings", lambda: self._halvings.step(epoch)),
            ("metadata snapshots", lambda: self._keep_snapshots(epoch)),
            ("job schedules", lambda: self._keep_schedules(epoch, image)),
        ):
            await self._supervisor.attempt(name, step)

    async def _show_lags(self, lags: ConsumerLags, is_active: bool) -> None:
        lags.step(is_active)

    async def _follow(self) -> MetadataImage:
        """The image at the end that the log had when the lease was asked for, or a later one."""
        image = self._follower.image
        before = image.offset
        if self._lease is None or self._lease.metadata_head != before:
            image = await self._follower.catch_up()
        self._metrics.lag.set(max(image.offset - before, 0))
        return image

    async def _fence_silent(self, epoch: int) -> None:
        now, session_ms = self._clock.monotonic(), self._times().session_timeout_ms
        if now < self._next_contact and self._lease is not None and not self._lease.has_silent:
            return
        fenced = await self._api.fence_silent_agents(epoch, session_timeout_ms=session_ms)
        self._next_contact = now + session_ms / 1000 / CONTACTS_PER_SESSION
        if fenced:
            logger.warning("fenced silent agents: node_ids=%s controller_epoch=%d", fenced, epoch)

    def _linked(self) -> list[AgentImage]:
        """The agents to keep a link to: all others for the active controller, the active one's for a standby."""
        lease, agents = self._lease, self._follower.image.agents
        if lease is None:
            return []
        linked = agents.values() if lease.is_own else filter(None, [agents.get(lease.controller_id)])
        return [agent for agent in linked if agent.member and agent.node_id != self._node_id()]

    async def _on_gone(self, agent: AgentImage) -> None:
        """The agent's process is gone: hide it, as the active controller or as the successor of one that is gone."""
        is_abstaining = self._clock.monotonic() < self._abstains_until
        lease = self._lease
        if lease is not None and not lease.is_own and lease.controller_id == agent.node_id and not is_abstaining:
            await self._succeed(lease)
        if self._lease is None or not self._lease.is_own:
            return
        epoch, timeout_ms = self._lease.controller_epoch, self._times().session_timeout_ms
        if await self._api.hide_agent(epoch, agent.node_id, agent.broker_epoch, session_timeout_ms=timeout_ms):
            logger.warning("hid an agent that is gone: node_id=%d controller_epoch=%d", agent.node_id, epoch)
            self._metrics.hidden.inc()

    async def _succeed(self, gone: ControllerLease) -> None:
        sent_at = self._clock.monotonic()
        lease = await self._api.succeed_controller(
            self._node_id(), self._incarnation_id, self._times().granted_ms, gone.controller_epoch
        )
        self._take(lease, sent_at)

    async def _append_due(self, epoch: int, image: MetadataImage) -> None:
        """Append changes caused by time and other agents. If the log changed, the next round decides again."""
        expired = expired_tokens(image, self._clock.wall_ms())
        due: list[MetadataRecord] = [*completions(image), *expired, *await self._repeated_level(image)]
        if not due:
            return
        appended = await self._api.append_records(image.offset, due, controller_epoch=epoch)
        logger.info("appended due records: records=%d tokens=%d appended=%s", len(due), len(expired), appended)

    async def _repeated_level(self, image: MetadataImage) -> list[MetadataRecord]:
        """A record that changes nothing, so that a second snapshot can follow the first: see _log_has_passwords."""
        if self._snapshot_end != image.offset or not await self._log_has_passwords(image):
            return []
        self._next_snapshot_check = 0.0
        levels = image.features[METADATA_FORMAT]
        return [
            FeatureLevelRecord(
                name=METADATA_FORMAT, min_feature_level=levels.min_level, max_feature_level=levels.max_level
            )
        ]

    async def _keep_schedules(self, epoch: int, image: MetadataImage) -> None:
        now = self._clock.monotonic()
        if self._schedules and now >= self._next_schedule:
            await self._api.schedule_jobs(epoch, self._schedules(image))
            self._metrics.show_jobs(await self._api.count_jobs())
            self._next_schedule = now + SCHEDULE_SECONDS

    async def _keep_snapshots(self, epoch: int) -> None:
        """Keep snapshots in a separate task: a large snapshot takes longer than the lease may go without
        renewal.
        """
        now, until = self._clock.monotonic(), self._follower.image.passwords_until
        if until > self._passwords_seen:  # the log has secrets that are not needed any more: no reason to wait
            self._passwords_seen, self._next_snapshot_check = until, now
        if now < self._next_snapshot_check or (self._snapshotting is not None and not self._snapshotting.done()):
            return
        self._next_snapshot_check = now + SNAPSHOT_CHECK_SECONDS
        self._snapshotting = asyncio.create_task(
            self._supervisor.attempt("metadata snapshot", partial(self._snapshot, epoch))
        )

    async def _snapshot(self, epoch: int) -> None:
        try:
            state, image = await self._api.snapshot_state(), self._follower.image
            is_wanted = image.offset > state.end_offset and await self._log_has_passwords(image)
            if self._times().snapshot_is_due(state) or is_wanted:
                data = await asyncio.to_thread(_verified_snapshot, image)
                await self._api.save_snapshot(epoch, StoredSnapshot(image.offset, data))
                logger.info("metadata snapshot written: end_offset=%d size=%d", image.offset, len(data))
                state = await self._api.snapshot_state()
            self._snapshot_end = state.end_offset
            self._metrics.snapshot_lag.set(state.log_records)
            while await self._api.truncate_metadata(epoch, TRUNCATED_ROWS) == TRUNCATED_ROWS:
                pass
        except FencedError as error:
            logger.warning("metadata snapshot failed: error=%s", error)

    async def _log_has_passwords(self, image: MetadataImage) -> bool:
        """Return whether the log still has salted passwords, or keys of users in clear, that nothing needs any more:
        after two snapshots without them the log before the older one is dropped.
        """
        if image.metadata_format < SCRAM_KEYS_FORMAT or not image.passwords_until:
            return False
        return await self._api.metadata_log_start() < image.passwords_until - 1

    def _become(self, lease: ControllerLease | None) -> None:
        was, now = (held is not None and held.is_own for held in (self._lease, lease))
        if now and not was:
            assert lease is not None
            logger.info("active controller: node_id=%d controller_epoch=%d", *lease[:2])
            self._next_contact = self._next_snapshot_check = self._next_schedule = 0.0
            self._settings.forget()
        elif was and not now:
            logger.info("standby: controller=%s", lease)
            self._metrics.snapshot_lag.set(0)
            self._metrics.show_jobs([])
        self._lease = lease
        self._metrics.active.set(now)


def _verified_snapshot(image: MetadataImage) -> bytes:
    """CorruptError unless it reads back as the image: the log before it will be deleted."""
    data = encode_snapshot(image)
    if load_snapshot(data) != image:
        raise CorruptError(f"metadata snapshot does not read back: end_offset={image.offset}")
    return data
