"""The part of a share request after the owner's turn: read the records, say which cannot be sent, make the answer.

Place: under handlers.py, on the read path of ordinary fetches: locate -> read -> assemble. The answers to ShareFetch
and ShareAcknowledge are made from what the owner of the group said and what could be read.
Invariant: what is said to be acquired is covered by the batches that are sent, up to its last offset: a client takes
an acquired offset without a record for a gap, and it would be lost. The rest is given back, and no record of an
aborted transaction is sent to a group that reads committed ones. Offsets without a record (what cleaning by key
removed, and control records) are done without the client, also those that follow what was acquired; only offsets
inside a verified batch count, because the batches of a partition tile its offsets, and a batch that cannot be opened
leaves its records to the client. Records that the bucket has damaged are done, with an error, as Kafka's client
rejects a corrupt batch: the group continues behind them. Whole batches are sent: they may have other members'
records, which the client skips.
Source: Kafka's message schemas.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TypeVar

from kio.schema.errors import ErrorCode
from kio.schema.share_acknowledge.v2.response import LeaderIdAndEpoch as AcknowledgeLeader
from kio.schema.share_acknowledge.v2.response import PartitionData as AcknowledgedPartition
from kio.schema.share_acknowledge.v2.response import ShareAcknowledgeResponse, ShareAcknowledgeTopicResponse
from kio.schema.share_fetch.v2.response import AcquiredRecords, ShareFetchableTopicResponse, ShareFetchResponse
from kio.schema.share_fetch.v2.response import LeaderIdAndEpoch as FetchLeader
from kio.schema.share_fetch.v2.response import PartitionData as FetchedPartition

from headrace.agent.fetch.deliver import Delivery, DeliveryOutcome, largest_first, largest_reply
from headrace.agent.fetch.files.damage import DamagedOffsetsError
from headrace.agent.fetch.files.walk import Batches
from headrace.agent.fetch.handler import ReplyClaim
from headrace.agent.fetch.index.tail import Lookup, LookupStatus
from headrace.agent.fetch.locate import Locator
from headrace.agent.fetch.share.sessions import ShareRef
from headrace.agent.peers.share_turns import PartitionTurn, Returned, TurnAnswer
from headrace.metastore.api.read import AbortedRange, ExtentQuery
from headrace.protocol.errors import READ_DAMAGED, READ_FAILED
from headrace.protocol.request import Request, Response
from headrace.protocol.typed import Schema, reply
from headrace.storage.errors import CorruptError, InvalidError
from headrace.storage.records.codec import open_batch
from headrace.storage.records.header import HEADER_BYTES, PATCHED_BYTES, BatchHeader, read_header

OffsetRange = tuple[int, int]
"""First and last offset."""


def headers(
    buffers: Sequence[bytes | memoryview],
) -> Iterator[tuple[BatchHeader, bytes | memoryview, bytes | memoryview]]:
    """Yield (header, first bytes, the other bytes) of each batch of an answer (agent/fetch/files/walk.py)."""
    for head, rest in zip(buffers[::2], buffers[1::2], strict=True):
        yield read_header(bytes(head) + bytes(rest[: HEADER_BYTES - PATCHED_BYTES])), head, rest


def have_holes(buffers: Sequence[bytes | memoryview]) -> bool:
    """Return whether any batch has an offset without a record."""
    return any(header.is_control or _is_sparse(header) for header, _, _ in headers(buffers))


def find_holes(buffers: Sequence[bytes | memoryview]) -> list[OffsetRange]:
    """Return the offsets without a record, ascending, neighbours as one. Sparse batches are opened."""
    found: list[OffsetRange] = []
    for header, head, rest in headers(buffers):
        for first, last in _holes_of(header, head, rest):
            if found and found[-1][1] + 1 == first:
                first = found.pop()[0]
            found.append((first, last))
    return found


def _holes_of(header: BatchHeader, head: bytes | memoryview, rest: bytes | memoryview) -> Iterator[OffsetRange]:
    next_offset, last = header.base_offset, header.base_offset + header.last_offset_delta
    if not header.is_control and header.record_count:
        if not _is_sparse(header):
            return
        try:
            offsets = [record.offset for record in open_batch(memoryview(b"".join((head, rest))))]
        except (CorruptError, InvalidError):
            return
        for offset in offsets:
            if offset > next_offset:
                yield next_offset, offset - 1
            next_offset = offset + 1
    if next_offset <= last:
        yield next_offset, last


def _is_sparse(header: BatchHeader) -> bool:
    return header.record_count <= header.last_offset_delta


AcquiredRange = tuple[int, int, int]
"""First offset, last offset, number of the attempt."""


@dataclass(slots=True)
class ShareDelivery:
    """One partition's part of the answer."""

    error: int = ErrorCode.none
    records: list[bytes | memoryview] = field(default_factory=list)
    acquired: list[AcquiredRange] = field(default_factory=list)
    returned: list[Returned] = field(default_factory=list)


