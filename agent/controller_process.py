"""A process that is only a controller (process.roles=controller): no data, no clients.

Place: cli/serving.py runs it instead of an Agent.
Invariant: it is in no Metadata response and registers nothing; its node id is configured, because it has no
registration from which to lease one. After a crash, a standby takes over within controller.lease.ms.
Source: KIP-631, process.roles.
"""

from __future__ import annotations

import asyncio
import random
from typing import Any, Self

from prometheus_client import REGISTRY, CollectorRegistry

from headrace.agent.cluster.follower import MetadataFollower
from headrace.agent.cluster.metadata_metrics import MetadataMetrics
from headrace.agent.cluster.routing import Routes
from headrace.agent.controller_endpoint import ControllerEndpoint
from headrace.agent.http.app import make_app
from headrace.agent.http.server import HttpServer, ask
from headrace.config.errors import ConfigError
from headrace.config.listeners import listeners
from headrace.config.settings import Settings
from headrace.metastore.api.metastore import Metastore
from headrace.metastore.log.image import AgentImage, MetadataImage
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.storage.clock import SystemClock
from headrace.storage.cluster_properties import require_formatted
from headrace.storage.errors import HeadraceError
from headrace.storage.objects.open import StoreOptions, open_store
from headrace.storage.objects.store import ObjectStore


class ControllerView:
    """Implements agent.cluster.view.ClusterView for a process that is not an agent."""

    broker_epoch = -1

    def __init__(self, node_id: int, cluster_id: str, commit_shards: int, follower: MetadataFollower) -> None:
        self.node_id = node_id
        self.cluster_id = cluster_id
        self.commit_shards = commit_shards
        self._follower = follower

    @property
    def image(self) -> MetadataImage:
        return self._follower.image

    async def catch_up(self) -> MetadataImage:
        return await self._follower.catch_up()

    def leader(self, partition_key: int, zone: str | None = None) -> AgentImage | None:
        return Routes(self.image, self.commit_shards).leader(partition_key, zone)

    def coordinator(self, group_id: str) -> AgentImage | None:
        return Routes(self.image, self.commit_shards).coordinator(group_id)


class ControllerProcess:
    """Create it with `open`, then `start` and finally `stop`; the same steps as an Agent's."""

    def __init__(
        self, settings: Settings, store: ObjectStore, metastore: Metastore, registry: CollectorRegistry
    ) -> None:
        if settings.node_id is None:
            raise ConfigError("node.id is not set: a process that is only a controller cannot lease one")
        self._settings, self._store, self._metastore, self._registry = settings, store, metastore, registry
        self._loop = asyncio.get_running_loop()
        self._follower = MetadataFollower(metastore)
        self._view = ControllerView(settings.node_id, metastore.cluster_id, metastore.commit_shards, self._follower)
        self._endpoint = ControllerEndpoint(
            metastore, self._view, self._follower, settings, SystemClock(), random.Random(), registry
        )
        self._http = HttpServer(make_app(self, registry), settings.http_host, settings.http_port)

    @classmethod
    async def open(cls, settings: Settings, registry: CollectorRegistry = REGISTRY) -> Self:
        """Connect to metastore and bucket; errors as PostgresMetastore.open and open_store, and ConfigError."""
        store = open_store(settings.bucket, StoreOptions.of(settings), clock=SystemClock(), rng=random.Random())
        metastore = await PostgresMetastore.open(settings.metastore_url, settings)
        return cls(settings, store, metastore, registry)

    async def require_formatted_storage(self) -> None:
        """InvalidError, with instructions, unless bucket and metastore were formatted as the same cluster."""
        await require_formatted(self._store, self._metastore.cluster_id)

    async def start(self) -> None:
        """Follow the log and try to acquire the lease."""
        self._http.start()
        await self._follower.catch_up()
        MetadataMetrics(self._follower, self._registry)
        await self._endpoint.start(listeners(self._settings).controller)

    async def stop(self) -> None:
        """Release the lease and stop. Safe in any state."""
        await self._endpoint.stop(self._settings.shutdown_grace_ms / 1000)
        await self._follower.close()
        await asyncio.to_thread(self._http.stop)
        await self._metastore.close()
        await self._store.close()

    def ready_line(self) -> str:
        """The line that the command prints when it is ready."""
        found = listeners(self._settings).controller
        address = "none" if found is None else f"{found.host}:{self._endpoint.port}"
        return f"ready node={self._view.node_id} controller={address} http={self._settings.http_host}:{self._http.port}"

    # -- agent.http.app.Probe, called on the HTTP loop

    async def not_ready_reason(self) -> str | None:
        """None while it can acquire the lease."""
        return await ask(self._loop, self._not_ready_reason())

    async def status(self) -> dict[str, Any]:
        """Identity and image, for people."""
        return await ask(self._loop, self._status())

    async def _not_ready_reason(self) -> str | None:
        try:
            await self._metastore.metadata_head()
        except HeadraceError as error:
            return f"metastore: {error}"
        return None

    async def _status(self) -> dict[str, Any]:
        return {
            "roles": ["controller"],
            "cluster_id": self._view.cluster_id,
            "node_id": self._view.node_id,
            "active": self._endpoint.controller.is_active,
            "active_controller": self._endpoint.controller.active_id,
            "metadata_offset": self._view.image.offset,
        }
