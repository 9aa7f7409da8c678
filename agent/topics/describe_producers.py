"""DescribeProducers (key 61, version 0): the idempotent producers in a partition's producer state.

Place: between the listener and the metastore; any agent answers for any partition.
Invariant: this is the state that the next commit uses. An error of one partition does not affect others.
Source: KIP-664.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import NamedTuple

from kio.schema.describe_producers.v0.request import DescribeProducersRequest
from kio.schema.describe_producers.v0.response import PartitionResponse, ProducerState, TopicResponse
from kio.schema.errors import ErrorCode

from headrace.agent.cluster.partition_names import RequestedPartition, Resolved, resolve
from headrace.agent.cluster.view import ClusterView
from headrace.agent.limits.work_slices import ELEMENT_UNITS, WorkSlices
from headrace.metastore.api.reports import ProducerStatus, ReportApi
from headrace.protocol.errors import admin_error
from headrace.protocol.request import Request, Response
from headrace.protocol.typed import Schema, decode, reply
from headrace.storage.errors import HeadraceError

log = logging.getLogger(__name__)

NO_EPOCH = -1
"""Kafka's value for a producer without a marker; coordinators have no epochs here."""


class _Found(NamedTuple):
    """The answer for one partition."""

    error: int
    producers: Sequence[ProducerStatus] = ()


class DescribeProducers:
    """List the producers that a partition remembers."""

    def __init__(self, cluster: ClusterView, metastore: ReportApi) -> None:
        self._cluster = cluster
        self._metastore = metastore

    async def __call__(self, request: Request) -> Response:
        schema, entity = decode(request, DescribeProducersRequest)
        asked: dict[str, dict[int, None]] = {}  # without duplicates: an answer is much longer than an index
        for topic in entity.topics:
            asked.setdefault(topic.name, {}).update(dict.fromkeys(topic.partition_indexes))
        requested = [RequestedPartition(name, index, -1) for name, indexes in asked.items() for index in indexes]
        found = iter(await self._find(await resolve(self._cluster, requested)))
        slices, topics = WorkSlices(), []
        for name, indexes in asked.items():
            partitions = []
            for index in indexes:
                one = next(found)
                partitions.append(_partition(schema, index, one))
                await slices.did(ELEMENT_UNITS * (1 + len(one.producers)))
            topics.append(schema.make(TopicResponse, name=name, partitions=tuple(partitions)))
            await slices.did(ELEMENT_UNITS)
        return reply(request, schema.response(topics=tuple(topics)))

    async def _find(self, resolved: Sequence[Resolved]) -> list[_Found]:
        """One answer per partition, in order."""
        keys = sorted({one.key for one in resolved if not one.error})
        try:
            producers = dict(zip(keys, await self._metastore.describe_producers(keys), strict=True))
        except HeadraceError as error:
            log.warning("cannot describe producers: partitions=%d error=%s", len(keys), error)
            return [_Found(one.error or admin_error(error)) for one in resolved]
        return [_Found(one.error, producers.get(one.key, ())) for one in resolved]


def _partition(schema: Schema, index: int, found: _Found) -> PartitionResponse:
    return schema.make(
        PartitionResponse,
        partition_index=index,
        error_code=ErrorCode(found.error),
        error_message=None,
        active_producers=tuple(
            schema.make(
                ProducerState,
                producer_id=producer.producer_id,
                producer_epoch=producer.producer_epoch,
                last_sequence=producer.last_sequence,
                last_timestamp=producer.last_timestamp,
                coordinator_epoch=NO_EPOCH,
                current_txn_start_offset=producer.transaction_start,
            )
            for producer in found.producers
        ),
    )
