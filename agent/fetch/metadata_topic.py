"""Reading `__cluster_metadata` as any consumer does: Fetch and ListOffsets on the metadata log itself.

Place: beside the read path plan -> locate -> read, which knows stored files; handler.py and
list_offsets.py turn to this one for the one partition that is rendered from a table.
Invariant: the log's positions are the offsets; nothing below its start and nothing above its head is
served. A reader ahead of this agent's image is judged by the primary, never rewound. If the process dies
here consumers repeat their fetch.
Source: KIP-631 (the metadata topic), KIP-595 (its name and id).
"""

from __future__ import annotations

import logging
import uuid
from typing import Protocol

from kio.schema.errors import ErrorCode

from headrace.agent.cluster.view import ClusterView
from headrace.metastore.api.read import OffsetKind
from headrace.metastore.log.metadata_topic import is_metadata_topic, render_batch
from headrace.protocol.errors import READ_FAILED
from headrace.protocol.fetch_codec import FetchPartition, FetchPartitionReply
from headrace.storage.errors import HeadraceError, TruncatedError

log = logging.getLogger(__name__)

PAGE_RECORDS = 1_000
"""Records that one fetch is answered with at the most."""


class MetadataLog(Protocol):
    """The part of metastore.api.cluster.ClusterApi that is read here."""

    async def metadata_log_start(self) -> int:
        """The lowest offset that is still there."""

    async def read_metadata(self, start_offset: int, limit: int) -> list[bytes]:
        """Framed records; TruncatedError below the start."""


class MetadataTopic:
    """The topic's only partition."""

    def __init__(self, metadata_log: MetadataLog, view: ClusterView) -> None:
        self._log = metadata_log
        self._view = view

    def has_news(self, partition: FetchPartition) -> bool:
        """Whether a fetch would be answered with records, as far as this agent knows."""
        return partition.fetch_offset < self._view.image.offset

    async def fetch(self, topic: str | uuid.UUID, partition: FetchPartition) -> FetchPartitionReply:
        """One batch from the asked offset on, at least one record if there is one; waits for nothing."""
        if not is_metadata_topic(topic) or partition.index != 0:
            return FetchPartitionReply(partition.index, ErrorCode.unknown_topic_or_partition)
        try:
            return await self._fetch(partition)
        except HeadraceError as error:
            log.warning("metadata topic not readable: offset=%d error=%s", partition.fetch_offset, error)
            return FetchPartitionReply(partition.index, READ_FAILED)

    async def offset(self, index: int, timestamp: int) -> tuple[int, int]:
        """(error code, offset) for one of ListOffsets' special timestamps; records have no time, so -1 for others."""
        if index != 0:
            return ErrorCode.unknown_topic_or_partition, -1
        try:
            if timestamp == OffsetKind.EARLIEST:
                return ErrorCode.none, await self._log.metadata_log_start()
            if timestamp == OffsetKind.LATEST:
                return ErrorCode.none, (await self._view.catch_up()).offset
        except HeadraceError as error:
            log.warning("metadata topic not readable: timestamp=%d error=%s", timestamp, error)
            return READ_FAILED, -1
        return ErrorCode.none, -1

    async def _fetch(self, partition: FetchPartition) -> FetchPartitionReply:
        offset = partition.fetch_offset
        log_start = await self._log.metadata_log_start()
        head = self._view.image.offset
        if offset > head:
            head = (await self._view.catch_up()).offset
        records: list[bytes] = []
        error: int = ErrorCode.none
        try:
            if not log_start <= offset <= head:
                error = ErrorCode.offset_out_of_range
            elif offset < head:
                records = _fitting(await self._log.read_metadata(offset, PAGE_RECORDS), partition.max_bytes)
        except TruncatedError:  # a snapshot took its place a moment ago
            error = ErrorCode.offset_out_of_range
        head = max(head, offset + len(records)) if records else head
        return FetchPartitionReply(
            partition.index,
            error,
            high_watermark=head,
            last_stable_offset=head,
            log_start_offset=log_start,
            records=[render_batch(offset, records)] if records else (),
        )


def _fitting(records: list[bytes], max_bytes: int) -> list[bytes]:
    """The first of them that fit, but one at the least."""
    size = 0
    for count, record in enumerate(records):
        size += len(record)
        if size > max_bytes and count:
            return records[:count]
    return records
