"""This agent's registration: node id, broker epoch, lease, and Kafka's broker states.

Place: before the first request can be committed, then a heartbeat every broker.heartbeat.interval.ms.
Heartbeats go directly to the metastore, not to the active controller: each updates its own lease row,
Postgres orders them, and so an agent keeps its lease while no controller is active. The controller
(agent/cluster/controller/controller.py) fences agents.
Invariant: an agent is unfenced only after its image contains its registration and is at most
metadata.max.lag.records behind the end of the log. Shutdown first removes the agent from routing, and continues
when every other live agent has followed the log to that point. The agent's own deadline counts from before a
heartbeat is sent, so that it gives up its lease before another process may take it. After a stale epoch it registers
again, as a new incarnation; so it does if it is made to leave without having asked for it. After a crash, its lease
expires and the controller fences it.
Source: KIP-631, broker registration, heartbeats and states.
"""

from __future__ import annotations

import asyncio
import enum
import logging
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from prometheus_client import Gauge

from headrace.agent.cluster.follower import MetadataFollower
from headrace.agent.cluster.heartbeats import ControllerWatch, HeartbeatHealth
from headrace.metastore.api.agents import AGENT_FEATURES, AgentRegistration, FeatureRange, Listener
from headrace.metastore.log.image import MetadataImage, TopicImage
from headrace.metastore.process_context import ProcessContext
from headrace.storage.dependency import METASTORE, NotReady
from headrace.storage.errors import FencedError, HeadraceError, InvalidError, OutcomeUnknownError, RetryableError

logger = logging.getLogger(__name__)

REGISTRATION_TIMEOUT_SECONDS = 60.0
"""The default of initial.broker.registration.timeout.ms."""
JOIN_RETRY_SECONDS, JOIN_RETRY_SECONDS_MAX = 0.5, 2.0
"""The pause after a failed attempt to join: doubled with each, up to the maximum, and up to twice that by chance."""
JOINS_PER_LEASE = 8
"""Least number of attempts to join in a lease. If no agent is heard for half a lease, the metastore takes that for
an outage, and no node id is freed.
"""
LEAVE_RETRY_SECONDS = 0.1
SILENT_BEATS = 2
NOT_A_MEMBER = "not a running member of the cluster"
BEATS_PER_LEASE = 3
"""Least number of heartbeats in a lease, if broker.heartbeat.interval.ms is long for the lease that is granted."""
_PASSING = (RetryableError, OutcomeUnknownError)
"""Errors that a later heartbeat may not have; the calls can be repeated unchanged."""


class BrokerState(enum.IntEnum):
    """Kafka's numbers, as in its BrokerState metric."""

    NOT_RUNNING = 0
    STARTING = 1
    RECOVERY = 2
    """Registered and fenced: catching up with the metadata log."""
    RUNNING = 3
    PENDING_CONTROLLED_SHUTDOWN = 6
    SHUTTING_DOWN = 7


@dataclass(frozen=True, slots=True)
class Identity:
    """Properties that clients and other agents see. `node_id` None asks for a leased one."""

    node_id: int | None
    host: str
    port: int
    rack: str | None
    listeners: tuple[Listener, ...] = ()
    """All of them, the one of `host` and `port` first; none: that one alone."""
    features: Mapping[str, FeatureRange] = field(default_factory=lambda: AGENT_FEATURES)
    """The feature levels that the agent supports."""


