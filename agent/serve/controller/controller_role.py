"""The controller role: a candidate for the active controller, in a broker's process or alone.

Place: run by cli/process/shell.py. In the process of a broker it is the broker's node and follows the broker's image;
alone it has its own.
Invariant: alone, it is in no Metadata response and registers nothing; its node id is configured, because there is no
registration to lease one by. After a crash, a standby takes over within controller.lease.ms.
Source: KIP-631, process.roles.
"""

from __future__ import annotations

from typing import Any

from headrace.agent.cluster.controller.held_lease import HeldLease
from headrace.agent.cluster.follower import MetadataFollower
from headrace.agent.cluster.metadata_metrics import MetadataMetrics
from headrace.agent.cluster.routing import Routes
from headrace.agent.cluster.view import ClusterView
from headrace.agent.serve.broker import Broker
from headrace.agent.serve.controller.controller_endpoint import ControllerEndpoint
from headrace.config.addresses import address_text
from headrace.config.listeners import CONTROLLER, listeners
from headrace.metastore.log.image import AgentImage, MetadataImage
from headrace.metastore.process_context import ProcessContext


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
