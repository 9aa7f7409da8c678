"""DescribeLogDirs (key 35, versions 1-5): the size of each partition in the bucket.

Place: between the listener and the metastore; one query per partition.
Invariant: tools ask every agent and add the sizes, so an agent lists the partitions that it leads for the client's
zone: each partition once. Clients that see one virtual node get all partitions from it. The bucket is the only log
directory; it has no total size. Sizes are those of live batches, without bytes that compaction and the janitor will
free.
Source: KIP-113, KIP-827 (volume sizes; -1 is unknown), KIP-1066 (no directory is ever cordoned).
"""

from __future__ import annotations

import logging
from collections import defaultdict
from typing import Any

from kio.schema.errors import ErrorCode

from headrace.agent.cluster.shared_address import SharedAddress, virtual_node
from headrace.agent.cluster.view import ClusterView
from headrace.agent.cluster.zone import zone_of
from headrace.metastore.api.reports import PartitionReports
from headrace.metastore.log.image import MetadataImage
from headrace.protocol.errors import admin_error
from headrace.protocol.request import Request, Response
from headrace.protocol.typed import Schema, decode, reply
from headrace.storage.errors import HeadraceError

log = logging.getLogger(__name__)

UNKNOWN_BYTES = -1


class DescribeLogDirs:
    """The handler. `log_dir`: the location of segment files, for people."""

    def __init__(
        self, cluster: ClusterView, metastore: PartitionReports, log_dir: str, shared: SharedAddress | None
    ) -> None:
        self._cluster = cluster
        self._shared = shared
        self._metastore = metastore
        self._log_dir = log_dir

    async def __call__(self, request: Request) -> Response:
        schema, entity = decode(request)
        asked = None if entity.topics is None else {t.topic: set(t.partitions) for t in entity.topics}
        everything = virtual_node(self._shared, request.connection.listener) is not None
        keys = self._led(self._cluster.image, asked, zone_of(request.client_id), everything=everything)
        code, sizes = ErrorCode.none, dict.fromkeys(keys, -1)
        try:
            sizes = dict(zip(keys, await self._metastore.partition_sizes(list(keys.values())), strict=True))
        except HeadraceError as error:
            log.warning("cannot describe log dirs: partitions=%d error=%s", len(keys), error)
            code = ErrorCode(admin_error(error))
        result = schema.make(
            "DescribeLogDirsResult",
            error_code=code,
            log_dir=self._log_dir,
            topics=_topics(schema, {place: size for place, size in sizes.items() if size >= 0}),
            total_bytes=UNKNOWN_BYTES,
            usable_bytes=UNKNOWN_BYTES,
            is_cordoned=False,
        )
        return reply(request, schema.response(error_code=ErrorCode.none, results=(result,)))

    def _led(
        self, image: MetadataImage, asked: dict[str, set[int]] | None, zone: str | None, *, everything: bool
    ) -> dict[tuple[str, int], int]:
        """(topic, partition index) -> key, for requested partitions that exist and are led here, or of `everything`;
        topics by name.
        """
        found = {}
        for name in sorted(image.topics_by_name if asked is None else image.topics_by_name.keys() & asked.keys()):
            topic = image.topics_by_name[name]
            for index in topic.indexes:
                key = topic.key(index)
                if key is None or (asked is not None and index not in asked[name]):
                    continue
                leader = None if everything else self._cluster.leader(key, zone)
                if everything or (leader is not None and leader.node_id == self._cluster.node_id):
                    found[name, index] = key
        return found


def _topics(schema: Schema, sizes: dict[tuple[str, int], int]) -> tuple[Any, ...]:
    by_topic: dict[str, list[Any]] = defaultdict(list)
    for (name, index), size in sizes.items():
        by_topic[name].append(
            schema.make(
                "DescribeLogDirsPartition",
                partition_index=index,
                partition_size=size,
                offset_lag=0,
                is_future_key=False,
            )
        )
    return tuple(
        schema.make("DescribeLogDirsTopic", name=name, partitions=tuple(partitions))
        for name, partitions in by_topic.items()
    )