class Membership:
    """One agent's membership in the cluster, from `start` to `stop`."""

    def __init__(
        self,
        context: ProcessContext,
        follower: MetadataFollower,
        identity: Identity,
        *,
        heartbeat_interval_ms: int,
        session_timeout_ms: Callable[[], int],
        registration_timeout_seconds: float = REGISTRATION_TIMEOUT_SECONDS,
        health: HeartbeatHealth,
    ) -> None:
        """`health`: where the process reads whether heartbeats are answered."""
        clock = context.clock
        self.node_id = -1
        self.broker_epoch = -1
        self.state = BrokerState.NOT_RUNNING
        self.known_head = 0
        """The end of the metadata log, as the last heartbeat found it."""
        self._api = context.metastore.cluster
        self._follower = follower
        self._identity = identity
        self._heartbeat_seconds = heartbeat_interval_ms / 1000
        self._session_timeout_ms = session_timeout_ms
        self._registration_seconds = registration_timeout_seconds
        self._clock = clock
        self._rng = context.rng
        self._incarnation_id = uuid.UUID(int=0)
        self._lease_until = 0.0
        self._health = health
        self._is_fenced = False
        self._failed_joins = 0
        self._granted_seconds = session_timeout_ms() / 1000
        self._heartbeats: asyncio.Task[None] | None = None
        self._supervisor = context.supervisor
        self._check_wanted = asyncio.Event()
        self._may_go = asyncio.Event()
        self._leaving: set[tuple[int, int]] = set()
        self._topics: Mapping[uuid.UUID, TopicImage] = {}
        self._doubling: set[uuid.UUID] = set()
        follower.on_image.append(self._on_image)
        self._controller = ControllerWatch(clock, session_timeout_ms() / 1000, context.registry)
        self._lag = Gauge(
            "headrace_metadata_lag_records",
            "Records of the metadata log that this agent had not applied at its last heartbeat",
            registry=context.registry,
        )
        self._gauge = Gauge(
            "headrace_broker_state",
            "Broker state with Kafka's numbers: 0 not running, 1 starting, 2 recovery, 3 running, "
            "6 pending controlled shutdown, 7 shutting down",
            registry=context.registry,
        )

    async def start(self) -> None:
        """Register, catch up, become unfenced; returns when this agent is part of the cluster.

        If it fails for longer than initial.broker.registration.timeout.ms, raises the last error; InvalidError
        if another live agent has the node id.
        """
        deadline = self._clock.monotonic() + self._registration_seconds
        self._start_over()
        while True:
            try:
                await self._step()
            except (*_PASSING, InvalidError) as error:  # a node id is free after its last holder's lease expired
                if self._clock.monotonic() >= deadline:
                    raise
                logger.warning("joining the cluster failed: node_id=%s error=%s", self._identity.node_id, error)
                self._failed_joins += 1
            if self.state is BrokerState.RUNNING:
                self._failed_joins = 0
                break
            await self._clock.sleep(self._pause_seconds())
        self._heartbeats = self._supervisor.keep("heartbeats", self._beat)

    def begin_shutdown(self) -> None:
        """Announce the shutdown; the agent keeps its lease, so that its buffered batches can still be committed."""
        self._become(BrokerState.PENDING_CONTROLLED_SHUTDOWN)
        self.check_now()

    async def controlled_shutdown(self) -> bool:
        """Remove this agent from routing; True when every other live agent knows it.

        False if this agent is not a member, or after SILENT_BEATS heartbeats: an agent that has not confirmed
        by then is silent itself.
        """
        self.begin_shutdown()
        if self._heartbeats is None:
            return False
        timer = asyncio.ensure_future(self._clock.sleep(SILENT_BEATS * self._heartbeat_seconds))
        may_go = asyncio.ensure_future(self._may_go.wait())
        try:
            await asyncio.wait((timer, may_go, self._heartbeats), return_when=asyncio.FIRST_COMPLETED)
        finally:
            timer.cancel()
            may_go.cancel()
        return self._may_go.is_set()

    async def stop(self) -> None:
        """Leave the cluster at once. Nothing can be committed under this registration afterwards."""
        self._become(BrokerState.SHUTTING_DOWN)
        if self._heartbeats is not None:
            self._heartbeats.cancel()
            await asyncio.gather(self._heartbeats, return_exceptions=True)
        if self.broker_epoch >= 0:
            try:
                await self._api.unregister_agent(self.node_id, self.broker_epoch)
            except _PASSING as error:
                logger.warning(
                    "cannot leave the cluster, the lease expires instead: node_id=%d error=%s", self.node_id, error
                )
        self._become(BrokerState.NOT_RUNNING)

    def check_now(self) -> None:
        """A caller found that this registration is stale: send a heartbeat at once."""
        self._check_wanted.set()

    def holds_lease(self) -> bool:
        """Return whether this agent cannot have been fenced for silence yet."""
        member = self.state in (BrokerState.RUNNING, BrokerState.PENDING_CONTROLLED_SHUTDOWN)
        return member and self._clock.monotonic() < self._lease_until

    def not_ready(self) -> NotReady | None:
        """Return None while it is a running member that cannot have been fenced. A lease that ran out waits for the
        metastore: a heartbeat that is answered renews it, or says that this agent was fenced.
        """
        if self.state is not BrokerState.RUNNING:
            return NotReady(NOT_A_MEMBER)
        if self.holds_lease():
            return None
        return NotReady("fenced") if self._is_fenced else NotReady("its lease ran out", METASTORE)

    async def _beat(self) -> None:
        while True:
            await self._pause()
            try:
                await self._step()
            except HeadraceError as error:
                logger.warning("heartbeat failed: node_id=%d state=%s error=%s", self.node_id, self.state.name, error)

    async def _pause(self) -> None:
        """Sleep, or wake up early for `check_now`."""
        timer = asyncio.ensure_future(self._clock.sleep(self._pause_seconds()))
        wanted = asyncio.ensure_future(self._check_wanted.wait())
        try:
            await asyncio.wait((timer, wanted), return_when=asyncio.FIRST_COMPLETED)
        finally:
            timer.cancel()
            wanted.cancel()
        self._check_wanted.clear()

    def _pause_seconds(self) -> float:
        if self.state in (BrokerState.STARTING, BrokerState.RECOVERY):
            longest = min(JOIN_RETRY_SECONDS_MAX, self._session_timeout_ms() / 1000 / JOINS_PER_LEASE)
            pause = min(JOIN_RETRY_SECONDS * 2.0 ** min(self._failed_joins, 8), max(longest, JOIN_RETRY_SECONDS))
            return pause * (1 + self._rng.random())
        if self.state is BrokerState.PENDING_CONTROLLED_SHUTDOWN and not self._may_go.is_set():
            return LEAVE_RETRY_SECONDS
        return min(self._heartbeat_seconds, self._granted_seconds / BEATS_PER_LEASE)

    async def _step(self) -> None:
        """Take the next step of the current state."""
        if self.state is BrokerState.STARTING:
            await self._register()
        if self.state is BrokerState.RECOVERY:
            await self._follower.catch_up()
        is_log_known = False
        try:
            is_log_known = await self._renew_lease()
        except FencedError as error:
            logger.warning("fenced: node_id=%d broker_epoch=%d error=%s", self.node_id, self.broker_epoch, error)
            if self.state is BrokerState.PENDING_CONTROLLED_SHUTDOWN:
                self._may_go.set()
            else:
                self._start_over()
        if not is_log_known:
            await self._follower.catch_up()
        if self.state is BrokerState.RUNNING and self._is_leaving():
            await self._register_again()

    def _is_leaving(self) -> bool:
        """Return whether the log says that this registration leaves, which this agent may not have asked for."""
        own = self._follower.image.agents.get(self.node_id)
        return own is not None and own.broker_epoch == self.broker_epoch and own.leaving

    async def _register_again(self) -> None:
        """A registration that leaves is never unfenced: give it up for a new one."""
        logger.warning("made to leave, registering again: node_id=%d broker_epoch=%d", self.node_id, self.broker_epoch)
        await self._api.unregister_agent(self.node_id, self.broker_epoch)
        self._start_over()
        self.check_now()

    async def _register(self) -> None:
        own = self._identity
        registration = AgentRegistration(
            own.node_id,
            self._incarnation_id,
            own.host,
            own.port,
            own.rack,
            features=own.features,
            listeners=own.listeners,
        )
        registered = await self._api.register_agent(registration)
        self.node_id, self.broker_epoch = registered
        self._become(BrokerState.RECOVERY)
        logger.info("registered: node_id=%d broker_epoch=%d", self.node_id, self.broker_epoch)

    async def _renew_lease(self) -> bool:
        """Return whether the log still ends with the last record that was applied: by the record, as a log that was
        restored may be as long.
        """
        sent_at = self._clock.monotonic()
        self._health.sent(sent_at)
        offset, last_record = self._follower.image.offset, self._follower.last_record
        try:
            answer = await self._api.heartbeat(
                self.node_id,
                self.broker_epoch,
                metadata_offset=offset,
                want_fence=False,
                want_shut_down=self.state is BrokerState.PENDING_CONTROLLED_SHUTDOWN,
                session_timeout_ms=self._session_timeout_ms(),
            )
        except HeadraceError as error:
            self._health.judged(str(error) if isinstance(error, _PASSING) else None)
            raise
        finally:
            self._health.ended()
        self._health.judged(None)
        self._lag.set(answer.metadata_head - offset)
        self.known_head = answer.metadata_head
        self._controller.observe(answer.controller_id)
        self._granted_seconds = answer.session_timeout_ms / 1000
        self._is_fenced = answer.is_fenced
        self._lease_until = 0.0 if answer.is_fenced else sent_at + self._granted_seconds
        if not answer.is_fenced and self.state is BrokerState.RECOVERY:
            self._become(BrokerState.RUNNING)
        if answer.should_shut_down:
            self._may_go.set()
        return answer.metadata_head == offset and last_record is not None and answer.record_before == last_record

    def _on_image(self, image: MetadataImage) -> None:
        """A leaving agent and a doubling wait until the others know: confirm at once, not with the next heartbeat."""
        if image.topics_by_id is not self._topics:
            self._topics = image.topics_by_id
            doubling = {topic.topic_id for topic in image.topics_by_id.values() if topic.doubling >= 0}
            if not doubling <= self._doubling:
                self.check_now()
            self._doubling = doubling
        leaving = {(agent.node_id, agent.broker_epoch) for agent in image.agents.values() if agent.leaving}
        if not leaving <= self._leaving:
            self.check_now()
        self._leaving = leaving

    def _start_over(self) -> None:
        """The next step registers a new incarnation; a registration with a lost response may be repeated."""
        self._incarnation_id = uuid.UUID(int=self._rng.getrandbits(128), version=4)
        self._become(BrokerState.STARTING)

    def _become(self, state: BrokerState) -> None:
        if state is not self.state:
            logger.info("broker state: %s -> %s node_id=%d", self.state.name, state.name, self.node_id)
        self.state = state
        self._gauge.set(state)
