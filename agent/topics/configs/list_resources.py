"""ListConfigResources (key 74, versions 0-1): the resources that can be described.

Place: answered from the image.
Invariant: version 0 asks only for subscriptions to client metrics.
Source: KIP-714 (version 0), KIP-1142 (resource types).
"""

from __future__ import annotations

from collections.abc import Iterator

from kio.schema.errors import ErrorCode

from headrace.agent.cluster.view import ClusterView
from headrace.agent.topics.configs.rules import ConfigResource, ResourceType
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

    async def __call__(self, request: Request) -> Response:
        schema, entity = decode(request)
        wanted = getattr(entity, "resource_types", (ResourceType.CLIENT_METRICS,)) or (*ResourceType,)
        code = ErrorCode.none
        found: list[ConfigResource] = []
        if any(kind not in (*ResourceType,) for kind in wanted):
            code = ErrorCode.unsupported_version  # Kafka's answer for an unknown type
        else:
            try:
                image = await self._cluster.catch_up()
                found = [resource for resource in _resources(image) if resource.type in wanted]
            except HeadraceError as error:
                code = ErrorCode(admin_error(error))
        resources = tuple(
            schema.make("ConfigResource", resource_name=resource.name, resource_type=resource.type)
            for resource in found
        )
        return reply(request, schema.response(error_code=code, config_resources=resources))


def _resources(image: MetadataImage) -> Iterator[ConfigResource]:
    """All topics and brokers; groups and subscriptions only if configs were set for them."""
    for name in sorted(image.topics_by_name):
        yield ConfigResource(ResourceType.TOPIC, name)
    for node_id in sorted(image.agents):
        yield ConfigResource(ResourceType.BROKER, str(node_id))
        yield ConfigResource(ResourceType.BROKER_LOGGER, str(node_id))
    for resource_type, name in sorted(image.configs):
        if resource_type in HAVE_CONFIGS:
            yield ConfigResource(resource_type, name)
