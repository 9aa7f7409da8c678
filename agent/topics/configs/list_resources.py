"""ListConfigResources (key 74, versions 0-1): the resources that can be described.

Place: answered from one image, in slices: a cluster may have 100,000 topics.
Invariant: version 0 asks only for subscriptions to client metrics.
Source: KIP-714 (version 0), KIP-1142 (resource types).
"""

from __future__ import annotations

from collections.abc import Sequence

from kio.schema.errors import ErrorCode
from kio.schema.list_config_resources.v1.request import ListConfigResourcesRequest
from kio.schema.list_config_resources.v1.response import ConfigResource as AnsweredConfigResource

from headrace.agent.cluster.view import ClusterView
from headrace.agent.limits.work_slices import WorkSlices
from headrace.agent.topics.configs.rules import ConfigResource, ResourceType
from headrace.agent.topics.metadata.sorted_topics import SortedTopics
from headrace.metastore.log.image import MetadataImage
from headrace.protocol.errors import admin_error
from headrace.protocol.request import Request, Response
from headrace.protocol.typed import decode, reply
from headrace.storage.errors import HeadraceError

HAVE_CONFIGS = (ResourceType.CLIENT_METRICS, ResourceType.GROUP)
"""Listed if configs were set for them."""


class ListConfigResources:
    """List the resources that can have configs."""

    def __init__(self, cluster: ClusterView) -> None:
        self._cluster = cluster
        self._order = SortedTopics()

    async def __call__(self, request: Request) -> Response:
        schema, entity = decode(request, ListConfigResourcesRequest)
        wanted = getattr(entity, "resource_types", (ResourceType.CLIENT_METRICS,)) or (*ResourceType,)
        code, slices = ErrorCode.none, WorkSlices()
        found: Sequence[ConfigResource] = ()
        if any(kind not in (*ResourceType,) for kind in wanted):
            code = ErrorCode.unsupported_version  # Kafka's answer for an unknown type
        else:
            try:
                image = await self._cluster.catch_up()
                found = await self._resources(image, frozenset(wanted), slices)
            except HeadraceError as error:
                code = ErrorCode(admin_error(error))

        def made(resource: ConfigResource) -> AnsweredConfigResource:
            return schema.make(AnsweredConfigResource, resource_name=resource.name, resource_type=resource.type)

        resources = await slices.each(made, found)
        return reply(request, schema.response(error_code=code, config_resources=resources))

    async def _resources(
        self, image: MetadataImage, wanted: frozenset[int], slices: WorkSlices
    ) -> Sequence[ConfigResource]:
        """All topics and brokers; groups and subscriptions only if configs were set for them."""
        found: list[ConfigResource] = []
        if ResourceType.TOPIC in wanted:
            names = await self._order.names(image, slices)
            found += await slices.each(lambda name: ConfigResource(ResourceType.TOPIC, name), names, 1)
        agents = (ResourceType.BROKER, ResourceType.BROKER_LOGGER)
        found += [
            ConfigResource(kind, str(node_id)) for node_id in sorted(image.agents) for kind in agents if kind in wanted
        ]
        configured = [key for key in image.configs if key[0] in HAVE_CONFIGS and key[0] in wanted]
        await slices.did(len(image.configs) // 8)  # those of topics were only passed over
        for resource_type, name in await slices.in_order(configured):
            found.append(ConfigResource(resource_type, name))
        return found
