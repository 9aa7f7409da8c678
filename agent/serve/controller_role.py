"""The controller role of a process: a candidate for the active controller, in a broker's process or alone.

Place: run by cli/process/shell.py. In the process of a broker it is the broker's node and follows the broker's
image; alone it has its own. ControllerEndpoint is the candidate with its listener, if it has one.
Invariant: alone, it is in no Metadata response and registers nothing; its node id is configured, because there is no
registration to lease one by. The listener is for operators and other software, never for clients: no Metadata
response contains it. A standby answers NOT_CONTROLLER to requests for the active controller.
After a crash, a standby takes over within controller.lease.ms.
Source: KIP-631, process.roles, networking; which requests a controller answers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import replace
from functools import partial
from typing import Any

from prometheus_client import CollectorRegistry

from headrace.agent.access.audit import AuditLog
from headrace.agent.access.authorization.authorizer import reporting_authorizer
from headrace.agent.access.listener_security import ListenerSecurity, link_context
from headrace.agent.apis.api_row import register_rows
from headrace.agent.apis.cluster import CONTROLLER_ROWS
from headrace.agent.apis.dispatch import Dispatcher
from headrace.agent.apis.parts import ControllerParts
from headrace.agent.cluster.controller.agent_links import open_link
from headrace.agent.cluster.controller.cluster_metrics import ConsumerLags, TopicSizes
from headrace.agent.cluster.controller.completing_steps import EndingTimes, TransactionEnds
from headrace.agent.cluster.controller.controller import Controller, controller_steps
from headrace.agent.cluster.controller.link_steps import LinkSteps
from headrace.agent.cluster.controller.rounds import ControllerTimes, HeldLease
from headrace.agent.cluster.controller.upkeep_steps import schedules
from headrace.agent.cluster.follower import MetadataFollower, MetadataMetrics
from headrace.agent.cluster.log_change import LogChange
from headrace.agent.cluster.routing import Routes
from headrace.agent.cluster.view import ClusterView
from headrace.agent.listener.host import Limits
from headrace.agent.listener.server import KafkaListener
from headrace.agent.serve.authenticated import authenticated
from headrace.agent.serve.broker import Broker
from headrace.agent.serve.link_rights import LinkRights
from headrace.agent.topics.topic_rules import TopicDefaults
from headrace.config.addresses import address_text
from headrace.config.listeners import CONTROLLER, Endpoint, SecurityProtocol, listeners
from headrace.metastore.log.effective_configs import EffectiveConfigs, SettingsInForce
from headrace.metastore.log.image import AgentImage, MetadataImage
from headrace.metastore.log.scram_keys import SealedKeys
from headrace.metastore.process_context import ProcessContext
from headrace.metastore.sealing import Sealing
from headrace.protocol.request import Request, RequestHandler, Response


class ControllerEndpoint:
    """Created with its process's view of the cluster; `start`, then `stop`."""

    def __init__(
        self,
        context: ProcessContext,
        held: HeldLease,
        view: ClusterView,
        follower: MetadataFollower,
    ) -> None:
        settings, metastore, clock, registry = context.settings, context.metastore, context.clock, context.registry
        configs, in_force = EffectiveConfigs(settings), SettingsInForce(settings, lambda: view.image)

        def times() -> ControllerTimes:
            return ControllerTimes.of(in_force.current())

        # This listener gets few requests, and the process's main listener already uses the metrics with these names.
        own_registry = CollectorRegistry()
        self._own = replace(context, registry=own_registry)
        self._audit = audit = AuditLog(clock, own_registry)
        authorizer = reporting_authorizer(settings, view, clock, own_registry, audit)
        steps = controller_steps(
            context,
            follower,
            times,
            lambda image: schedules(configs, image),
            ConsumerLags(metastore.reports, settings.consumer_lag_metrics_max, registry),
            TopicSizes(metastore.reports, settings.topic_metrics_max, registry),
            TransactionEnds(metastore.transactions, lambda: EndingTimes.of(in_force.current()), registry),
        )
        rights = LinkRights(authorizer, lambda: TopicDefaults.of(in_force.current()))
        links = LinkSteps(metastore, follower, clock, context.rng, registry, rights)
        self.controller = Controller(
            context,
            follower,
            times,
            [*steps, links.step()],
            held=held,
            node_id=lambda: view.node_id,
            connect=partial(open_link, tls=link_context(settings, clock)),
        )
        self.port = 0
        self._supervisor = context.supervisor
        self._metastore, self._view, self._settings, self._clock = metastore, view, settings, clock
        self._dispatcher = Dispatcher(lambda: view.image)
        parts = ControllerParts(
            cluster=view,
            metastore=metastore,
            in_force=in_force,
            change=LogChange(view, metastore.cluster, clock),
            is_active_controller=held.is_active,
            shared=None,
        )
        register_rows(self._dispatcher, CONTROLLER_ROWS, parts, authorizer, audit)
        self._serve: RequestHandler = self._dispatcher.handle
        self._listener = KafkaListener(
            self._handle,
            Limits.from_settings(settings),
            clock,
            own_registry,
            supervisor=context.supervisor,
            refused_certificate=audit.failed_authentication,
        )
        self._refreshing: asyncio.Task[None] | None = None

    async def start(self, endpoint: Endpoint | None) -> None:
        """Try to acquire the lease, and listen if an endpoint is given. OSError if the address cannot be bound."""
        if endpoint is not None:
            is_plain = endpoint.security_protocol is SecurityProtocol.PLAINTEXT
            security = None if is_plain else ListenerSecurity(self._settings, endpoint, self._clock)
            if security is not None and security.must_authenticate:
                self._serve = self._authenticated(endpoint, security, await self._metastore.cluster.zone_secret())
                self._refreshing = self._supervisor.keep("certificates of the controller listener", security.run)
            self.port = await self._listener.start(endpoint.host, endpoint.port, endpoint.name, security=security)
        self.controller.start()

    async def stop(self, grace_seconds: float) -> None:
        """Answer requests in progress, and release the lease."""
        await self._listener.drain(grace_seconds)
        await self.controller.stop()
        if self._refreshing is not None:
            self._refreshing.cancel()

    def _authenticated(self, endpoint: Endpoint, security: ListenerSecurity, zone_secret: bytes) -> RequestHandler:
        """Serves clients that have authenticated, as on the listeners of a broker."""
        sealing = Sealing(self._settings.metadata_secret_keys)
        return authenticated(
            self._own,
            self._dispatcher,
            {endpoint.name: security},
            self._view,
            zone_secret,
            SealedKeys(sealing, self._metastore.cluster_id),
            self._audit,
        )

    def _handle(self, request: Request) -> Awaitable[Response]:
        return self._serve(request)


