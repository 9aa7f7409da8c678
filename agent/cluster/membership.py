"""This agent's registration: node id, broker epoch, lease, and Kafka's broker states.

Place: before the first request can be committed, then a heartbeat every broker.heartbeat.interval.ms.
Heartbeats go straight to the metastore, not to the active controller: each touches its own lease's row,
Postgres orders them, and so an agent keeps its lease while no controller is active. Fencing others is
the controller's (agent/cluster/controller.py).
Invariant: unfenced only after the image holds the own registration and lags the head by no more than
metadata.max.lag.records. Stopping drops out of routing first, and goes once every other live agent
follows a log that says so. The own deadline counts from before a heartbeat is
sent, so that this agent gives up its lease before anybody may take it. A stale epoch means: register
again, as a new incarnation. If the process dies, its lease runs out and the controller fences it.
Source: KIP-631, broker registration, heartbeats and states.
"""

from __future__ import annotations

import asyncio
import enum
import logging
import random
import uuid
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Gauge

from headrace.agent.cluster.controller_watch import ControllerWatch
from headrace.agent.cluster.follower import MetadataFollower
from headrace.metastore.api.agents import AgentRegistration
from headrace.metastore.api.cluster import ClusterApi
from headrace.metastore.log.image import MetadataImage
from headrace.storage.clock import Clock
from headrace.storage.errors import FencedError, HeadraceError, InvalidError, OutcomeUnknownError, RetryableError

logger = logging.getLogger(__name__)

REGISTRATION_TIMEOUT_SECONDS = 60.0
"""The default of initial.broker.registration.timeout.ms."""
JOIN_RETRY_SECONDS = 0.5
LEAVE_RETRY_SECONDS = 0.1
SILENT_BEATS = 2
_PASSING = (RetryableError, OutcomeUnknownError)
"""What a later heartbeat may put right; the calls are repeatable as they are."""


class BrokerState(enum.IntEnum):
    """Kafka's numbers, as its BrokerState metric shows them."""

    NOT_RUNNING = 0
    STARTING = 1
    RECOVERY = 2
    """Registered and fenced: catching up with the metadata log."""
    RUNNING = 3
    PENDING_CONTROLLED_SHUTDOWN = 6
    SHUTTING_DOWN = 7


@dataclass(frozen=True, slots=True)
class Identity:
    """What clients and the other agents get to know. `node_id` None asks for a leased one."""

    node_id: int | None
    host: str
    port: int
    rack: str | None


