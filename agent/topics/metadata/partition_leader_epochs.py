"""PartitionLeaderEpochsForPartitions: what readers of new and of marked partitions wait for.

Place: a handler under a private API key; any agent answers, from its image.
Invariant: a partition is unknown only after the image caught up with the end of the metadata log.
Source: KIP-253, protocol change 5.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from kio.schema.errors import ErrorCode

from headrace.agent.cluster.view import ClusterView
from headrace.metastore.log.image import MetadataImage, TopicImage
from headrace.metastore.log.shown_counts import initial_count, undeleted_count
from headrace.metastore.partitions.placement import nearest
from headrace.protocol.errors import READ_FAILED
from headrace.protocol.ordered_requests import (
    NO_EPOCH,
    VERSION,
    PartitionEpochs,
    decode_epochs_request,
    encode_epochs_response,
)
from headrace.protocol.request import CloseConnection, Request, Response
from headrace.protocol.typed import response_header
from headrace.storage.errors import HeadraceError

log = logging.getLogger(__name__)

Asked = Mapping[str, Sequence[int]]


class PartitionLeaderEpochs:
    """Return the leader epochs of partitions to clients that keep the order of keys."""

    def __init__(self, cluster: ClusterView) -> None:
        self._cluster = cluster

    async def __call__(self, request: Request) -> Response:
        if request.api_version != VERSION:
            raise CloseConnection("partition leader epochs: unsupported version")
        asked = decode_epochs_request(request.body, request.connection.request_elements_max)
        image, unknown = self._cluster.image, int(ErrorCode.unknown_topic_or_partition)
        if not all(_has(image, name, index) for name, indexes in asked.items() for index in indexes):
            try:
                image = await self._cluster.catch_up()
            except HeadraceError as error:
                log.warning("cannot look partitions up: cannot read metadata log: error=%s", error)
                unknown = READ_FAILED
        found = {
            name: [_epochs(image.topics_by_name.get(name), index, unknown) for index in indexes]
            for name, indexes in asked.items()
        }
        return Response([response_header(request.correlation_id, False), encode_epochs_response(found)])


def _has(image: MetadataImage, name: str, index: int) -> bool:
    topic = image.topics_by_name.get(name)
    return topic is not None and topic.has(index)


def _epochs(topic: TopicImage | None, index: int, unknown: int) -> PartitionEpochs:
    if topic is None or not topic.has(index):
        return PartitionEpochs(index, unknown)
    source, after_creation = topic.created_from.get(index, (-1, NO_EPOCH))
    before_deletion = topic.before_deletion.get(index, {})
    heir = nearest(index, initial_count(topic), undeleted_count(topic)) if before_deletion else -1
    return PartitionEpochs(
        index, ErrorCode.none, source, after_creation, before_deletion.get(heir, NO_EPOCH), before_deletion
    )
