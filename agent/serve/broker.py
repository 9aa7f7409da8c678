"""Composes the broker role of a process: it serves Kafka's clients from start to close.

Place: run by cli/process/shell.py, which owns the connections and the HTTP server. One more task on the event loop
measures its delay: the first metric to look at if everything is slow.
Invariant: clients are served only between joining and leaving the cluster. Draining flushes, commits and answers the
batches that were received, unless the grace period ends. The delay is a histogram: a scrape sees the delays since
the previous one, also short ones, and not only the one before it.
After a crash nothing acknowledged is lost; clients retry batches with an unknown outcome.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from prometheus_client import CollectorRegistry, Histogram

from headrace.agent.access.audit import AuditLog
from headrace.agent.access.listener_security import ListenerSecurity
from headrace.agent.access.quotas.service import QuotaService
from headrace.agent.apis.dispatch import Dispatcher
from headrace.agent.cluster.cluster import Cluster, compose_cluster
from headrace.agent.cluster.follower import MetadataMetrics
from headrace.agent.cluster.heartbeats import HeartbeatHealth
from headrace.agent.cluster.membership import NOT_A_MEMBER, BrokerState
from headrace.agent.listener.host import Limits
from headrace.agent.listener.server import KafkaListener
from headrace.agent.listener.sockets import connections_possible
from headrace.agent.serve.housekeeping import Housekeeper
from headrace.agent.serve.paths import UNOBSERVED, AgentFoundation, PathObservers, RequestPaths
from headrace.config.addresses import address_text
from headrace.config.listeners import Endpoint, SecurityProtocol, listeners
from headrace.metastore.api.agents import Listener, agent_features
from headrace.metastore.log.effective_configs import EffectiveConfigs
from headrace.metastore.log.image import MetadataImage
from headrace.metastore.process_context import ProcessContext
from headrace.metastore.sealing import Sealing
from headrace.protocol.request import Request, RequestHandler, Response
from headrace.storage.clock import Clock
from headrace.storage.dependency import NotReady, Reported

INTERVAL_SECONDS = 0.5


def loop_lag(registry: CollectorRegistry) -> Histogram:
    """Declare the metric; once per process, also if the loop below is started again."""
    return Histogram(
        "headrace_event_loop_lag_seconds",
        "How late the event loop woke a sleeping task, twice a second",
        buckets=(0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 2),
        registry=registry,
    )


async def watch_loop_lag(clock: Clock, lag: Histogram) -> None:
    """Measure until cancelled how much later than requested a sleep returns."""
    while True:
        asked = clock.monotonic()
        await clock.sleep(INTERVAL_SECONDS)
        lag.observe(max(0.0, clock.monotonic() - asked - INTERVAL_SECONDS))


logger = logging.getLogger(__name__)


class Broker:
    """Serves Kafka clients: `start`, then `drain` and `close`."""

    title = "agent"
    needs_bucket = True

    def __init__(
        self,
        context: ProcessContext,
        *,
        health: HeartbeatHealth,
        is_active_controller: Callable[[], bool],
        reached_here: Callable[[], frozenset[str]],
        observers: PathObservers = UNOBSERVED,
    ) -> None:
        """`health`: where the process reads whether heartbeats are answered. `is_active_controller`: whether the
        controller in the same process, if any, is the active one. `reached_here`: the dependencies that answer this
        process (storage/dependency.py), which it reports to other agents."""
        clock, registry = context.clock, context.registry
        self.settings = context.settings
        self._context, self._health, self._supervisor = context, health, context.supervisor
        self._configs = EffectiveConfigs(context.settings)
        self.audit = AuditLog(clock, registry)
        self._serving = asyncio.Event()
        self._early = 0
        """Requests that arrived before the agent served and have not started. Later requests may not overtake
        them."""
        self._dispatcher = Dispatcher(self._image)
        self._serve: RequestHandler = self._dispatcher.handle
        self._listener = self._compose_listener()
        self._quotas = QuotaService(context, self._listener, lambda: self.node_id)
        self._securities: dict[str, ListenerSecurity] = {}
        """Of the listeners that are not PLAINTEXT, by name."""
        self.kafka_port = 0
        """Of the first listener."""
        self._advertised: tuple[Listener, ...] = ()
        """Where clients of each listener are sent, the first one for clients first."""
        self.cluster: Cluster | None = None
        self._foundation = AgentFoundation(
            context=context,
            listener=self._listener,
            dispatcher=self._dispatcher,
            quotas=self._quotas,
            audit=self.audit,
            sealing=Sealing(context.settings.metadata_secret_keys),
            securities=self._securities,
            observers=observers,
            is_active_controller=is_active_controller,
            reached_here=reached_here,
        )
        self._paths: RequestPaths | None = None
        self._background: set[asyncio.Task[None]] = set()

    def _compose_listener(self) -> KafkaListener:
        return KafkaListener(
            self._handle,
            Limits.from_settings(self.settings),
            self._context.clock,
            self._context.registry,
            self._max_connections,
            self._supervisor,
            refused_certificate=self.audit.failed_authentication,
        )

    @property
    def node_id(self) -> int | None:
        """Return None until it has registered."""
        return None if self.cluster is None or self.cluster.node_id < 0 else self.cluster.node_id

    @property
    def image(self) -> MetadataImage | None:
        """The newest; None until it has registered."""
        return None if self.cluster is None or self.node_id is None else self.cluster.image

    async def start(self) -> None:
        """Listen, join the cluster, then serve. Raises the error that prevented it."""
        await self._listen()
        features = agent_features(has_secret_keys=bool(self._foundation.sealing))
        metastore, registry = self._context.metastore, self._context.registry
        cluster = compose_cluster(self._context, self._advertised, features, self._health)
        cluster.follower.on_image.append(self._quotas.on_image)
        await cluster.follower.catch_up()
        MetadataMetrics(cluster.follower, registry)
        paths = RequestPaths(self._foundation, cluster, self._advertised, await metastore.cluster.zone_secret())
        self._serve = paths.serve
        self.cluster, self._paths = cluster, paths  # from here on `close` has to leave the cluster
        await paths.start()
        await cluster.start()
        housekeeper = Housekeeper(
            metastore.housekeeping,
            self._context.clock,
            self._context.rng,
            registry,
            agents=lambda: len(cluster.follower.image.live_agents()),
            count_rows=paths.client_rows.refresh,
        )
        self._keep("warm-up of handlers", self._dispatcher.warm_up)
        self._keep("event loop lag", partial(watch_loop_lag, self._context.clock, loop_lag(registry)))
        self._keep("quotas", self._quotas.run)
        self._keep("housekeeping", housekeeper.run)
        self._serving.set()

    def life_changed(self, is_current: bool) -> None:
        """Follow a change of the metastore's life. `is_current`: whether this process's server is the metastore.

        While it is not, other agents know more, and clients cannot connect here: they would get an old view of the
        cluster, and come back because of it.
        """
        self._listener.suspend(not is_current)
        if self._paths is None:
            return  # it has not joined the cluster
        if is_current:
            self._paths.life_begins()
        else:
            self._paths.life_is_over()

    async def drain(self, grace_seconds: float) -> None:
        """Leave the routing, then answer every request in progress. Nothing to do after a failed start."""
        if self.cluster is not None and self._paths is not None:
            await self.cluster.membership.controlled_shutdown()
            await self._paths.drain(grace_seconds)

    async def close(self, grace_seconds: float) -> None:
        """Leave the cluster."""
        if self.cluster is not None and self._paths is not None:
            await self.cluster.stop()
            await self._paths.close()
        for task in self._background:
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)

    def ready_fields(self) -> str:
        """Node id, and the address that clients connect to."""
        assert self.cluster is not None
        first = self._advertised[0]
        return f"node={self.cluster.node_id} kafka={address_text(first.host, first.port)}"

    def not_ready(self) -> NotReady | None:
        """Return None while it is a running member and can produce."""
        if self.cluster is None or self._paths is None:
            return NotReady(NOT_A_MEMBER)
        if stopped := self._paths.produce.stopped:
            return NotReady(f"produce is stopped: {stopped}")
        return self.cluster.membership.not_ready()

    async def reported(self) -> Reported:
        """Return what the other agents reach now; none is heard while this one cannot ask."""
        return Reported(frozenset(), False) if self._paths is None else await self._paths.reports.reported()

    async def status(self) -> dict[str, Any]:
        """Identity and image, for people."""
        if self.cluster is None:
            return {"state": BrokerState.NOT_RUNNING.name}
        image = self.cluster.image
        return {
            "state": self.cluster.membership.state.name,
            "cluster_id": self.cluster.cluster_id,
            "node_id": self.cluster.node_id,
            "broker_epoch": self.cluster.broker_epoch,
            "metadata_offset": image.offset,
            "topics": len(image.topics_by_name),
            "agents": [
                {"node_id": a.node_id, "host": a.host, "port": a.port, "rack": a.rack, "fenced": a.fenced}
                for a in image.agents.values()
            ],
        }

    async def _listen(self) -> None:
        """Bind every listener of the broker. Clients are answered once the agent serves."""
        found = listeners(self.settings)
        ports = [
            await self._listener.start(
                e.host,
                e.port,
                e.name,
                for_agents=e.name == found.inter_broker and e != found.serving[0],
                proxy_protocol=e.name in found.proxied,
                security=self._security(e),
            )
            for e in found.serving
        ]
        self.kafka_port = ports[0]
        self._advertised = tuple(
            Listener(e.name, e.host, e.port or port, e.security_protocol)
            for e, port in zip(found.advertised, ports, strict=True)
        )

    def _security(self, endpoint: Endpoint) -> ListenerSecurity | None:
        if endpoint.security_protocol is SecurityProtocol.PLAINTEXT:
            return None
        security = self._securities[endpoint.name] = ListenerSecurity(self.settings, endpoint, self._context.clock)
        self._keep(f"certificates of listener {endpoint.name}", security.run)
        return security

    def _handle(self, request: Request) -> Awaitable[Response]:
        if self._early or not self._serving.is_set():
            self._early += 1
            return self._handle_early(request)
        return self._serve(request)

    async def _handle_early(self, request: Request) -> Response:
        await self._serving.wait()
        self._early -= 1
        return await self._serve(request)

    def _image(self) -> MetadataImage:
        return MetadataImage() if self.cluster is None else self.cluster.image

    def _max_connections(self) -> int:
        node_id = -1 if self.cluster is None else self.cluster.node_id
        configured = int(self._configs.broker_layers(self._image(), node_id, "max.connections")[0].value)
        return min(configured, connections_possible(self.settings))

    def _keep(self, name: str, loop: Callable[[], Awaitable[None]]) -> None:
        self._background.add(self._supervisor.keep(name, loop))
