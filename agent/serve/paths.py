"""The paths of a broker's requests, composed: produce, fetch, groups, forwarding, and the handlers in front of them.

Place: made by broker.py when the agent has found its cluster; started, drained and closed by it.
Invariant: composing does no work: nothing is served, asked or written before `start`. A drained path has answered what
it had received, unless the grace period ended.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from headrace.agent.access.admin.delegation_tokens import DelegationTokens
from headrace.agent.access.audit import AuditLog
from headrace.agent.access.authorization.authorizer import reporting_authorizer
from headrace.agent.access.listener_security import ListenerSecurity, link_context
from headrace.agent.access.quotas.service import QuotaService
from headrace.agent.apis.dispatch import Dispatcher
from headrace.agent.apis.parts import BrokerParts, GroupParts
from headrace.agent.cluster import zone
from headrace.agent.cluster.cluster import Cluster, shared_address
from headrace.agent.cluster.log_change import LogChange
from headrace.agent.cluster.newest_counts import NewestCounts
from headrace.agent.cluster.topic_traffic import TopicTraffic
from headrace.agent.cluster.zone import ZoneTraffic
from headrace.agent.fetch.service import UNTRACED, FetchService, FetchSteps, FetchSurroundings
from headrace.agent.fetch.sessions import AllowedTopics
from headrace.agent.fetch.share.handlers import ShareHandlers
from headrace.agent.fetch.share.sessions import ShareSessions
from headrace.agent.limits.client_rows import ClientRows
from headrace.agent.limits.metrics import limits_reached, watch_memory
from headrace.agent.limits.refusal_log import RefusalLog
from headrace.agent.listener.server import KafkaListener
from headrace.agent.peers.channel import PEER_HEALTH_KEY
from headrace.agent.peers.connection import Connect, PeerTerms, open_connection
from headrace.agent.peers.forwarding.service import ForwardService
from headrace.agent.peers.health_reports import AgentReports
from headrace.agent.produce.callbacks import Callbacks, ProduceObserver
from headrace.agent.produce.files import FileTrace
from headrace.agent.produce.pipeline import ProducePipeline
from headrace.agent.serve.authenticated import authenticated
from headrace.agent.serve.groups import AskShareOwner, compose_groups
from headrace.agent.serve.handlers import register_handlers, without_coordinator
from headrace.agent.topics.counts.count_changes import PartitionCounts
from headrace.agent.topics.metadata.described_topics import DescribedTopics
from headrace.agent.topics.metadata.metadata import Metadata
from headrace.agent.topics.metadata.metadata_response import CountsOfTopics
from headrace.agent.topics.topic_creation import CreateForGroup, TopicCreation
from headrace.agent.topics.topic_rules import TopicDefaults
from headrace.agent.transactions.producer_ids import ProducerIds
from headrace.config.listeners import listeners
from headrace.metastore.api.agents import Listener
from headrace.metastore.log.effective_configs import EffectiveConfigs, SettingsInForce
from headrace.metastore.log.scram_keys import SealedKeys
from headrace.metastore.process_context import ProcessContext
from headrace.metastore.sealing import Sealing
from headrace.protocol.request import Request, RequestHandler
from headrace.storage.dependency import BUCKET

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class PathObservers:
    """What watches the paths of an agent: traces and load reports."""

    produce: ProduceObserver | None = None
    """What traces produce requests, if anything does."""
    fetch: FetchSteps = UNTRACED
    on_settled: Callable[[FileTrace], None] = lambda trace: None
    """Gets the times of each flushed file's steps."""


UNOBSERVED = PathObservers()


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentFoundation:
    """What an agent has before it finds its cluster, and the paths are made of."""

    context: ProcessContext
    listener: KafkaListener
    dispatcher: Dispatcher
    quotas: QuotaService
    audit: AuditLog
    sealing: Sealing
    securities: Mapping[str, ListenerSecurity]
    """Security of the listeners that are not PLAINTEXT, by name; filled when they are bound."""
    observers: PathObservers
    is_active_controller: Callable[[], bool]
    reached_here: Callable[[], frozenset[str]]
    """The dependencies that answer this process."""


