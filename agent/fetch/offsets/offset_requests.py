"""The requests for offsets of partitions: ListOffsets, OffsetForLeaderEpoch (key 23, versions 2-4).

Place: between the listener and the metastore. ListOffsets (earliest, latest, by timestamp) opens extents only for
timestamps. OffsetForLeaderEpoch has the end offset of a leader epoch, for consumers that validate their offset.
JoinedOffsets joins questions that arrive together in one call to the primary: a client that starts sends one request
for each of its partitions, all at once. A request that needs a search has a separate call.
Invariant: every answer comes from the primary, because consumers start from it, use it to decide whether they are
caught up, and reset their offset if the end of an epoch is too low. An error of one partition does not affect
others. A joined call begins after the last of its questions was asked, so each answer is as new as that of a single
call. Questions do not wait for the call of earlier ones, and a call has QUERIES_MAX queries at most: a request with
more is alone in its call.
Source: Kafka's ListOffsetsRequest.json; KIP-734 (-3), KIP-405 (-4), KIP-1005 (-5), KIP-1023 (-6); KIP-98
(read_committed: the latest offset is the last stable one, and a record at or after it is not found; as in Kafka, the
newest record is that of the whole log, also if it is there, and aborted records are found); KIP-320, and Kafka's
LeaderEpochFileCache for the answer for epochs without records.
There is no tiered storage here: the local log start is the log start, and the tiered offsets are -1.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from kio.schema.errors import ErrorCode
from kio.schema.list_offsets.v11.request import ListOffsetsPartition, ListOffsetsRequest
from kio.schema.list_offsets.v11.response import ListOffsetsPartitionResponse, ListOffsetsTopicResponse
from kio.schema.offset_for_leader_epoch.v4.request import OffsetForLeaderEpochRequest
from kio.schema.offset_for_leader_epoch.v4.response import EpochEndOffset, OffsetForLeaderTopicResult

from headrace.agent.cluster.partition_names import RequestedPartition, Resolved, resolve
from headrace.agent.cluster.view import ClusterView
from headrace.agent.fetch.handler import READ_COMMITTED
from headrace.agent.fetch.metrics import FetchMetrics
from headrace.agent.fetch.offsets.timestamps import TimestampSearch, newest_record
from headrace.agent.fetch.rendered_topics import RenderedTopics
from headrace.metastore.api.metastore import Metastore
from headrace.metastore.api.read import EpochEnd, EpochQuery, IndexApi, OffsetAnswer, OffsetKind, OffsetQuery
from headrace.metastore.log.image import TopicImage
from headrace.metastore.log.metadata_topic import METADATA_TOPIC_IMAGE
from headrace.metastore.segment_logs.topics import REMOTE_LOG_IMAGE, rendered_topic
from headrace.protocol import typed
from headrace.protocol.errors import READ_FAILED
from headrace.protocol.request import Request, Response
from headrace.protocol.typed import decode, reply
from headrace.storage.errors import CorruptError, HeadraceError, NotFoundError

QUERIES_MAX = 500
"""Most queries of a call. Each query is two index probes, and a client seldom reads more partitions."""
_Asked = list[tuple[Sequence[OffsetQuery], asyncio.Future[list[OffsetAnswer]]]]


class JoinedOffsets:
    """Queries of offsets that become one call, for one event loop."""

    def __init__(self, metastore: IndexApi) -> None:
        self._metastore = metastore
        self._asked: _Asked = []
        """Of the newest call, until it begins."""
        self._size = 0
        """How many queries these are."""
        self._calls: set[asyncio.Task[None]] = set()

    async def list_offsets(self, queries: Sequence[OffsetQuery]) -> list[OffsetAnswer]:
        """One answer per query, in order; what the metastore raises."""
        answer: asyncio.Future[list[OffsetAnswer]] = asyncio.get_running_loop().create_future()
        if not self._asked or self._size + len(queries) > QUERIES_MAX:
            self._begin_call()
        self._asked.append((queries, answer))
        self._size += len(queries)
        return await answer

    def _begin_call(self) -> None:
        """Begin a call in the loop's next turn, with all that are asked in this one."""
        self._asked, self._size = [], 0
        call = asyncio.create_task(self._call(self._asked))
        self._calls.add(call)
        call.add_done_callback(self._calls.discard)

    async def _call(self, asked: _Asked) -> None:
        if asked is self._asked:
            self._asked = []
        try:
            found = iter(await self._metastore.list_offsets([query for queries, _ in asked for query in queries]))
            answers = [[next(found) for _ in queries] for queries, _ in asked]
        except Exception as error:
            for _, answer in asked:
                if not answer.done():
                    answer.set_exception(error)
            return
        for (_, answer), mine in zip(asked, answers, strict=True):
            if not answer.done():
                answer.set_result(mine)


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