class ControllerView:
    """Implements agent.cluster.view.ClusterView for a process that is not an agent."""

    broker_epoch = -1

    def __init__(self, node_id: int, cluster_id: str, commit_shards: int, follower: MetadataFollower) -> None:
        self.node_id = node_id
        self.cluster_id = cluster_id
        self._opened_with = commit_shards
        self._follower = follower
        self._routes = Routes(self.image, commit_shards)

    @property
    def commit_shards(self) -> int:
        return self.image.commit_shards(self._opened_with)

    @property
    def image(self) -> MetadataImage:
        return self._follower.image

    @property
    def routes(self) -> Routes:
        if self._routes.image is not self.image:
            self._routes = Routes(self.image, self.commit_shards, self._routes)
        return self._routes

    async def catch_up(self) -> MetadataImage:
        return await self._follower.catch_up()

    def leader(self, partition_key: int, zone: str | None = None) -> AgentImage | None:
        return self.routes.leader(partition_key, zone)

    def coordinator(self, group_id: str) -> AgentImage | None:
        return self.routes.coordinator(group_id)


class ControllerRole:
    """Implements MainRole for a process without a broker, else Role. `broker` starts first."""

    title = CONTROLLER
    needs_bucket = False

    def __init__(
        self,
        context: ProcessContext,
        held: HeldLease,
        broker: Broker | None = None,
    ) -> None:
        """Note: without `broker`, node.id must be set. `held`: where the process reads whether this one is active."""
        self._context, self._held, self._broker = context, held, broker
        self._settings, self._metastore = context.settings, context.metastore
        self._follower: MetadataFollower | None = None
        """Its own, without a broker."""
        self._endpoint: ControllerEndpoint | None = None

    @property
    def is_active(self) -> bool:
        """Whether it holds the controller lease."""
        return self._held.is_active()

    @property
    def image(self) -> MetadataImage | None:
        """Its own, without a broker; None before it has one."""
        return None if self._endpoint is None or self._follower is None else self._follower.image

    async def start(self) -> None:
        """Follow the log and try to acquire the lease."""
        if self._broker is not None:
            cluster = self._broker.cluster
            assert cluster is not None, "the broker starts first"
            view: ClusterView = cluster
            follower = cluster.follower
        else:
            follower = self._follower = MetadataFollower(self._metastore.cluster)
            view = self._view_of(follower)
            await follower.catch_up()
            MetadataMetrics(follower, self._context.registry)
        self._endpoint = ControllerEndpoint(self._context, self._held, view, follower)
        await self._endpoint.start(listeners(self._settings).controller)

    async def drain(self, grace_seconds: float) -> None:
        """It stays a candidate until the broker of its process is drained."""

    async def close(self, grace_seconds: float) -> None:
        """Release the lease and stop."""
        if self._endpoint is not None:
            await self._endpoint.stop(grace_seconds)
        if self._follower is not None:
            await self._follower.close()

    def ready_fields(self) -> str:
        """Node id, and the address of the controller listener if there is one."""
        assert self._endpoint is not None
        found = listeners(self._settings).controller
        address = "none" if found is None else address_text(found.host, self._endpoint.port)
        return f"node={self._settings.node_id} controller={address}"

    def not_ready(self) -> None:
        """None: while the metastore answers, it can acquire the lease."""
        return None

    async def status(self) -> dict[str, Any]:
        """Identity and image of a controller alone, for people."""
        return {
            "roles": [CONTROLLER],
            "cluster_id": self._metastore.cluster_id,
            "node_id": self._settings.node_id,
            "active": self.is_active,
            "active_controller": self._held.controller_id,
            "metadata_offset": self._follower.image.offset if self._follower is not None else -1,
        }

    def _view_of(self, follower: MetadataFollower) -> ControllerView:
        assert self._settings.node_id is not None
        return ControllerView(
            self._settings.node_id, self._metastore.cluster_id, self._metastore.commit_shards, follower
        )
