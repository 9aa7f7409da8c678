"""Serves `__cluster_metadata` to any consumer: Fetch and ListOffsets on the metadata log itself.

Place: used by handler.py and list_offsets.py for this one partition, which is rendered from a table; the read path
plan -> locate -> read serves stored files.
Invariant: the offsets are those of the metadata log; nothing below its start and nothing above its end is
served. If a reader is ahead of this agent's image, the primary decides; its offset is never reset.
Source: KIP-631 (the metadata topic), KIP-595 (its name and id).
"""

from __future__ import annotations

import logging

from kio.schema.errors import ErrorCode

from headrace.agent.cluster.view import ClusterView
from headrace.metastore.api.cluster import MetadataLogApi
from headrace.metastore.api.read import OffsetKind
from headrace.metastore.log.metadata_topic import render_batch
from headrace.protocol.errors import READ_FAILED
from headrace.protocol.fetch_codec import FetchPartition, FetchPartitionReply
from headrace.storage.errors import HeadraceError, TruncatedError

log = logging.getLogger(__name__)

PAGE_RECORDS = 1_000
"""Maximum number of records per fetch."""


class MetadataTopic:
    """The topic's only partition."""

    follows_feed = True

    def __init__(self, metadata_log: MetadataLogApi, view: ClusterView) -> None:
        self._log = metadata_log
        self._view = view

    async def has_news(self, partition: FetchPartition) -> bool:
        """Return whether a fetch would return records, as far as this agent knows."""
        return partition.fetch_offset < self._view.image.offset

    async def fetch(self, partition: FetchPartition) -> FetchPartitionReply:
        """One batch from the requested offset on, at least one record if there is one; does not wait."""
        if partition.index != 0:
            return FetchPartitionReply(partition.index, ErrorCode.unknown_topic_or_partition)
        try:
            return await self._fetch(partition)
        except HeadraceError as error:
            log.warning("cannot read metadata topic: offset=%d error=%s", partition.fetch_offset, error)
            return FetchPartitionReply(partition.index, READ_FAILED)

    async def offset(self, index: int, timestamp: int) -> tuple[int, int]:
        """(error code, offset) for one of ListOffsets' special timestamps; -1 for others, because records have no
        time.
        """
        if index != 0:
            return ErrorCode.unknown_topic_or_partition, -1
        try:
            if timestamp == OffsetKind.EARLIEST:
                return ErrorCode.none, await self._log.metadata_log_start()
            if timestamp == OffsetKind.LATEST:
                return ErrorCode.none, (await self._view.catch_up()).offset
        except HeadraceError as error:
            log.warning("cannot read metadata topic: timestamp=%d error=%s", timestamp, error)
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
        except TruncatedError:  # a snapshot has just replaced it
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
    """The first of them that fit, but at least one."""
    size = 0
    for count, record in enumerate(records):
        size += len(record)
        if size > max_bytes and count:
            return records[:count]
    return records
