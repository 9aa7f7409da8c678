"""The ListOffsets handler: earliest, latest, by timestamp.

Place: between the listener and the metastore; opens extents only for timestamps.
Invariant: every answer comes from the primary, because consumers start from it, and use it to decide whether they are
caught up. An error of one partition does not affect others.
Source: Kafka's ListOffsetsRequest.json; KIP-734 (-3), KIP-405 (-4), KIP-1005 (-5), KIP-1023 (-6);
KIP-98 (read_committed: the latest offset is the last stable one, and a record at or after it is not found; as in Kafka,
the newest record is that of the whole log, also if it is there, and aborted records are found).
There is no tiered storage here: the local log start is the log start, and the tiered offsets are -1.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

from kio.schema.errors import ErrorCode
from kio.schema.list_offsets.v11.request import ListOffsetsPartition, ListOffsetsRequest
from kio.schema.list_offsets.v11.response import ListOffsetsPartitionResponse, ListOffsetsTopicResponse

from headrace.agent.cluster.partition_names import RequestedPartition, resolve
from headrace.agent.cluster.view import ClusterView
from headrace.agent.fetch.handler import READ_COMMITTED
from headrace.agent.fetch.metrics import FetchMetrics
from headrace.agent.fetch.offsets.joined_offsets import JoinedOffsets
from headrace.agent.fetch.offsets.newest_record import newest_record
from headrace.agent.fetch.offsets.timestamps import TimestampSearch
from headrace.agent.fetch.rendered.rendered_topics import RenderedTopics
from headrace.metastore.api.read import IndexApi, OffsetAnswer, OffsetKind, OffsetQuery
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
NO_END = 1 << 62


class SearchedOffsets(NamedTuple):
    """The offsets [start, end) in which a record may be found."""

    start: int
    end: int


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
        metastore: IndexApi,
        search: TimestampSearch,
        metrics: FetchMetrics,
        rendered: RenderedTopics | None,
        before_log_starts: Callable[[], Callable[[int, int], None]] = lambda: _not_noted,
    ) -> None:
        """`before_log_starts`: called before the primary is asked; its result gets each (partition key, log start) of
        the answer, so that this agent's readers get no record before it."""
        self._before_log_starts = before_log_starts
        self._view = view
        self._metastore = metastore
        self._joined = JoinedOffsets(metastore)
        self._search = search
        self._metrics = metrics
        self._rendered = rendered or RenderedTopics({})

    async def handle(self, request: Request) -> Response:
        """Any version from 1 to 11. InvalidError for a body that is not a ListOffsets request."""
        schema, entity = typed.decode(request, ListOffsetsRequest)
        asked = [(topic.name, partition) for topic in entity.topics for partition in topic.partitions]
        committed = getattr(entity, "isolation_level", 0) == READ_COMMITTED
        found = iter(await self._find_all(asked, request.api_version, committed=committed))
        topics = tuple(
            schema.make(
                ListOffsetsTopicResponse,
                name=topic.name,
                partitions=tuple(_partition_response(schema, p.partition_index, next(found)) for p in topic.partitions),
            )
            for topic in entity.topics
        )
        return typed.reply(request, schema.response(topics=topics))

    async def _find_all(
        self, asked: Sequence[tuple[str, ListOffsetsPartition]], version: int, *, committed: bool
    ) -> list[Found]:
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
        answers = iter(await self._answer(questions, committed=committed))
        return [next(answers) if verdict is None else verdict for verdict in found]

    async def _answer(self, questions: Sequence[OffsetQuery], *, committed: bool) -> list[Found]:
        """One call for all questions; then extents are opened in parallel."""
        if not questions:
            return []
        try:
            answers = await self._ask(questions, committed=committed)
        except HeadraceError as error:
            log.warning("cannot list offsets: partitions=%d error=%s", len(questions), error)
            return [Found(READ_FAILED)] * len(questions)
        opened = iter(
            await asyncio.gather(
                *(
                    self._open(q, *answer, committed=committed)
                    for q, answer in zip(questions, answers, strict=True)
                    if answer[0].extent
                )
            )
        )
        return [next(opened) if answer.extent else _without_opening(answer) for answer, _ in answers]

    async def _ask(
        self, questions: Sequence[OffsetQuery], *, committed: bool
    ) -> list[tuple[OffsetAnswer, SearchedOffsets]]:
        """The primary's answers, each with where a record is searched, if one must be; all as of one instant."""
        by_record = [q for q in questions if q.timestamp not in _WITHOUT_RECORD]
        starts = [OffsetQuery(q.partition_key, OffsetKind.EARLIEST) for q in by_record]
        ends = [OffsetQuery(q.partition_key, OffsetKind.LAST_STABLE) for q in by_record] if committed else []
        ask = self._metastore if by_record else self._joined  # a search may take long, and it may fail
        queries = [*questions, *starts, *ends]
        note = self._before_log_starts()
        answers = await ask.list_offsets(queries)
        for query, answer in zip(queries, answers, strict=True):
            if query.timestamp == OffsetKind.EARLIEST and answer.known:
                note(query.partition_key, answer.offset)
        after = iter(answers[len(questions) :])
        bounds = {start.partition_key: SearchedOffsets(next(after).offset, NO_END) for start in starts}
        for end in ends:
            bounds[end.partition_key] = bounds[end.partition_key]._replace(end=next(after).offset)
        return [(answers[i], bounds.get(q.partition_key, SearchedOffsets(-1, NO_END))) for i, q in enumerate(questions)]

    async def _open(
        self, question: OffsetQuery, answer: OffsetAnswer, bounds: SearchedOffsets, *, committed: bool
    ) -> Found:
        """The requested record. For a missing or corrupt file the primary is asked once more."""
        try:
            try:
                return await self._first_record(question, answer, bounds)
            except (NotFoundError, CorruptError):
                ((answer, bounds),) = await self._ask([question], committed=committed)
                return await self._first_record(question, answer, bounds)
        except HeadraceError as error:
            self._metrics.report_unreadable(question.partition_key, f"timestamp={question.timestamp}", error)
            return Found(READ_FAILED)

    async def _first_record(self, question: OffsetQuery, answer: OffsetAnswer, bounds: SearchedOffsets) -> Found:
        if answer.extent is None:
            return _without_opening(answer)
        if question.timestamp == OffsetKind.MAX_TIMESTAMP:
            record = await newest_record(self._metastore, self._search, answer.extent, bounds.start)
        else:
            record = await self._search.first_record(answer.extent, bounds.start, question.timestamp)
        return Found() if record is None or record.offset >= bounds.end else Found(ErrorCode.none, *record)


def _not_noted(partition_key: int, log_start_offset: int) -> None:
    """Note nothing: there are no readers at this agent."""


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
    """Return the offset of Kafka's plain special timestamp: without tiered storage the local log start is the log
    start.
    """
    return OffsetKind.EARLIEST if timestamp == EARLIEST_LOCAL else timestamp


def _without_opening(answer: OffsetAnswer) -> Found:
    if not answer.known:
        return Found(ErrorCode.unknown_topic_or_partition)
    return Found(offset=answer.offset, leader_epoch=answer.leader_epoch)


def _partition_response(schema: typed.Schema, index: int, found: Found) -> ListOffsetsPartitionResponse:
    return schema.make(
        ListOffsetsPartitionResponse,
        partition_index=index,
        error_code=ErrorCode(found.error),
        timestamp=found.timestamp,
        offset=found.offset,
        leader_epoch=found.leader_epoch,
    )
