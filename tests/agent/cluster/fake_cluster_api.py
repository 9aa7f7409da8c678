"""ClusterApi in memory, with the real records in its log.

Fault model: `fail_before[operation]` are raised before the operation does anything, one per call;
`fail_after[operation]` after it was done, so its answer is lost. `before_append` runs just before a
compare-and-append looks at the head: another agent that is quicker. Time is the test's clock. Leases
run out as in metastore/api/; the active controller fences, and `controller_epoch` fences its calls.
`truncate` drops the log's beginning; its records keep their offsets.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from headrace.metastore.api.agents import AgentRegistration, FeatureRange, HeartbeatAnswer, Listener, RegisteredAgent
from headrace.metastore.api.cluster import SettingProposals
from headrace.metastore.api.controller import ControllerLease
from headrace.metastore.api.jobs import JobSchedule
from headrace.metastore.api.reports import JobCount
from headrace.metastore.log.kip631_records import (
    BrokerEndpoint,
    BrokerFeature,
    FenceBrokerRecord,
    RegisterBrokerRecord,
    UnfenceBrokerRecord,
    UnregisterBrokerRecord,
)
from headrace.metastore.log.own_records import ControlledShutdownRecord, HideBrokerRecord, ShowBrokerRecord
from headrace.storage.errors import AlreadyExistsError, FencedError
from tests.agent.cluster.fake_metadata_log import FakeMetadataLog
from tests.live_arguments import takes_copies

FIRST_LEASED_NODE_ID = 1_000
MAX_LAG = 100
NO_PROPOSALS = SettingProposals({}, {}, 0)
_NONE: Mapping[str, FeatureRange] = MappingProxyType({})


@dataclass
class _Agent:
    registration: AgentRegistration
    epoch: int
    fenced: bool
    held_until: float
    offset: int = 0
    leaving_offset: int | None = None
    hidden: bool = False
    hidden_before: bool = False
    heard_at: float = 0.0

    @property
    def is_member(self) -> bool:
        return not self.fenced and self.leaving_offset is None


@takes_copies
@dataclass
class FakeClusterApi(FakeMetadataLog):
    """One metastore; share it between the agents of a test."""

    agents: dict[int, _Agent] = field(default_factory=dict)
    next_producer_id: int = 0
    controller_incarnation: uuid.UUID | None = None
    controller_until: float = 0.0
    proposals: SettingProposals = NO_PROPOSALS
    session_seconds: float = 18.0
    """The lease of a registration, until its first heartbeat."""
    scheduled: list[list[str]] = field(default_factory=list)
    """The kinds of each call."""
    job_counts: list[JobCount] = field(default_factory=list)

    # -- what tests do manually

    def add_agent(
        self,
        node_id: int,
        rack: str | None = None,
        host: str = "agent",
        listeners: Sequence[Listener] = (),
        features: Mapping[str, FeatureRange] = _NONE,
    ) -> None:
        """Another agent, registered and unfenced, that never goes silent."""
        first = listeners[0] if listeners else Listener("PLAINTEXT", f"{host}-{node_id}", 9092, 0)
        registration = AgentRegistration(
            node_id, uuid.uuid4(), first.host, first.port, rack, features=features, listeners=tuple(listeners)
        )
        epoch = self._append_registration(node_id, registration)
        self.append(UnfenceBrokerRecord(broker_id=node_id, broker_epoch=epoch))
        self.agents[node_id] = _Agent(registration, epoch, False, float("inf"), offset=2**62)

    # -- agents

    async def agents_behind(self, offset: int) -> list[int]:
        await self._begin("agents_behind")
        return [node_id for node_id, agent in self.agents.items() if not agent.fenced and agent.offset < offset]

    async def register_agent(self, registration: AgentRegistration) -> RegisteredAgent:
        await self._begin("register_agent")
        node_id = registration.node_id
        for known, agent in self.agents.items():
            if agent.registration.incarnation_id == registration.incarnation_id:
                return RegisteredAgent(known, agent.epoch)
        if node_id is None:
            node_id = next(n for n in range(FIRST_LEASED_NODE_ID, 2_000) if n not in self.agents)
        holder = self.agents.get(node_id)
        if holder is not None and self.clock.monotonic() < holder.held_until:
            raise AlreadyExistsError(f"another incarnation holds the node id: node_id={node_id}")
        epoch = self._append_registration(node_id, registration)
        self.agents[node_id] = _Agent(registration, epoch, True, self.clock.monotonic() + self.session_seconds)
        self._end("register_agent")
        return RegisteredAgent(node_id, epoch)

    async def heartbeat(
        self,
        node_id: int,
        broker_epoch: int,
        *,
        metadata_offset: int,
        want_fence: bool,
        want_shut_down: bool = False,
        session_timeout_ms: int,
    ) -> HeartbeatAnswer:
        await self._begin("heartbeat")
        agent = self.agents.get(node_id)
        if agent is None or agent.epoch != broker_epoch:
            raise FencedError(f"stale broker epoch: node_id={node_id} broker_epoch={broker_epoch}")
        now, granted_ms = self.clock.monotonic(), self._granted_ms("broker.session.timeout.ms", session_timeout_ms)
        agent.held_until = max(agent.held_until, now + max(granted_ms, session_timeout_ms) / 1000)
        agent.offset = metadata_offset
        is_caught_up = broker_epoch < metadata_offset <= len(self.log) and len(self.log) - metadata_offset <= MAX_LAG
        others = [a for n, a in self.agents.items() if n != node_id and not a.fenced and a.leaving_offset is None]
        if want_shut_down and others and not agent.fenced and agent.leaving_offset is None:
            agent.leaving_offset = len(self.log)
            self.append(ControlledShutdownRecord(broker_id=node_id, broker_epoch=broker_epoch))
        elif want_fence or (is_caught_up and not want_shut_down):
            self._set_fenced(node_id, want_fence)
        if agent.hidden and agent.is_member:
            agent.hidden = False
            self.append(ShowBrokerRecord(broker_id=node_id, broker_epoch=broker_epoch))
        agent.heard_at = now
        self._end("heartbeat")
        leaving = agent.leaving_offset
        waits = leaving is not None and any(other.offset <= leaving for other in others)
        return HeartbeatAnswer(
            is_caught_up=is_caught_up,
            is_fenced=agent.fenced,
            should_shut_down=want_shut_down and (agent.fenced or not waits),
            metadata_head=len(self.log),
            controller_id=self.controller.controller_id,
            session_timeout_ms=granted_ms,
            record_before=(self.log[metadata_offset - 1] or None) if 0 < metadata_offset <= len(self.log) else None,
        )

    def _granted_ms(self, name: str, asked_ms: int) -> int:
        value = self.cluster_values.get(name)
        return asked_ms if value is None else int(value)

    async def unregister_agent(self, node_id: int, broker_epoch: int) -> None:
        await self._begin("unregister_agent")
        if node_id in self.agents and self.agents[node_id].epoch == broker_epoch:
            del self.agents[node_id]
            self.append(UnregisterBrokerRecord(broker_id=node_id, broker_epoch=broker_epoch))

    # -- the active controller

    async def hold_controller_lease(
        self, controller_id: int, incarnation_id: uuid.UUID, lease_ms: int
    ) -> ControllerLease:
        await self._begin("hold_controller_lease")
        now = self.clock.monotonic()
        if self.controller_incarnation != incarnation_id and now >= self.controller_until:
            self.controller_incarnation = incarnation_id
            self.controller = ControllerLease(controller_id, self.controller.controller_epoch + 1, is_own=False)
            self.controller_until = 0.0
        is_own = self.controller_incarnation == incarnation_id
        value = self.cluster_values.get("controller.lease.ms")
        granted_ms = lease_ms if value is None else int(value) * 2 // 3
        if is_own:
            self.controller_until = max(self.controller_until, now + max(granted_ms, lease_ms) / 1000)
        self._end("hold_controller_lease")
        return self.controller._replace(
            is_own=is_own,
            lease_ms=granted_ms,
            remaining_ms=0 if is_own else round((self.controller_until - now) * 1000),
            metadata_head=len(self.log),
            has_silent=any(not agent.fenced and agent.held_until <= now for agent in self.agents.values()),
        )

    async def succeed_controller(
        self, controller_id: int, incarnation_id: uuid.UUID, lease_ms: int, gone_epoch: int
    ) -> ControllerLease:
        await self._begin("succeed_controller")
        if self.controller.controller_epoch == gone_epoch and self.controller_incarnation != incarnation_id:
            self.controller_until = 0.0
        return await self.hold_controller_lease(controller_id, incarnation_id, lease_ms)

    async def setting_proposals(self) -> SettingProposals:
        await self._begin("setting_proposals")
        return self.proposals

    async def describe_controller(self) -> ControllerLease | None:
        return self.controller if self.clock.monotonic() < self.controller_until else None

    async def resign_controller(self, controller_epoch: int) -> None:
        await self._begin("resign_controller")
        if controller_epoch == self.controller.controller_epoch:
            self.controller_until = 0.0

    async def fence_silent_agents(self, controller_epoch: int, *, session_timeout_ms: int) -> list[int]:
        await self._begin("fence_silent_agents")
        self._require_controller(controller_epoch)
        silent = [
            node_id
            for node_id, agent in self.agents.items()
            if not agent.fenced and self.clock.monotonic() >= agent.held_until
        ]
        for node_id in silent:
            self._set_fenced(node_id, True)
        return silent

    async def hide_agent(
        self, controller_epoch: int, node_id: int, broker_epoch: int, *, session_timeout_ms: int
    ) -> bool:
        await self._begin("hide_agent")
        self._require_controller(controller_epoch)
        agent = self.agents.get(node_id)
        if agent is None or agent.epoch != broker_epoch or not agent.is_member or agent.hidden:
            return False
        recent = self.clock.monotonic() - session_timeout_ms / 3000
        if agent.hidden_before and agent.heard_at > recent:
            return False
        members = [other for other in self.agents.values() if other.is_member]
        if 2 * (sum(other.hidden for other in members) + 1) > len(members):
            return False
        agent.hidden = agent.hidden_before = True
        self.append(HideBrokerRecord(broker_id=node_id, broker_epoch=broker_epoch))
        return True

    async def schedule_jobs(self, controller_epoch: int, schedules: Sequence[JobSchedule]) -> None:
        await self._begin("schedule_jobs")
        self._require_controller(controller_epoch)
        self.scheduled.append([schedule.kind for schedule in schedules])
        self._end("schedule_jobs")

    async def count_jobs(self) -> list[JobCount]:
        return self.job_counts

    # -- the part of CommitApi that hands out producer ids

    async def allocate_producer_ids(self, count: int) -> range:
        await self._begin("allocate_producer_ids")
        self.next_producer_id += count
        self._end("allocate_producer_ids")
        return range(self.next_producer_id - count, self.next_producer_id)

    # -- insides

    def _append_registration(self, node_id: int, registration: AgentRegistration) -> int:
        listeners = registration.listeners or (Listener("CLIENT", registration.host, registration.port, 0),)
        endpoints = tuple(
            BrokerEndpoint(name=e.name, host=e.host, port=e.port, security_protocol=e.security_protocol)
            for e in listeners
        )
        epoch = len(self.log)
        self.append(
            RegisterBrokerRecord(
                broker_id=node_id,
                incarnation_id=registration.incarnation_id,
                broker_epoch=epoch,
                end_points=endpoints,
                features=tuple(
                    BrokerFeature(name=name, min_version=levels.min_level, max_version=levels.max_level)
                    for name, levels in registration.features.items()
                ),
                rack=registration.rack,
            )
        )
        return epoch

    def _set_fenced(self, node_id: int, fenced: bool) -> None:
        agent = self.agents[node_id]
        if agent.fenced != fenced:
            agent.fenced = fenced
            agent.hidden = agent.hidden and not fenced
            record = FenceBrokerRecord if fenced else UnfenceBrokerRecord
            self.append(record(broker_id=node_id, broker_epoch=agent.epoch))
