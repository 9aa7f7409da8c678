"""The controller role of a process: a candidate for the active controller, and its listener if it has one.

Place: under controller_role.py.
Invariant: the listener is for operators and other software, never for clients: no Metadata response contains
it. A standby answers NOT_CONTROLLER to requests for the active controller.
After a crash, a standby takes over within controller.lease.ms.
Source: KIP-631, networking; which requests a controller answers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import replace
from functools import partial

from prometheus_client import CollectorRegistry

from headrace.agent.access.audit import AuditLog
from headrace.agent.access.authorization.denial_log import reporting_authorizer
from headrace.agent.access.listener_security import ListenerSecurity, link_context
from headrace.agent.apis.api_row import register_rows
from headrace.agent.apis.cluster import CONTROLLER_ROWS
from headrace.agent.apis.dispatch import Dispatcher
from headrace.agent.apis.parts import ControllerParts
from headrace.agent.cluster.controller.agent_links import open_link
from headrace.agent.cluster.controller.consumer_lag import ConsumerLags
from headrace.agent.cluster.controller.controller import Controller, controller_steps
from headrace.agent.cluster.controller.controller_times import ControllerTimes
from headrace.agent.cluster.controller.held_lease import HeldLease
from headrace.agent.cluster.controller.schedules import schedules
from headrace.agent.cluster.controller.topic_sizes import TopicSizes
from headrace.agent.cluster.controller.transaction_ends import EndingTimes, TransactionEnds
from headrace.agent.cluster.follower import MetadataFollower
from headrace.agent.cluster.log_change import LogChange
from headrace.agent.cluster.view import ClusterView
from headrace.agent.listener.host import Limits
from headrace.agent.listener.server import KafkaListener
from headrace.agent.serve.authenticated import authenticated
from headrace.config.listeners import Endpoint, SecurityProtocol
from headrace.metastore.log.effective_configs import EffectiveConfigs, SettingsInForce
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

        steps = controller_steps(
            context,
            follower,
            times,
            lambda image: schedules(configs, image),
            ConsumerLags(metastore.reports, settings.consumer_lag_metrics_max, registry),
            TopicSizes(metastore.reports, settings.topic_metrics_max, registry),
            TransactionEnds(metastore.transactions, lambda: EndingTimes.of(in_force.current()), registry),
        )
        self.controller = Controller(
            context,
            follower,
            times,
            steps,
            held=held,
            node_id=lambda: view.node_id,
            connect=partial(open_link, tls=link_context(settings, clock)),
        )
        self.port = 0
        self._supervisor = context.supervisor
        self._metastore, self._view, self._settings, self._clock = metastore, view, settings, clock
        self._dispatcher = Dispatcher(lambda: view.image)
        # This listener gets few requests, and the process's main listener already uses the metrics with these names.
        own_registry = CollectorRegistry()
        self._own = replace(context, registry=own_registry)
        self._audit = audit = AuditLog(clock, own_registry)
        authorizer = reporting_authorizer(settings, view, clock, own_registry, audit)
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