class ShareReader:
    """Reads what members of share groups acquired, for one agent."""

    def __init__(
        self, locator: Locator, delivery: Delivery, catch_up: Callable[[], Awaitable[None]], max_bytes: int
    ) -> None:
        """`catch_up` returns once the index has everything that was committed before the call. `max_bytes` limits every
        response."""
        self._locator, self._delivery, self._catch_up, self._max_bytes = locator, delivery, catch_up, max_bytes

    async def read(
        self,
        acquired: Mapping[int, Sequence[AcquiredRange]],
        max_bytes: int,
        memory: ReplyClaim,
        *,
        committed: bool,
        needed_ends: Mapping[int, int] | None = None,
    ) -> dict[int, ShareDelivery]:
        """Partition key -> what can be sent of it. `needed_ends`: partition key -> where the last batch that is needed
        may begin before; what was acquired from its end on is given back."""
        limit = max(0, min(max_bytes, self._max_bytes))
        keys = list(acquired)
        queries = [ExtentQuery(key, acquired[key][0][0], max(limit, 1)) for key in keys]
        ends = [(needed_ends or {}).get(key) or acquired[key][-1][1] + 1 for key in keys]
        found = await self._locator.locate(queries, max(limit, 1))
        if any(_is_behind(lookup, end, committed=committed) for lookup, end in zip(found, ends, strict=True)):
            await self._catch_up()
            found = await self._locator.locate(queries, max(limit, 1))
        lookups = [_up_to(lookup, end, committed=committed) for lookup, end in zip(found, ends, strict=True)]
        limit = await memory.claim(largest_reply(queries, lookups, limit), largest_first(queries, lookups), limit)
        outcomes = await self._delivery.deliver(queries, lookups, limit, committed=True)
        parts = {}
        for key, original, (lookup, outcome) in zip(keys, found, outcomes, strict=True):
            aborted = (*original.aborted, *lookup.aborted) if committed else ()
            holes: list[OffsetRange] = []
            if isinstance(outcome, Batches) and have_holes(outcome.buffers):
                holes = await asyncio.to_thread(find_holes, outcome.buffers)
            parts[key] = _part(key, acquired[key], lookup, outcome, aborted, holes)
        return parts


def _is_behind(lookup: Lookup, end: int, *, committed: bool) -> bool:
    """Return whether the index lacks what the owner has acquired."""
    if lookup.status not in (LookupStatus.FOUND, LookupStatus.OUT_OF_RANGE):
        return False
    return (lookup.last_stable_offset if committed else lookup.high_watermark) < end


def _up_to(lookup: Lookup, end: int, *, committed: bool) -> Lookup:
    """Return the extents with records before `end`; as a stable end, no batch from there on is read.

    Nothing is read for read_committed from where it is not known here what was aborted.
    """
    if committed:
        end = min(end, lookup.last_stable_offset)
    extents = [extent for extent in lookup.extents if extent.base_offset < end]
    return lookup._replace(extents=extents, last_stable_offset=end)


def _part(
    key: int,
    acquired: Sequence[AcquiredRange],
    lookup: Lookup,
    outcome: DeliveryOutcome,
    aborted: Sequence[AbortedRange],
    holes: Sequence[OffsetRange],
) -> ShareDelivery:
    part = ShareDelivery()
    covered: float = acquired[0][0]
    if lookup.status is LookupStatus.GONE:
        part.error = ErrorCode.unknown_topic_or_partition
        return part  # nothing is given back to a partition that is gone
    if lookup.status is LookupStatus.FOUND and isinstance(outcome, Batches):
        if outcome.next is not None:
            covered = outcome.next.offset
        part.records, gone = _without_aborted(outcome.buffers, aborted)
        part.returned += [Returned(key, *both, True) for both in _done(acquired, [*gone, *holes])]
    elif isinstance(outcome, DamagedOffsetsError):
        part.error = READ_DAMAGED
        covered = outcome.last_offset + 1
        damaged = _common(acquired, outcome.first_offset, outcome.last_offset)
        part.returned += [Returned(key, *both, True) for both in damaged]
    elif lookup.status is not LookupStatus.OUT_OF_RANGE:
        part.error = READ_FAILED
    done = [(each.first, each.last) for each in part.returned]
    for first, last, tries in acquired:
        if last >= covered:
            part.returned.append(Returned(key, max(first, int(covered)), last))
            last = int(covered) - 1
        part.acquired += [(*both, tries) for both in _except(first, last, done)]
    if not part.acquired:
        part.records = []
    return part


