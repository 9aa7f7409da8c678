"""A cluster that consists of an image in memory: for the benchmark of Metadata, and for tests with large images.

Place: under load/benchmarks/metadata.py and tests/agent/topics. It makes routes as agent/cluster/cluster.py does: those
of an image take over what did not change from those of the image before.
"""

from __future__ import annotations

from headrace.agent.cluster.routing import Routes
from headrace.metastore.log.image import AgentImage, MetadataImage


class ImageView:
    """Implements agent.cluster.view.ClusterView on an image, which its owner replaces."""

    cluster_id, node_id, broker_epoch = "image", 1, 1

    def __init__(self, image: MetadataImage, commit_shards: int) -> None:
        self.image, self.commit_shards = image, commit_shards
        self._routes = Routes(image, commit_shards)

    @property
    def routes(self) -> Routes:
        if self._routes.image is not self.image:
            self._routes = Routes(self.image, self.commit_shards, self._routes)
        return self._routes

    async def catch_up(self) -> MetadataImage:
        return self.image

    def leader(self, partition_key: int, zone: str | None = None) -> AgentImage | None:
        return self.routes.leader(partition_key, zone)

    def coordinator(self, group_id: str) -> AgentImage | None:
        return self.routes.coordinator(group_id)
