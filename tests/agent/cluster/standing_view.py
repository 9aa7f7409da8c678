"""A ClusterView without a cluster: `image` is what the agent knows, `head` what it finds when it catches up.

Fault model: `unreachable` is raised instead of catching up; `before_catch_up` is awaited first.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from headrace.agent.cluster.routing import Routes
from headrace.metastore.log.image import AgentImage, MetadataImage
from headrace.storage.errors import HeadraceError


class StandingView:
    """Its image moves only when `catch_up` is called."""

    cluster_id = "cluster"

    def __init__(self, commit_shards: int, *, node_id: int, broker_epoch: int) -> None:
        self.commit_shards, self.node_id, self.broker_epoch = commit_shards, node_id, broker_epoch
        self.image = self.head = MetadataImage()
        self.catch_ups = 0
        self.unreachable: HeadraceError | None = None
        self.before_catch_up: Callable[[], Awaitable[object]] | None = None

    @property
    def routes(self) -> Routes:
        return Routes(self.image, self.commit_shards)

    async def catch_up(self) -> MetadataImage:
        self.catch_ups += 1
        if self.before_catch_up:
            await self.before_catch_up()
        if self.unreachable:
            raise self.unreachable
        self.image = self.head
        return self.image

    def leader(self, partition_key: int, zone: str | None = None) -> AgentImage | None:
        return None

    def coordinator(self, group_id: str) -> AgentImage | None:
        return None
