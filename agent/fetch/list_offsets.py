"""The ListOffsets handler: earliest, latest, by timestamp.

Place: between the listener and the metastore; opens extents only for timestamps.
Invariant: every answer comes from the primary, because consumers start from it, and use it to decide whether they are
caught up. An error of one partition does not affect others.
Source: Kafka's ListOffsetsRequest.json; KIP-734 (-3), KIP-405 (-4), KIP-1005 (-5), KIP-1023 (-6);
KIP-98 (read_committed: the latest offset is the last stable one; a timestamp is looked up in the whole log).
There is no tiered storage here: the local log start is the log start, and the tiered offsets are -1.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

from kio.schema.errors import ErrorCode

from headrace.agent.cluster.view import ClusterView
from headrace.agent.fetch.handler import READ_COMMITTED
from headrace.agent.fetch.metrics import FetchMetrics
from headrace.agent.fetch.newest_record import newest_record
from headrace.agent.fetch.plan import RequestedPartition, resolve
from headrace.agent.fetch.rendered_topics import RenderedTopics
from headrace.agent.fetch.timestamps import TimestampSearch
from headrace.metastore.api.read import OffsetAnswer, OffsetKind, OffsetQuery, ReadApi
from headrace.metastore.transactions.markers import marker_of
from headrace.protocol import typed
from headrace.protocol.errors import READ_FAILED
from headrace.protocol.request import Request, Response
from headrace.storage.errors import CorruptError, HeadraceError, NotFoundError

log = logging.getLogger(__name__)

EARLIEST_LOCAL = -4
LATEST_TIERED = -5
EARLIEST_PENDING_UPLOAD = -6

_FIRST_VERSION = {
    OffsetKind.LATEST: 0,
    OffsetKind.EARLIEST: 0,
    OffsetKind.MAX_TIMESTAMP: 7,
    EARLIEST_LOCAL: 8,
    LATEST_TIERED: 9,
    EARLIEST_PENDING_UPLOAD: 11,
}
"""The first version with each special timestamp; Kafka refuses it in lower versions."""


_WITHOUT_RECORD = (OffsetKind.LATEST, OffsetKind.LAST_STABLE, OffsetKind.EARLIEST)


class Found(NamedTuple):
    """The answer for one partition; -1 means none."""

    error: int = ErrorCode.none
    offset: int = -1
    timestamp: int = -1
    leader_epoch: int = -1


class ListOffsetsHandler:
    """Serves API key 2."""

    def __init__(
        self,
        view: ClusterView,
        metastore: ReadApi,
        search: TimestampSearch,
        metrics: FetchMetrics,
        rendered: RenderedTopics | None = None,
    ) -> None:
        self._view = view
        self._metastore = metastore
        self._search = search
        self._metrics = metrics
        self._rendered = rendered or RenderedTopics({})

    async def handle(self, request: Request) -> Response:
        """Any version from 1 to 11. InvalidError for a body that is not a ListOffsets request."""
        schema, entity = typed.decode(request)
        asked = [(topic.name, partition) for topic in entity.topics for partition in topic.partitions]
        committed = getattr(entity, "isolation_level", 0) == READ_COMMITTED
        found = iter(await self._find_all(asked, request.api_version, committed=committed))
        topics = tuple(
            schema.make(
                "ListOffsetsTopicResponse",
                name=topic.name,
                partitions=tuple(_partition_response(schema, p.partition_index, next(found)) for p in topic.partitions),
            )
            for topic in entity.topics
        )
        return typed.reply(request, schema.response(throttle_time=typed.NO_THROTTLE, topics=topics))

    async def _find_all(self, asked: Sequence[tuple[str, Any]], version: int, *, committed: bool) -> list[Found]:
        """One answer per requested partition, in order."""
        requested = [
            RequestedPartition(name, p.partition_index, getattr(p, "current_leader_epoch", -1)) for name, p in asked
        ]
        times = Counter((one.topic, one.partition) for one in requested)
        found: list[Found | None] = []
        questions = []
        for one, (_, partition), resolved in zip(requested, asked, await resolve(self._view, requested), strict=True):
            duplicate = times[one.topic, one.partition] > 1
            rendered = self._rendered.find(one.topic)
            error = resolved.error if rendered is None else ErrorCode.none
            verdict = _without_asking(partition.timestamp, version, error, duplicate=duplicate)
            if verdict is None and rendered is not None:
                verdict = Found(*await rendered.offset(one.partition, _plain(partition.timestamp)))
            found.append(verdict)
            if verdict is None:
                timestamp = _plain(partition.timestamp)
                if committed and timestamp == OffsetKind.LATEST:
                    timestamp = OffsetKind.LAST_STABLE
                questions.append(OffsetQuery(resolved.key, timestamp))
        answers = iter(await self._answer(questions))
        return [next(answers) if verdict is None else verdict for verdict in found]

    async def _answer(self, questions: Sequence[OffsetQuery]) -> list[Found]:
        """One call for all questions; then extents are opened in parallel."""
        if not questions:
            return []
        try:
            answers = await self._ask(questions)
        except HeadraceError as error:
            log.warning("cannot list offsets: partitions=%d error=%s", len(questions), error)
            return [Found(READ_FAILED)] * len(questions)
        opened = iter(
            await asyncio.gather(
                *(self._open(q, *answer) for q, answer in zip(questions, answers, strict=True) if answer[0].extent)
            )
        )
        return [next(opened) if answer.extent else _without_opening(answer) for answer, _ in answers]

    async def _ask(self, questions: Sequence[OffsetQuery]) -> list[tuple[OffsetAnswer, int]]:
        """The primary's answers, each with the partition's log start if a record must be searched."""
        by_record = [q for q in questions if q.timestamp not in _WITHOUT_RECORD]
        starts = [OffsetQuery(q.partition_key, OffsetKind.EARLIEST) for q in by_record]
        answers = await self._metastore.list_offsets([*questions, *starts])
        log_starts = {s.partition_key: a.offset for s, a in zip(starts, answers[len(questions) :], strict=True)}
        return [(answers[i], log_starts.get(q.partition_key, -1)) for i, q in enumerate(questions)]

    async def _open(self, question: OffsetQuery, answer: OffsetAnswer, log_start_offset: int) -> Found:
        """The requested record. For a missing or corrupt file the primary is asked once more."""
        try:
            try:
                return await self._first_record(question, answer, log_start_offset)
            except (NotFoundError, CorruptError):
                ((answer, log_start_offset),) = await self._ask([question])
                return await self._first_record(question, answer, log_start_offset)
        except HeadraceError as error:
            self._metrics.report_unreadable(question.partition_key, f"timestamp={question.timestamp}", error)
            return Found(READ_FAILED)

    async def _first_record(self, question: OffsetQuery, answer: OffsetAnswer, log_start_offset: int) -> Found:
        if answer.extent is None:
            return _without_opening(answer)
        if marker_of(answer.extent.file_id) is not None:  # all that is left; markers have no timestamp
            return Found()
        if question.timestamp == OffsetKind.MAX_TIMESTAMP:
            record = await newest_record(self._metastore, self._search, answer.extent, log_start_offset)
        else:
            record = await self._search.first_record(answer.extent, log_start_offset, question.timestamp)
        return Found() if record is None else Found(ErrorCode.none, *record)


def _without_asking(timestamp: int, version: int, error: int, *, duplicate: bool) -> Found | None:
    """The answer, if it is known without the metastore."""
    if duplicate:
        return Found(ErrorCode.invalid_request)
    if timestamp < 0 and version < _FIRST_VERSION.get(timestamp, version + 1):
        return Found(ErrorCode.unsupported_version)
    if error:
        return Found(error)
    return Found() if timestamp in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD) else None


def _plain(timestamp: int) -> int:
    """Without tiered storage the local log start is the log start."""
    return OffsetKind.EARLIEST if timestamp == EARLIEST_LOCAL else timestamp


def _without_opening(answer: OffsetAnswer) -> Found:
    if not answer.known:
        return Found(ErrorCode.unknown_topic_or_partition)
    return Found(offset=answer.offset, leader_epoch=answer.leader_epoch)


def _partition_response(schema: typed.Schema, index: int, found: Found) -> Any:
    return schema.make(
        "ListOffsetsPartitionResponse",
        partition_index=index,
        error_code=ErrorCode(found.error),
        timestamp=found.timestamp,
        offset=found.offset,
        leader_epoch=found.leader_epoch,
    )