class Membership:
    """One agent's life in the cluster, from `start` to `stop`."""

    def __init__(
        self,
        api: ClusterApi,
        follower: MetadataFollower,
        identity: Identity,
        *,
        heartbeat_interval_ms: int,
        session_timeout_ms: int,
        clock: Clock,
        rng: random.Random,
        registry: CollectorRegistry,
        registration_timeout_seconds: float = REGISTRATION_TIMEOUT_SECONDS,
    ) -> None:
        self.node_id = -1
        self.broker_epoch = -1
        self.state = BrokerState.NOT_RUNNING
        self._api = api
        self._follower = follower
        self._identity = identity
        self._heartbeat_seconds = heartbeat_interval_ms / 1000
        self._session_timeout_ms = session_timeout_ms
        self._registration_seconds = registration_timeout_seconds
        self._clock = clock
        self._rng = rng
        self._incarnation_id = uuid.UUID(int=0)
        self._lease_until = 0.0
        self._heartbeats: asyncio.Task[None] | None = None
        self._check_wanted = asyncio.Event()
        self._may_go = asyncio.Event()
        self._leaving: set[tuple[int, int]] = set()
        follower.on_image.append(self._on_image)
        self._controller = ControllerWatch(clock, session_timeout_ms / 1000, registry)
        self._lag = Gauge(
            "headrace_metadata_lag_records",
            "Records of the metadata log that this agent had not applied at its last heartbeat",
            registry=registry,
        )
        self._gauge = Gauge(
            "headrace_broker_state",
            "Broker state with Kafka's numbers: 0 not running, 1 starting, 2 recovery, 3 running, "
            "6 pending controlled shutdown, 7 shutting down",
            registry=registry,
        )

    async def start(self) -> None:
        """Register, catch up, become unfenced; returns when this agent is part of the cluster.

        Raises what kept it out when that lasted longer than initial.broker.registration.timeout.ms, InvalidError
        when another live agent holds the node id.
        """
        deadline = self._clock.monotonic() + self._registration_seconds
        self._start_over()
        while True:
            try:
                await self._step()
            except (*_PASSING, InvalidError) as error:  # a node id is free once its last holder's lease ran out
                if self._clock.monotonic() >= deadline:
                    raise
                logger.warning("joining the cluster failed: node_id=%s error=%s", self._identity.node_id, error)
            if self.state is BrokerState.RUNNING:
                break
            await self._clock.sleep(self._pause_seconds())
        self._heartbeats = asyncio.create_task(self._beat())

    def begin_shutdown(self) -> None:
        """Say that this agent is about to go; it keeps its lease, so that what it holds can still be committed."""
        self._become(BrokerState.PENDING_CONTROLLED_SHUTDOWN)
        self.check_now()

    async def controlled_shutdown(self) -> bool:
        """Drop out of routing; True once every other live agent knows.

        False when this agent is no member, or after SILENT_BEATS heartbeats: who was not heard within
        them is silent itself.
        """
        self.begin_shutdown()
        if self._heartbeats is None:
            return False
        timer = asyncio.ensure_future(self._clock.sleep(SILENT_BEATS * self._heartbeat_seconds))
        told = asyncio.ensure_future(self._may_go.wait())
        try:
            await asyncio.wait((timer, told, self._heartbeats), return_when=asyncio.FIRST_COMPLETED)
        finally:
            timer.cancel()
            told.cancel()
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
                logger.warning("leaving failed, the lease runs out instead: node_id=%d error=%s", self.node_id, error)
        self._become(BrokerState.NOT_RUNNING)

    def check_now(self) -> None:
        """Somebody was told that this registration is stale: heartbeat at once, not at the next turn."""
        self._check_wanted.set()

    def holds_lease(self) -> bool:
        """Whether nobody can have fenced this agent for silence yet."""
        member = self.state in (BrokerState.RUNNING, BrokerState.PENDING_CONTROLLED_SHUTDOWN)
        return member and self._clock.monotonic() < self._lease_until

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
            return JOIN_RETRY_SECONDS * (1 + self._rng.random())
        if self.state is BrokerState.PENDING_CONTROLLED_SHUTDOWN and not self._may_go.is_set():
            return LEAVE_RETRY_SECONDS
        return self._heartbeat_seconds

    async def _step(self) -> None:
        """Whatever the state asks for next."""
        if self.state is BrokerState.STARTING:
            await self._register()
        if self.state is BrokerState.RECOVERY:
            await self._follower.catch_up()
        try:
            await self._renew_lease()
        except FencedError as error:
            logger.warning("fenced: node_id=%d broker_epoch=%d error=%s", self.node_id, self.broker_epoch, error)
            if self.state is BrokerState.PENDING_CONTROLLED_SHUTDOWN:
                self._may_go.set()
            else:
                self._start_over()
        await self._follower.catch_up()

    async def _register(self) -> None:
        own = self._identity
        registration = AgentRegistration(own.node_id, self._incarnation_id, own.host, own.port, own.rack)
        registered = await self._api.register_agent(registration)
        self.node_id, self.broker_epoch = registered
        self._become(BrokerState.RECOVERY)
        logger.info("registered: node_id=%d broker_epoch=%d", self.node_id, self.broker_epoch)

    async def _renew_lease(self) -> None:
        sent_at = self._clock.monotonic()
        offset = self._follower.image.offset
        answer = await self._api.heartbeat(
            self.node_id,
            self.broker_epoch,
            metadata_offset=offset,
            want_fence=False,
            want_shut_down=self.state is BrokerState.PENDING_CONTROLLED_SHUTDOWN,
            session_timeout_ms=self._session_timeout_ms,
        )
        self._lag.set(answer.metadata_head - offset)
        self._controller.told(answer.controller_id)
        self._lease_until = 0.0 if answer.is_fenced else sent_at + self._session_timeout_ms / 1000
        if not answer.is_fenced and self.state is BrokerState.RECOVERY:
            self._become(BrokerState.RUNNING)
        if answer.should_shut_down:
            self._may_go.set()

    def _on_image(self, image: MetadataImage) -> None:
        """Whoever leaves waits until the others know: say so at once, not at the next turn."""
        leaving = {(agent.node_id, agent.broker_epoch) for agent in image.agents.values() if agent.leaving}
        if not leaving <= self._leaving:
            self.check_now()
        self._leaving = leaving

    def _start_over(self) -> None:
        """The next step registers a new incarnation; its lost answers may be asked for again."""
        self._incarnation_id = uuid.UUID(int=self._rng.getrandbits(128), version=4)
        self._become(BrokerState.STARTING)

    def _become(self, state: BrokerState) -> None:
        if state is not self.state:
            logger.info("broker state: %s -> %s node_id=%d", self.state.name, state.name, self.node_id)
        self.state = state
        self._gauge.set(state)
