"""The paths of a broker's requests, composed: produce, fetch, groups, forwarding, and the handlers in front of them.

Place: made by broker.py when the agent has found its cluster; started, drained and closed by it.
Invariant: composing does no work: nothing is served, asked or written before `start`. A drained path has answered what
it had received, unless the grace period ended.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from prometheus_client import CollectorRegistry

from headrace.agent.access.audit import AuditLog
from headrace.agent.access.authorization.denial_log import reporting_authorizer
from headrace.agent.access.listener_security import ListenerSecurity, link_context
from headrace.agent.access.quotas.service import QuotaService
from headrace.agent.apis.dispatch import Dispatcher
from headrace.agent.cluster import zone
from headrace.agent.cluster.cluster import Cluster
from headrace.agent.cluster.compose import shared_address
from headrace.agent.cluster.topic_traffic import TopicTraffic
from headrace.agent.cluster.zone_traffic import ZoneTraffic
from headrace.agent.fetch.service import FetchService
from headrace.agent.fetch.steps import FetchSteps
from headrace.agent.limits.client_rows import ClientRows
from headrace.agent.limits.limit_metrics import limits_reached
from headrace.agent.limits.memory_metrics import watch_memory
from headrace.agent.listener.server import KafkaListener
from headrace.agent.peers.channel import PEER_HEALTH_KEY
from headrace.agent.peers.connection import Connect, open_connection
from headrace.agent.peers.forwarding.service import ForwardService
from headrace.agent.peers.health_reports import AgentReports
from headrace.agent.produce.observer import ProduceObserver
from headrace.agent.produce.pipeline import Callbacks, ProducePipeline
from headrace.agent.produce.trace import FileTrace
from headrace.agent.serve.authenticated import authenticated
from headrace.agent.serve.group_handlers import GroupHandlers
from headrace.agent.serve.handlers import HandlerParts, register_handlers
from headrace.agent.serve.no_coordinator import without_coordinator
from headrace.config.listeners import listeners
from headrace.config.settings import Settings
from headrace.metastore.api.agents import Listener
from headrace.metastore.api.metastore import Metastore
from headrace.metastore.log.sealed_keys import SealedKeys
from headrace.metastore.log.settings_in_force import SettingsInForce
from headrace.metastore.sealing import Sealing
from headrace.protocol.request import RequestHandler
from headrace.storage.clock import Clock
from headrace.storage.objects.store import ObjectStore
from headrace.storage.supervision import Supervisor

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentResources:
    """What an agent has before it finds its cluster, and the paths are made of."""

    settings: Settings
    store: ObjectStore
    metastore: Metastore
    clock: Clock
    rng: random.Random
    nonces: random.Random
    registry: CollectorRegistry
    listener: KafkaListener
    dispatcher: Dispatcher
    quotas: QuotaService
    audit: AuditLog
    sealing: Sealing
    supervisor: Supervisor
    securities: Mapping[str, ListenerSecurity]
    """Security of the listeners that are not PLAINTEXT, by name; filled when they are bound."""
    observer: ProduceObserver | None
    """What traces produce requests, if anything does."""
    fetch_steps: FetchSteps
    on_settled: Callable[[FileTrace], None]
    """Gets the times of each flushed file's steps."""
    is_active_controller: Callable[[], bool]
    reached_here: Callable[[], frozenset[str]]
    """The dependencies that answer this process."""


