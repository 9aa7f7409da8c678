"""The controller of a process with that role: active in one process, standby in all others.

Place: two tasks, with four rounds each per controller.lease.ms: one acquires and renews the
lease, the other does the work, so that slow work cannot cost the lease. Standbys follow the log, so that a new active
controller has the state of the previous one: all state is in the log.
The active controller hides agents that are gone, fences agents with expired leases, and takes the steps of
controller_steps: one table of what it judges and does, and how often. Clients do not see it.
Invariant: every action is fenced by the controller epoch in SQL, so a controller that was paused and resumes
after a takeover changes nothing. It considers itself active only until its lease, counted from before
the request was sent, has expired. After a crash, a standby takes over within the lease; at once if it finds that the
process is gone (agent_links.py, decisions/0044). A step that fails is left out for a while (rounds.py). If
whole rounds fail, the role is resigned and not taken for ABSTAIN_SECONDS: a lease without work is worse than none.
Source: KIP-631, the controller; Postgres replaces the Raft quorum.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

from prometheus_client import Counter, Gauge

from headrace.agent.cluster.controller.agent_links import AgentLinks, Connect, open_link
from headrace.agent.cluster.controller.cluster_metrics import ConsumerLags, TopicSizes
from headrace.agent.cluster.controller.completing_steps import PartitionSteps, TransactionEnds
from headrace.agent.cluster.controller.rounds import (
    TURNS_PER_LEASE,
    ControllerStep,
    ControllerSteps,
    ControllerTimes,
    HeldLease,
    TopicsWhere,
    always,
)
from headrace.agent.cluster.controller.upkeep_steps import (
    JobSchedules,
    MetadataSnapshots,
    SettingRecorder,
    lacks_values,
)
from headrace.agent.cluster.follower import MetadataFollower
from headrace.config.listeners import listeners
from headrace.metastore.api.controller import ControllerLease
from headrace.metastore.api.jobs import JobSchedule
from headrace.metastore.api.metastore import Metastore
from headrace.metastore.log.delegation_tokens import expired_tokens
from headrace.metastore.log.image import AgentImage, MetadataImage
from headrace.metastore.log.reassignment import completions
from headrace.metastore.process_context import ProcessContext
from headrace.storage.clock import Clock
from headrace.storage.errors import FencedError, HeadraceError, OutcomeUnknownError, RetryableError

logger = logging.getLogger(__name__)

CONTACTS_PER_SESSION = 3
"""How often the active controller calls for fencing although no agent is silent: its call is a contact. If nothing was
heard for half a session, the metastore takes that for an outage."""
FAILED_ROUNDS_MAX = 3
"""Rounds in a row that fail by an error of this process, before it resigns. An outage of the metastore is none."""
ABSTAIN_SECONDS = 60.0
"""Time after that in which the process does not ask for the lease, so that another one can take it."""
ROUNDS = "controller rounds"


def controller_steps(
    context: ProcessContext,
    follower: MetadataFollower,
    times: Callable[[], ControllerTimes],
    schedules: Callable[[MetadataImage], Sequence[JobSchedule]] = lambda _: (),
    lags: ConsumerLags | None = None,
    sizes: TopicSizes | None = None,
    ends: TransactionEnds | None = None,
) -> list[ControllerStep[Any]]:
    """Return the table of what the active controller does in its rounds, in this order.

    `schedules`: the periodic jobs of a cluster. `lags`, `sizes`: None if none are exported. `ends`: None if no
    transaction is ended here."""
    api, clock, registry = context.metastore, context.clock, context.registry
    settings, partitions = SettingRecorder(api, clock), PartitionSteps(api, follower)
    snapshots, jobs = MetadataSnapshots(api, follower, times, registry), JobSchedules(api, registry)
    marked = TopicsWhere(lambda topic: bool(topic.before_deletion))
    splitting = TopicsWhere(lambda topic: any(split.boundary is None for split in topic.splits.values()))
    halving = TopicsWhere(lambda topic: topic.halving >= 0)
    every, Step = _every, ControllerStep[Any]
    steps = [
        Step("due records", lambda image: image, partial(_append_due, api, clock)),
        Step("settings of the cluster", lacks_values, settings.record, every(5), settings.stand_by),
        Step("partition removal", marked, partitions.remove_empty, every(2)),
        Step("split boundaries", splitting, partitions.set_boundaries, every(1)),
        Step("topic halvings", halving, partitions.halve, every(1)),
        Step("metadata snapshots", always, snapshots.keep, snapshots.pause_seconds, snapshots.stand_by, is_long=True),
        Step("job schedules", schedules, jobs.keep, every(30), jobs.stand_by),
    ]
    if lags is not None:
        steps.append(Step("consumer lag", lags.judge, lags.refresh, every(30), lags.stand_by, is_long=True))
    if sizes is not None:
        steps.append(Step("topic sizes", sizes.judge, sizes.refresh, every(60), sizes.stand_by, is_long=True))
    if ends is not None:
        steps.append(Step("late transactions", always, ends.end_late, ends.late_pause, ends.stand_by))
        steps.append(Step("unused transactional ids", always, ends.forget_unused, ends.unused_pause))
    return steps


class Controller:
    """One candidate, from `start` to `stop`. `node_id` is read in each round, because a leased id may change."""

    def __init__(
        self,
        context: ProcessContext,
        follower: MetadataFollower,
        times: Callable[[], ControllerTimes],
        steps: Sequence[ControllerStep[Any]],
        *,
        held: HeldLease,
        node_id: Callable[[], int],
        connect: Connect = open_link,
    ) -> None:
        """`times`: as they are now. `held`: where the process reads whether this is the active controller."""
        clock, registry = context.clock, context.registry
        self._api = context.metastore
        self._follower = follower
        self._times = times
        self._node_id = node_id
        self._clock = clock
        self._incarnation_id = uuid.UUID(int=context.rng.getrandbits(128), version=4)
        self._held = held
        self._held_until = 0.0
        """Time until which another controller keeps the lease, as the metastore answered."""
        self._asked = asyncio.Event()
        """A round has begun, and the lease was asked for."""
        self._granted_ms = times().granted_ms
        self._next_contact = 0.0
        self._supervisor = context.supervisor
        self._steps = ControllerSteps(steps, follower, clock, self._supervisor)
        self._links = AgentLinks(
            self._on_gone, clock, connect, listeners(context.settings).inter_broker, self._supervisor
        )
        self._failed_rounds = 0
        self._abstains_until = 0.0
        self._tasks: list[asyncio.Task[None]] = []
        self._active = Gauge(
            "headrace_controller_active", "1 in the process that is the active controller", registry=registry
        )
        self._lag = Gauge(
            "headrace_controller_metadata_lag_records",
            "Records of the metadata log that this controller had not applied in its last round",
            registry=registry,
        )
        self._hidden = Counter(
            "headrace_controller_agents_hidden_total",
            "Agents that this controller hid from clients because their process was gone",
            registry=registry,
        )

    @property
    def is_active(self) -> bool:
        """Whether no other controller can have taken over yet."""
        return self._held.is_active()

    def start(self) -> None:
        """Try to acquire the lease from now on."""
        self._tasks = [
            self._supervisor.keep("controller lease", self._keep_asking),
            self._supervisor.keep(ROUNDS, self._keep_working),
        ]

    async def stop(self) -> None:
        """Release the lease. Safe in any state."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, self._links.close(), self._steps.close(), return_exceptions=True)
        if self._held.lease is not None and self._held.lease.is_own:
            await self._resign(self._held.lease)
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
            if self._failed_rounds >= FAILED_ROUNDS_MAX and self._held.lease is not None and self._held.lease.is_own:
                await self._abstain(self._held.lease)
        else:
            return True
        return False

    async def _abstain(self, lease: ControllerLease) -> None:
        """Let another process have the role; this one continues with everything else."""
        logger.error("controller resigns, its rounds fail: rounds=%d seconds=%d", self._failed_rounds, ABSTAIN_SECONDS)
        self._abstains_until = self._clock.monotonic() + ABSTAIN_SECONDS
        self._failed_rounds = 0
        self._become(None)
        await self._resign(lease)

    async def _resign(self, lease: ControllerLease) -> None:
        try:
            await self._api.controller.resign_controller(lease.controller_epoch)
        except HeadraceError as error:
            logger.warning("cannot release the lease, it expires instead: error=%s", error)

    async def _hold_lease(self) -> None:
        sent_at = self._clock.monotonic()
        if sent_at < self._abstains_until:
            return
        if sent_at < self._held_until and self._linked():
            return  # the active one's agent is a member, so it has not resigned; if its process ends, the link says so
        lease = await self._api.controller.hold_controller_lease(
            self._node_id(), self._incarnation_id, self._times().granted_ms
        )
        self._take(lease, sent_at)

    def _take(self, lease: ControllerLease, sent_at: float) -> None:
        self._held_until = sent_at + lease.remaining_ms / 1000
        self._granted_ms = lease.lease_ms
        self._become(lease, sent_at + lease.lease_ms / 1000)

    async def _work(self) -> None:
        """One round. An action with a stale epoch is refused (FencedError); the next lease round finds the new
        controller. If fencing or following fails, the round does: without these two, none is the active controller."""
        lease = self._held.lease
        if lease is None or not self.is_active:
            self._steps.stand_by()
            await self._follow()
            return
        await self._fence_silent(lease.controller_epoch)
        await self._follow()
        await self._steps.run(lease.controller_epoch)

    async def _follow(self) -> None:
        """Have an image of the end that the log had when the lease was asked for, or a later one."""
        image = self._follower.image
        before = image.offset
        if self._held.lease is None or self._held.lease.metadata_head != before:
            image = await self._follower.catch_up()
        self._lag.set(max(image.offset - before, 0))

    async def _fence_silent(self, epoch: int) -> None:
        now, session_ms = self._clock.monotonic(), self._times().session_timeout_ms
        if now < self._next_contact and self._held.lease is not None and not self._held.lease.has_silent:
            return
        fenced = await self._api.controller.fence_silent_agents(epoch, session_timeout_ms=session_ms)
        self._next_contact = now + session_ms / 1000 / CONTACTS_PER_SESSION
        if fenced:
            logger.warning("fenced silent agents: node_ids=%s controller_epoch=%d", fenced, epoch)

    def _linked(self) -> list[AgentImage]:
        """The agents to keep a link to: all others for the active controller, the active one's for a standby."""
        lease, agents = self._held.lease, self._follower.image.agents
        if lease is None:
            return []
        linked = agents.values() if lease.is_own else filter(None, [agents.get(lease.controller_id)])
        return [agent for agent in linked if agent.member and agent.node_id != self._node_id()]

    async def _on_gone(self, agent: AgentImage) -> None:
        """The agent's process is gone: hide it, as the active controller or as the successor of one that is gone."""
        is_abstaining = self._clock.monotonic() < self._abstains_until
        lease = self._held.lease
        if lease is not None and not lease.is_own and lease.controller_id == agent.node_id and not is_abstaining:
            await self._succeed(lease)
        if self._held.lease is None or not self._held.lease.is_own:
            return
        epoch, timeout_ms = self._held.lease.controller_epoch, self._times().session_timeout_ms
        if await self._api.controller.hide_agent(
            epoch, agent.node_id, agent.broker_epoch, session_timeout_ms=timeout_ms
        ):
            logger.warning("hid an agent that is gone: node_id=%d controller_epoch=%d", agent.node_id, epoch)
            self._hidden.inc()

    async def _succeed(self, gone: ControllerLease) -> None:
        sent_at = self._clock.monotonic()
        lease = await self._api.controller.succeed_controller(
            self._node_id(), self._incarnation_id, self._times().granted_ms, gone.controller_epoch
        )
        self._take(lease, sent_at)

    def _become(self, lease: ControllerLease | None, until: float = 0.0) -> None:
        was, now = (held is not None and held.is_own for held in (self._held.lease, lease))
        if now and not was:
            assert lease is not None
            logger.info("active controller: node_id=%d controller_epoch=%d", *lease[:2])
            self._next_contact = 0.0
        elif was and not now:
            logger.info("standby: controller=%s", lease)
            self._steps.stand_by()
        self._held.take(lease, until)
        self._active.set(now)


async def _append_due(api: Metastore, clock: Clock, epoch: int, image: MetadataImage, _: object) -> None:
    """Append changes caused by time and other agents. If the log changed, the next round decides again."""
    expired = expired_tokens(image, clock.wall_ms())
    due = [*completions(image), *expired]
    if due:
        appended = await api.cluster.append_records(image.offset, due, controller_epoch=epoch)
        logger.info("appended due records: records=%d tokens=%d appended=%s", len(due), len(expired), appended)


def _every(seconds: float) -> Callable[[], float]:
    return lambda: seconds