RENDERED_EPOCH = 0
"""The leader epoch of the whole topics that agents render."""


class _Found(NamedTuple):
    """The answer for one partition."""

    error: int = ErrorCode.none
    leader_epoch: int = -1
    end_offset: int = -1


class OffsetForLeaderEpoch:
    """Return where leader epochs end."""

    def __init__(self, cluster: ClusterView, metastore: Metastore) -> None:
        self._cluster = cluster
        self._metastore = metastore

    async def __call__(self, request: Request) -> Response:
        schema, entity = decode(request, OffsetForLeaderEpochRequest)
        asked = [(topic.topic, p) for topic in entity.topics for p in topic.partitions]
        requested = [RequestedPartition(name, p.partition, p.current_leader_epoch) for name, p in asked]
        found = iter(await self._find_all(requested, [p.leader_epoch for _, p in asked]))
        topics = tuple(
            schema.make(
                OffsetForLeaderTopicResult,
                topic=topic.topic,
                partitions=tuple(
                    schema.make(
                        EpochEndOffset,
                        error_code=ErrorCode((one := next(found)).error),
                        partition=p.partition,
                        leader_epoch=one.leader_epoch,
                        end_offset=one.end_offset,
                    )
                    for p in topic.partitions
                ),
            )
            for topic in entity.topics
        )
        return reply(request, schema.response(topics=topics))

    async def _find_all(self, requested: Sequence[RequestedPartition], epochs: Sequence[int]) -> list[_Found]:
        """One answer per partition, in order; one call for all that the metastore has to be asked."""
        resolved = await resolve(self._cluster, requested)
        queries = [EpochQuery(r.key, epoch) for r, epoch in zip(resolved, epochs, strict=True) if not r.error]
        try:
            ends = iter(await self._metastore.index.find_epoch_ends(queries))
            return [
                _answer(one, ends)
                if (topic := rendered_topic(partition.topic)) is None
                else await self._rendered_end(topic, partition.partition, epoch)
                for partition, one, epoch in zip(requested, resolved, epochs, strict=True)
            ]
        except HeadraceError as error:
            log.warning("cannot find ends of leader epochs: partitions=%d error=%s", len(requested), error)
            return [_Found(READ_FAILED)] * len(requested)

    async def _rendered_end(self, topic: TopicImage, partition: int, epoch: int) -> _Found:
        if topic.key(partition) is None:
            return _Found(ErrorCode.unknown_topic_or_partition)
        if epoch != RENDERED_EPOCH:
            return _Found()
        if topic is METADATA_TOPIC_IMAGE:
            return _Found(ErrorCode.none, RENDERED_EPOCH, (await self._cluster.catch_up()).offset)
        ends = (await self._metastore.segment_logs.segment_log_ends())[partition]
        end_offset = ends.next_offset if topic is REMOTE_LOG_IMAGE else ends.next_audit_offset
        return _Found(ErrorCode.none, RENDERED_EPOCH, end_offset)


def _answer(resolved: Resolved, ends: Iterator[EpochEnd]) -> _Found:
    if resolved.error:
        return _Found(resolved.error)
    end = next(ends)
    return (
        _Found(ErrorCode.none, end.leader_epoch, end.end_offset)
        if end.known
        else _Found(ErrorCode.unknown_topic_or_partition)
    )