class RequestPaths:
    """The request paths of one agent. `serve` answers every request of its clients."""

    def __init__(
        self, foundation: AgentResources, cluster: Cluster, advertised: tuple[Listener, ...], zone_secret: bytes
    ) -> None:
        """`advertised`: where clients of each listener are sent. `zone_secret`: with it agents prove who they are."""
        self._base, self._cluster, self._zone_secret = foundation, cluster, zone_secret
        base = foundation
        self._traffic = ZoneTraffic(base.settings.broker_rack, base.registry)
        self._by_topic = TopicTraffic(base.settings.topic_metrics_max, cluster.topic_name, base.registry)
        self._shared = shared_address(base.settings, cluster, advertised)
        self._authorizer = reporting_authorizer(base.settings, cluster, base.clock, base.registry, base.audit)
        self._connect: Connect = partial(open_connection, tls=link_context(base.settings, base.clock))
        self.fetch = self._compose_fetch()
        self.produce = self._compose_produce()
        self.client_rows = ClientRows(
            base.metastore.client_rows,
            SettingsInForce(base.settings, lambda: cluster.image).current,
            base.clock,
            lambda limit: limits_reached(base.registry).labels(limit).inc(),
            base.registry,
        )
        self._groups = GroupHandlers(
            *(base.metastore, cluster, base.settings, base.clock, base.rng, base.registry, self._authorizer.enforced),
            supervisor=base.supervisor,
            rows=self.client_rows,
            store=base.store,
        )
        self._forward = self._compose_forwarding()
        sealed_keys = SealedKeys(base.sealing, base.metastore.cluster_id)
        remembered = register_handlers(base.dispatcher, self._parts(sealed_keys))
        watch_memory(base.settings, self._memory_in_use() | remembered, base.registry)
        self.serve: RequestHandler = authenticated(
            *(base.dispatcher, base.settings, base.securities, cluster, zone_secret, sealed_keys),
            *(base.clock, base.nonces, base.registry, base.audit),
        )
        self.reports = self._compose_reports()

    async def start(self) -> None:
        """Raises the error that prevented it."""
        await self.fetch.start()
        await self.produce.start()

    def life_is_over(self) -> None:
        """Another server is the metastore by now: record what only this one may have had."""
        self.fetch.life_is_over()
        self._groups.share_owner.record_answered()

    def life_begins(self) -> None:
        """A life of the metastore begins for this process."""
        self.fetch.life_begins()
        self.produce.life_begins()
        self._groups.share_owner.life_begins()

    async def drain(self, grace_seconds: float) -> None:
        """Answer every request in progress."""
        self.fetch.drain()
        self._forward.drain()
        await asyncio.gather(self._drain_produce(grace_seconds), self._base.listener.drain(grace_seconds))
        await self._groups.close()
        await self.produce.close()

    async def close(self) -> None:
        """End what is left."""
        await self._forward.close()
        await self.fetch.close()

    async def _drain_produce(self, grace_seconds: float) -> None:
        """Limited in time: with the metastore unavailable a file's outcome may stay unknown for as long."""
        try:
            async with asyncio.timeout(grace_seconds):
                await self.produce.drain()
        except TimeoutError:
            logger.warning("drain ran out of time: clients retry batches with an unknown outcome")

    def _compose_fetch(self) -> FetchService:
        base, cluster = self._base, self._cluster
        return FetchService(
            base.store,
            base.metastore,
            cluster,
            base.settings,
            base.clock,
            base.rng,
            base.registry,
            on_metadata_moved=cluster.follower.poke,
            rendered_logs=base.metastore,
            zone_secret=self._zone_secret,
            traffic=self._traffic,
            shared_address=self._shared,
            connect=self._connect,
            authorizer=self._authorizer.enforced,
            count_sent=self._by_topic.sent,
            steps=base.fetch_steps,
            supervisor=base.supervisor,
            uploading=lambda: self.produce.is_uploading,
            note_damage=base.metastore.note_damage,
        )

    def _compose_produce(self) -> ProducePipeline:
        base, cluster, fetch = self._base, self._cluster, self.fetch
        callbacks = Callbacks(
            database_now_ms=fetch.database_now_ms,
            on_flushed=fetch.on_flushed,
            committing=fetch.committing,
            on_committed=fetch.on_committed,
            on_fenced=cluster.membership.check_now,
            on_settled=base.on_settled,
            log_start_offset=fetch.log_start_offset,
        )
        return ProducePipeline(
            base.store,
            base.metastore,
            cluster,
            base.settings,
            base.clock,
            base.rng,
            callbacks,
            base.registry,
            base.listener.produce_bytes,
            self._authorizer.enforced,
            self._by_topic.received,
            base.observer,
        )

    def _compose_forwarding(self) -> ForwardService:
        base, cluster = self._base, self._cluster
        forward = ForwardService(
            self._zone_secret,
            cluster,
            self._shared,
            without_coordinator(base.metastore, cluster, base.settings, base.clock, base.rng),
            base.dispatcher.handle,
            self.fetch.database_now_ms,
            base.clock,
            base.rng,
            base.registry,
            inter_broker=listeners(base.settings).inter_broker,
            connect=self._connect,
        )
        cluster.follower.on_image.append(forward.links.on_image)
        return forward

    def _compose_reports(self) -> AgentReports:
        """Tell other agents what this one reaches, and ask them."""
        base = self._base
        reports = AgentReports(
            self._zone_secret,
            self._cluster,
            base.reached_here,
            self.fetch.database_now_ms,
            base.clock,
            base.rng,
            listeners(base.settings).inter_broker,
            self._connect,
        )
        base.dispatcher.register_unadvertised(PEER_HEALTH_KEY, reports.handle)
        return reports

    def _parts(self, sealed_keys: SealedKeys) -> HandlerParts:
        base, cluster = self._base, self._cluster
        return HandlerParts(
            settings=base.settings,
            clock=base.clock,
            rng=base.rng,
            cluster=cluster,
            metastore=base.metastore,
            produce=self.produce,
            fetch=self.fetch,
            groups=self._groups,
            forward=self._forward,
            shared=self._shared,
            traffic=self._traffic,
            is_active_controller=base.is_active_controller,
            registry=base.registry,
            limits_reached=limits_reached(base.registry),
            audit=base.audit,
            mutations=base.quotas.mutations,
            sealed_keys=sealed_keys,
            authorizer=self._authorizer,
            may_be_behind=cluster.may_be_behind,
            rows=self.client_rows,
        )

    def _memory_in_use(self) -> dict[str, Callable[[], float]]:
        """Bytes by part of the memory budget."""
        base = self._base
        own: dict[str, Callable[[], float]] = {
            "access_decisions": lambda: self._authorizer.decisions.in_use_bytes,
            "client_zones": lambda: zone.remembered.in_use_bytes,
        }
        paths = self.produce.memory_in_use() | self.fetch.memory_in_use() | self._groups.memory_in_use
        return base.listener.memory_in_use() | base.quotas.memory_in_use() | paths | own