def _without_aborted(
    buffers: Sequence[bytes | memoryview], aborted: Sequence[AbortedRange]
) -> tuple[list[bytes | memoryview], list[OffsetRange]]:
    """Return (the batches that are not of aborted transactions, the offsets of those that are)."""
    if not aborted:
        return list(buffers), []
    kept: list[bytes | memoryview] = []
    gone: list[OffsetRange] = []
    for header, head, rest in headers(buffers):
        first, last = header.base_offset, header.base_offset + header.last_offset_delta
        is_aborted = header.is_transactional and any(
            each.producer_id == header.producer_id and each.first_offset <= first <= each.last_offset
            for each in aborted
        )
        if is_aborted:
            gone.append((first, last))
        else:
            kept += (head, rest)
    return kept, gone


def _done(acquired: Sequence[AcquiredRange], gone: Iterable[OffsetRange]) -> list[OffsetRange]:
    """Return the acquired offsets that no member has to acknowledge, ascending, each once; the last range ends past
    what was acquired as far as there are no records.
    """
    done: list[OffsetRange] = []
    last_acquired = acquired[-1][1]
    for first, last in sorted(gone):
        for begin, end in _common(acquired, first, last):
            if done and begin <= done[-1][1] + 1:
                begin, end = done[-1][0], max(done.pop()[1], end)
            done.append((begin, end))
        if done and done[-1][1] >= last_acquired and first <= done[-1][1] + 1:
            done[-1] = done[-1][0], max(done[-1][1], last)
    return done


def _common(acquired: Sequence[AcquiredRange], first: int, last: int) -> list[tuple[int, int]]:
    """Return the acquired offsets of a batch."""
    return [(max(a, first), min(b, last)) for a, b, _ in acquired if a <= last and first <= b]


def _except(first: int, last: int, done: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the parts of a range that are not in `done`, which is ascending."""
    parts = []
    for begin, end in done:
        if end < first or begin > last:
            continue
        if first < begin:
            parts.append((first, begin - 1))
        first = end + 1
    return [*parts, (first, last)] if first <= last else parts


T = TypeVar("T")
AnswerParts = Mapping[ShareRef, tuple[PartitionTurn, ShareDelivery]]
"""What the owner said of each partition, and what could be read of it."""


def refused(request: Request, schema: Schema, code: ErrorCode | int, message: str | None = None) -> Response:
    """Return the answer, of either API, that has a code for the whole request."""
    return reply(
        request,
        schema.response(
            error_code=ErrorCode(code),
            error_message=message,
            acquisition_lock_timeout=timedelta(0),
            responses=(),
            node_endpoints=(),
        ),
    )


def _topics(schema: Schema, message: type[T], parts: Mapping[ShareRef, object]) -> tuple[T, ...]:
    by_topic: dict[uuid.UUID, list[object]] = {}
    for (topic_id, _), made in parts.items():
        by_topic.setdefault(topic_id, []).append(made)
    return tuple(schema.make(message, topic_id=topic_id, partitions=tuple(made)) for topic_id, made in by_topic.items())


def fetched(schema: Schema, answer: TurnAnswer, parts: AnswerParts, acks: Collection[ShareRef]) -> ShareFetchResponse:
    """The answer to ShareFetch: partitions with records, acknowledgements or an error."""
    made = {}
    for ref, (turn, delivery) in parts.items():
        if not (ref in acks or delivery.error or delivery.acquired):
            continue
        made[ref] = schema.make(
            FetchedPartition,
            partition_index=ref[1],
            error_code=ErrorCode(delivery.error),
            error_message=None,
            acknowledge_error_code=int(turn.ack_error) if ref in acks else 0,
            acknowledge_error_message=None,
            current_leader=_no_leader(schema, FetchLeader),
            records=b"".join(delivery.records),
            acquired_records=tuple(
                schema.make(AcquiredRecords, first_offset=first, last_offset=last, delivery_count=min(tries, 32_767))
                for first, last, tries in delivery.acquired
            ),
        )
    return schema.make(
        ShareFetchResponse,
        error_code=ErrorCode.none,
        error_message=None,
        acquisition_lock_timeout=timedelta(milliseconds=answer.lock_ms),
        responses=_topics(schema, ShareFetchableTopicResponse, made),
        node_endpoints=(),
    )


def acknowledged(
    schema: Schema, answer: TurnAnswer, parts: AnswerParts, acks: Collection[ShareRef]
) -> ShareAcknowledgeResponse:
    """The answer to ShareAcknowledge: partitions with acknowledgements."""
    made = {
        ref: schema.make(
            AcknowledgedPartition,
            partition_index=ref[1],
            error_code=ErrorCode(turn.ack_error),
            error_message=None,
            current_leader=_no_leader(schema, AcknowledgeLeader),
        )
        for ref, (turn, _) in parts.items()
        if ref in acks
    }
    return schema.make(
        ShareAcknowledgeResponse,
        error_code=ErrorCode.none,
        error_message=None,
        acquisition_lock_timeout=timedelta(milliseconds=answer.lock_ms),
        responses=_topics(schema, ShareAcknowledgeTopicResponse, made),
        node_endpoints=(),
    )


def _no_leader(schema: Schema, message: type[T]) -> T:
    return schema.make(message, leader_id=-1, leader_epoch=-1)
