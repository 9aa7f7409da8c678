"""FetchSnapshot (key 59, versions 0-1): the newest metadata snapshot, in parts.

Place: for readers of `__cluster_metadata` that start at its beginning after a snapshot has replaced the log's start.
Invariant: a snapshot's bytes are record batches, identical on every agent; a reader continues with the snapshot id of
the first part, or gets an error if that snapshot was replaced and then starts over.
Source: KIP-630. An end offset of -1 asks for the newest snapshot, because a reader cannot know its id otherwise.
"""

from __future__ import annotations

import asyncio
from collections import Counter

from kio.schema.errors import ErrorCode
from kio.schema.fetch_snapshot.v1.request import FetchSnapshotRequest
from kio.schema.fetch_snapshot.v1.request import PartitionSnapshot as AskedPartition
from kio.schema.fetch_snapshot.v1.response import LeaderIdAndEpoch, PartitionSnapshot, SnapshotId, TopicSnapshot

from headrace.metastore.api.cluster import MetadataLogApi
from headrace.metastore.log.metadata_topic import METADATA_TOPIC, NEWEST_SNAPSHOT, render_batch
from headrace.metastore.log.snapshot import decode_snapshot
from headrace.protocol.errors import error_code
from headrace.protocol.request import Request, Response
from headrace.protocol.typed import Schema, decode, reply
from headrace.storage.errors import HeadraceError, NotFoundError

PIECE_BYTES_MAX = 8 * 1024 * 1024
BATCH_RECORDS = 1_000


class FetchSnapshot:
    """The handler. Keeps the last requested snapshot in memory."""

    def __init__(self, api: MetadataLogApi) -> None:
        self._api = api
        self._end_offset = NEWEST_SNAPSHOT
        self._rendered = b""

    async def __call__(self, request: Request) -> Response:
        schema, entity = decode(request, FetchSnapshotRequest)
        topics = []
        times = Counter((topic.name, p.partition) for topic in entity.topics for p in topic.partitions)
        for topic in entity.topics:
            partitions = [
                await self._answer(schema, topic.name, p, entity.max_bytes, times[topic.name, p.partition])
                for p in topic.partitions
            ]
            topics.append(schema.make(TopicSnapshot, name=topic.name, partitions=tuple(partitions)))
        return reply(request, schema.response(error_code=ErrorCode.none, topics=tuple(topics)))

    async def _answer(
        self, schema: Schema, topic: str, asked: AskedPartition, max_bytes: int, times: int
    ) -> PartitionSnapshot:
        """`times`: how often the request names the partition; each occurrence would get a whole part."""
        code, position, piece = ErrorCode.none, asked.position, b""
        if topic != METADATA_TOPIC or asked.partition != 0:
            code = ErrorCode.unknown_topic_or_partition
        elif times > 1:
            code = ErrorCode.invalid_request
        else:
            try:
                await self._load(asked.snapshot_id.end_offset)
            except NotFoundError:
                code = ErrorCode.snapshot_not_found
            except HeadraceError as error:
                code = ErrorCode(error_code(error))
        if code is ErrorCode.none and not 0 <= position < len(self._rendered):
            code = ErrorCode.position_out_of_range
        if code is ErrorCode.none:
            piece = self._rendered[position : position + max(1, min(max_bytes, PIECE_BYTES_MAX))]
        return schema.make(
            PartitionSnapshot,
            index=asked.partition,
            error_code=code,
            snapshot_id=schema.make(SnapshotId, end_offset=self._end_offset if piece else NEWEST_SNAPSHOT, epoch=0),
            current_leader=schema.make(LeaderIdAndEpoch, leader_id=-1, leader_epoch=-1),
            size=len(self._rendered) if piece else -1,
            position=position,
            unaligned_records=piece,
        )

    async def _load(self, end_offset: int) -> None:
        """Load the requested snapshot; NotFoundError if it is not the newest, or there is none."""
        if end_offset != NEWEST_SNAPSHOT and end_offset == self._end_offset:
            return
        snapshot = await self._api.newest_snapshot()
        if snapshot is None or end_offset not in (NEWEST_SNAPSHOT, snapshot.end_offset):
            raise NotFoundError(f"metadata snapshot does not exist: end_offset={end_offset}")
        if snapshot.end_offset != self._end_offset:
            rendered = await asyncio.to_thread(_render, snapshot.data)
            self._end_offset, self._rendered = snapshot.end_offset, rendered


def _render(data: bytes) -> bytes:
    """The snapshot's records as batches, numbered from 0."""
    _, records = decode_snapshot(data)
    starts = range(0, len(records), BATCH_RECORDS)
    return b"".join(render_batch(start, records[start : start + BATCH_RECORDS]) for start in starts)
