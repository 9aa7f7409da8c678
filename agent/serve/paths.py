"""The paths of a broker's requests, composed: produce, fetch, groups, forwarding, and the handlers in front of them.

Place: made by broker.py when the agent has found its cluster; started, drained and closed by it.
Invariant: composing does no work: nothing is served, asked or written before `start`. A drained path has answered what
it had received, unless the grace period ended.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial

from headrace.agent.access.admin.delegation_tokens import DelegationTokens
from headrace.agent.access.authorization.denial_log import reporting_authorizer
from headrace.agent.access.listener_security import link_context
from headrace.agent.apis.group_parts import GroupParts
from headrace.agent.apis.parts import BrokerParts
from headrace.agent.cluster import zone
from headrace.agent.cluster.cluster import Cluster
from headrace.agent.cluster.compose import shared_address
from headrace.agent.cluster.log_change import LogChange
from headrace.agent.cluster.newest_counts import NewestCounts
from headrace.agent.cluster.topic_traffic import TopicTraffic
from headrace.agent.cluster.zone_traffic import ZoneTraffic
from headrace.agent.fetch.allowed_topics import AllowedTopics
from headrace.agent.fetch.service import FetchService
from headrace.agent.fetch.share.handlers import ShareHandlers
from headrace.agent.fetch.share.sessions import ShareSessions
from headrace.agent.limits.client_rows import ClientRows
from headrace.agent.limits.limit_metrics import limits_reached
from headrace.agent.limits.memory_metrics import watch_memory
from headrace.agent.limits.refusal_log import RefusalLog
from headrace.agent.peers.channel import PEER_HEALTH_KEY
from headrace.agent.peers.connection import Connect, open_connection
from headrace.agent.peers.forwarding.service import ForwardService
from headrace.agent.peers.health_reports import AgentReports
from headrace.agent.produce.pipeline import Callbacks, ProducePipeline
from headrace.agent.serve.agent_resources import AgentResources
from headrace.agent.serve.authenticated import authenticated
from headrace.agent.serve.groups import compose_groups
from headrace.agent.serve.handlers import register_handlers
from headrace.agent.serve.no_coordinator import without_coordinator
from headrace.agent.serve.share_asking import AskShareOwner
from headrace.agent.topics.counts.count_changes import PartitionCounts
from headrace.agent.topics.metadata.metadata import Metadata
from headrace.agent.topics.metadata.metadata_counts import CountsOfTopics
from headrace.agent.topics.topic_creation import TopicCreation
from headrace.agent.topics.topic_rules import TopicDefaults
from headrace.agent.transactions.producer_ids import ProducerIds
from headrace.config.listeners import listeners
from headrace.metastore.api.agents import Listener
from headrace.metastore.log.effective_configs import EffectiveConfigs
from headrace.metastore.log.sealed_keys import SealedKeys
from headrace.metastore.log.settings_in_force import SettingsInForce
from headrace.protocol.request import Request, RequestHandler

logger = logging.getLogger(__name__)


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
        self._in_force = SettingsInForce(base.settings, lambda: cluster.image)
        self.client_rows = ClientRows(
            base.metastore.housekeeping.client_rows,
            self._in_force.current,
            base.clock,
            self._count_limit,
            base.registry,
        )
        self._groups = self._compose_groups()
        self._forward = self._compose_forwarding()
        sealed_keys = SealedKeys(base.sealing, base.metastore.cluster_id)
        parts = self._compose_parts(sealed_keys)
        register_handlers(base.dispatcher, parts, self._groups, self._forward, self._authorizer, base.audit)
        watch_memory(base.settings, self._memory_in_use(parts), base.registry)
        self.serve: RequestHandler = authenticated(
            base.dispatcher,
            base.settings,
            base.securities,
            cluster,
            zone_secret,
            sealed_keys,
            base.clock,
            base.nonces,
            base.registry,
            base.audit,
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
            base.metastore.index,
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
            note_damage=base.metastore.compaction.note_damage,
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

    def _compose_groups(self) -> GroupParts:
        base = self._base
        return compose_groups(
            base.metastore,
            self._cluster,
            base.settings,
            base.clock,
            base.rng,
            base.registry,
            authorizer=self._authorizer.enforced,
            supervisor=base.supervisor,
            rows=self.client_rows,
            store=base.store,
            logs=self.fetch.share_logs,
        )

    def _compose_parts(self, sealed_keys: SealedKeys) -> BrokerParts:
        """What the handlers of all APIs but those of groups are made of."""
        base, cluster, in_force = self._base, self._cluster, self._in_force
        configs, refused, change = (
            EffectiveConfigs(base.settings),
            RefusalLog().refused,
            LogChange(cluster, base.metastore.cluster, base.clock),
        )
        creation = TopicCreation(
            cluster,
            base.metastore.topics,
            base.clock,
            base.rng,
            lambda: TopicDefaults.of(in_force.current()),
            self._count_limit,
        )
        return BrokerParts(
            cluster=cluster,
            metastore=base.metastore,
            settings=base.settings,
            clock=base.clock,
            registry=base.registry,
            in_force=in_force,
            change=change,
            is_active_controller=base.is_active_controller,
            shared=self._shared,
            sealed_keys=sealed_keys,
            tokens=DelegationTokens(change, base.rng, in_force, self._authorizer.enforced, self._count_limit),
            produce=self.produce,
            fetch=self.fetch,
            share=self._compose_share(),
            metadata=self._compose_metadata(creation, configs, refused),
            configs=configs,
            creation=creation,
            counts=PartitionCounts(cluster, base.metastore.topics, base.clock, creation.defaults, self._count_limit),
            producer_ids=ProducerIds(base.metastore.commits, base.clock),
            traffic=self._traffic,
            mutations=base.quotas.mutations,
            rows=self.client_rows,
            enforced=self._authorizer.enforced,
            refused=refused,
        )

    def _compose_share(self) -> ShareHandlers:
        base, cluster, in_force, enforced = self._base, self._cluster, self._in_force, self._authorizer.enforced
        sessions = ShareSessions(lambda: in_force.current().group_share_max_share_sessions, on_limit=self._count_limit)
        sessions.watch(base.registry)
        return ShareHandlers(
            cluster,
            sessions,
            self.fetch.share_reader,
            AskShareOwner(cluster, self._forward.links, self._groups.share_owner),
            base.clock,
            None if enforced is None else AllowedTopics(enforced, cluster),
        )

    def _compose_metadata(
        self, creation: TopicCreation, configs: EffectiveConfigs, refused: Callable[[Request, str], None]
    ) -> Metadata:
        cluster, in_force = self._cluster, self._in_force
        return Metadata(
            cluster,
            creation,
            lambda: in_force.current().auto_create_topics_enable,
            self._shared,
            CountsOfTopics(configs),
            refused,
            self._authorizer.enforced,
            NewestCounts(cluster, self._base.clock, cluster.may_be_behind),
        )

    def _count_limit(self, setting: str) -> None:
        """Count a request that a limit refused."""
        limits_reached(self._base.registry).labels(setting).inc()

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