class RequestPaths:
    """The request paths of one agent. `serve` answers every request of its clients."""

    def __init__(
        self, foundation: AgentFoundation, cluster: Cluster, advertised: tuple[Listener, ...], zone_secret: bytes
    ) -> None:
        """`advertised`: where clients of each listener are sent. `zone_secret`: with it agents prove who they are."""
        self._base, self._cluster, self._zone_secret = foundation, cluster, zone_secret
        base = foundation
        self._context = context = base.context
        settings, metastore, clock, registry = context.settings, context.metastore, context.clock, context.registry
        self._traffic = ZoneTraffic(settings.broker_rack, registry)
        self._by_topic = TopicTraffic(settings.topic_metrics_max, cluster.topic_name, registry)
        self._shared = shared_address(settings, cluster, advertised)
        self._authorizer = reporting_authorizer(settings, cluster, clock, registry, base.audit)
        self._connect: Connect = partial(open_connection, tls=link_context(settings, clock))
        self.fetch = self._compose_fetch()
        self.produce = self._compose_produce()
        between = listeners(settings).inter_broker
        self._terms = PeerTerms(
            zone_secret, lambda: cluster.node_id, self.fetch.database_now_ms, between, self._connect
        )
        self._in_force = SettingsInForce(settings, lambda: cluster.image)
        self.client_rows = ClientRows(
            metastore.housekeeping.client_rows, self._in_force.current, clock, self._count_limit, registry
        )
        self._groups = self._compose_groups()
        self._forward = self._compose_forwarding()
        sealed_keys = SealedKeys(base.sealing, metastore.cluster_id)
        parts = self._compose_parts(sealed_keys)
        register_handlers(base.dispatcher, parts, self._groups, self._forward, self._authorizer, base.audit)
        watch_memory(settings, self._memory_in_use(parts), registry)
        self.serve: RequestHandler = authenticated(
            context, base.dispatcher, base.securities, cluster, zone_secret, sealed_keys, base.audit
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
        cluster = self._cluster
        surroundings = FetchSurroundings(
            on_metadata_moved=cluster.follower.poke,
            zone_secret=self._zone_secret,
            traffic=self._traffic,
            shared_address=self._shared,
            connect=self._connect,
            authorizer=self._authorizer.enforced,
            count_sent=self._by_topic.sent,
            steps=self._base.observers.fetch,
            uploading=lambda: self.produce.is_uploading,
        )
        return FetchService(self._context, cluster, surroundings)

    def _compose_produce(self) -> ProducePipeline:
        base, cluster, fetch = self._base, self._cluster, self.fetch
        callbacks = Callbacks(
            database_now_ms=fetch.database_now_ms,
            on_flushed=fetch.on_flushed,
            committing=fetch.committing,
            on_committed=fetch.on_committed,
            on_fenced=cluster.membership.check_now,
            on_settled=base.observers.on_settled,
            reaches_bucket=lambda: BUCKET in base.reached_here(),
            log_start_offset=fetch.log_start_offset,
            count_received=self._by_topic.received,
        )
        return ProducePipeline(
            self._context,
            cluster,
            callbacks,
            base.listener.produce_bytes,
            self._authorizer.enforced,
            base.observers.produce,
        )

    def _compose_forwarding(self) -> ForwardService:
        context, cluster = self._context, self._cluster
        forward = ForwardService(
            context,
            self._terms,
            cluster,
            self._shared,
            without_coordinator(context, cluster),
            self._base.dispatcher.handle,
        )
        cluster.follower.on_image.append(forward.links.on_image)
        return forward

    def _compose_reports(self) -> AgentReports:
        """Tell other agents what this one reaches, and ask them."""
        reports = AgentReports(
            self._terms, self._cluster, self._base.reached_here, self._context.clock, self._context.rng
        )
        self._base.dispatcher.register_unadvertised(PEER_HEALTH_KEY, reports.handle)
        return reports

    def _compose_groups(self) -> GroupParts:
        return compose_groups(
            self._context,
            self._cluster,
            authorizer=self._authorizer.enforced,
            rows=self.client_rows,
            logs=self.fetch.share_logs,
        )

    def _compose_parts(self, sealed_keys: SealedKeys) -> BrokerParts:
        """Return what the handlers of all APIs but those of groups are made of."""
        base, context, cluster, in_force = self._base, self._context, self._cluster, self._in_force
        configs, refused, change = (
            EffectiveConfigs(context.settings),
            RefusalLog().refused,
            LogChange(cluster, context.metastore.cluster, context.clock),
        )
        creation = TopicCreation(
            cluster,
            context.metastore.topics,
            context.clock,
            context.rng,
            lambda: TopicDefaults.of(in_force.current()),
            self._count_limit,
        )
        self._groups.internal_topics.create = CreateForGroup(creation, base.quotas.mutations)
        return BrokerParts(
            cluster=cluster,
            metastore=context.metastore,
            settings=context.settings,
            clock=context.clock,
            registry=context.registry,
            in_force=in_force,
            change=change,
            is_active_controller=base.is_active_controller,
            shared=self._shared,
            sealed_keys=sealed_keys,
            sealing=base.sealing,
            tokens=DelegationTokens(change, context.rng, in_force, self._authorizer.enforced, self._count_limit),
            produce=self.produce,
            fetch=self.fetch,
            share=self._compose_share(),
            metadata=self._compose_metadata(creation, configs, refused),
            configs=configs,
            creation=creation,
            counts=PartitionCounts(
                cluster, context.metastore.topics, context.clock, creation.defaults, self._count_limit
            ),
            producer_ids=ProducerIds(context.metastore.commits, context.clock),
            traffic=self._traffic,
            mutations=base.quotas.mutations,
            rows=self.client_rows,
            enforced=self._authorizer.enforced,
            refused=refused,
        )

    def _compose_share(self) -> ShareHandlers:
        context, cluster, in_force = self._context, self._cluster, self._in_force
        enforced = self._authorizer.enforced
        sessions = ShareSessions(lambda: in_force.current().group_share_max_share_sessions, on_limit=self._count_limit)
        sessions.watch(context.registry)
        return ShareHandlers(
            cluster,
            sessions,
            self.fetch.share_reader,
            AskShareOwner(cluster, self._forward.links, self._groups.share_owner),
            context.clock,
            None if enforced is None else AllowedTopics(enforced, cluster),
        )

    def _compose_metadata(
        self, creation: TopicCreation, configs: EffectiveConfigs, refused: Callable[[Request, str], None]
    ) -> Metadata:
        cluster, in_force = self._cluster, self._in_force
        topics = DescribedTopics(
            cluster, creation, lambda: in_force.current().auto_create_topics_enable, self._authorizer.enforced
        )
        return Metadata(
            cluster,
            topics,
            self._shared,
            CountsOfTopics(configs),
            refused,
            self._authorizer.enforced,
            NewestCounts(cluster, self._context.clock, cluster.may_be_behind),
        )

    def _count_limit(self, setting: str) -> None:
        """Count a request that a limit refused."""
        limits_reached(self._context.registry).labels(setting).inc()

    def _memory_in_use(self, parts: BrokerParts) -> dict[str, Callable[[], float]]:
        """Bytes by part of the memory budget."""
        base = self._base
        own: dict[str, Callable[[], float]] = {
            "access_decisions": lambda: self._authorizer.decisions.in_use_bytes,
            "client_zones": lambda: zone.remembered.in_use_bytes,
            "metadata_answers": lambda: parts.metadata.in_use_bytes,
            "share_sessions": lambda: parts.share.sessions_bytes,
        }
        paths = self.produce.memory_in_use() | self.fetch.memory_in_use() | dict(self._groups.memory_in_use)
        return base.listener.memory_in_use() | base.quotas.memory_in_use() | paths | own
