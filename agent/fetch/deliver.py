"""Turn look-ups into each reader's batches, within the limits of the request.

Place: between the long poll, which knows that there is enough to send, and the reply.
Invariant: limits apply to the response and to each partition, except for one batch per response, which goes to the
first partition in an order that is rotated for each response, so that every partition makes progress, also next to
one that lags, has huge batches or is spread over many files. For a missing or corrupt file the primary is asked once
more (compaction may have replaced it), then it is a storage error; if the bucket itself is damaged (files/damage.py),
what is readable before and behind the damage is delivered, and only the damaged offsets are an error: never a loop,
never a wrong byte. Historical extents are processed one at a time, and the event loop is left to other tasks for as
long in between.
Source: KIP-74 (limits, one batch at least).
"""

from __future__ import annotations

import asyncio
import logging
import random
import uuid
from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeVar

from headrace.agent.fetch.files.cache import LONG_RUN_BYTES
from headrace.agent.fetch.files.damage import is_suspect
from headrace.agent.fetch.files.read import RangeReader
from headrace.agent.fetch.files.read_ahead import ReadAhead, ReadTo
from headrace.agent.fetch.files.seek import Seeker
from headrace.agent.fetch.files.walk import NO_END, Batches, BatchStart, first_size
from headrace.agent.fetch.index.tail import Lookup, known_part, stable_part
from headrace.agent.fetch.locate import Locator
from headrace.agent.fetch.metrics import FetchMetrics
from headrace.metastore.api.read import Extent, ExtentQuery, is_in_file
from headrace.metastore.transaction_markers import render_marker
from headrace.storage.clock import Clock
from headrace.storage.errors import HeadraceError, NotFoundError
from headrace.storage.records.header import HEADER_BYTES
from headrace.storage.segment.file_range import FileRange, RangeBytes

log = logging.getLogger(__name__)

T = TypeVar("T")

HISTORICAL_BYTES = 16 * 1024 * 1024
"""Maximum size of a response with historical data: limits the memory of backfills."""
FILES_MAX = 64
"""Maximum number of files that a response is read from, without files in memory: limits the duration of a response.

A client that times out before its answer asks for the same again, and without end if that takes as long.
"""

EXAMINED_MAX = 2
"""Extents that are examined for one response, which waits for it; the others' readers ask again."""
LEAST_PART = 8
"""Least part of a further extent that is read, an eighth of the limit: a batch may well not fit, and to
read a fragment costs as much as to read a long run.
"""


class PartitionRead(NamedTuple):
    """One partition that has something to deliver; `number` is its index among the queries."""

    number: int
    query: ExtentQuery
    lookup: Lookup


class ExtentRead(NamedTuple):
    """What is read of an extent: the batches from `start` on, and the byte range that should hold what fits."""

    extent: Extent
    start: BatchStart
    file_range: FileRange | None
    """The range of the file; None for a marker."""


DeliveryOutcome = Batches | HeadraceError


class Delivery:
    """Turns look-ups into batches to send."""

    def __init__(
        self,
        locator: Locator,
        reader: RangeReader,
        seeker: Seeker,
        clock: Clock,
        rng: random.Random,
        metrics: FetchMetrics,
        ahead: ReadAhead | None = None,
    ) -> None:
        """`ahead`: None if nothing is read ahead."""
        self._ahead = ahead
        self._locator = locator
        self._reader = reader
        self._seeker = seeker
        self._clock = clock
        self._rng = rng
        self._metrics = metrics

    async def deliver(
        self,
        queries: Sequence[ExtentQuery],
        found: Sequence[Lookup],
        max_bytes: int,
        epochs: Sequence[int] = (),
        *,
        committed: bool = False,
    ) -> list[tuple[Lookup, DeliveryOutcome]]:
        """One (what is known of the partition, its batches or the error) per query, in order.

        `epochs`: the leader epoch that the reader knows of each, as lookup.known_part takes it.
        `committed`: batches from the last stable offset on are left out (read_committed).
        `max_bytes` limits the response, each query's `max_bytes` its partition.
        """
        lookups = list(found)
        partitions = self._rotated(
            [PartitionRead(i, queries[i], lookup) for i, lookup in enumerate(lookups) if lookup.extents]
        )
        if not all(partition.lookup.recent for partition in partitions):
            max_bytes = min(max_bytes, HISTORICAL_BYTES)
        outcomes = await self._attempt(partitions, max_bytes, committed=committed)
        lost = [each for each in partitions if _may_be_replaced(outcomes.get(each.number))]
        if lost:
            again = await self._ask_again(lost, epochs, committed=committed)
            lookups = [again.get(i, lookup) for i, lookup in enumerate(lookups)]
            for partition in lost:
                del outcomes[partition.number]
            partitions = [PartitionRead(i, query, lookups[i]) for i, query, _ in lost if lookups[i].extents]
            outcomes |= await self._once_more(partitions, outcomes, max_bytes, committed=committed)
            suspects = [each for each in partitions if is_suspect(outcomes.get(each.number))][:EXAMINED_MAX]
            damaged = [each for each in suspects if await self._is_damaged(each)]
            outcomes |= await self._once_more(damaged, outcomes, max_bytes, committed=committed)
        self._report(queries, outcomes)
        if self._ahead is not None and partitions:
            self._ahead.follow(_progress(queries, outcomes), sum(1 for lookup in lookups if lookup.extents))
        return [(lookup, outcomes.get(i) or Batches()) for i, lookup in enumerate(lookups)]

    def _rotated(self, partitions: list[PartitionRead]) -> list[PartitionRead]:
        first = self._rng.randrange(len(partitions)) if len(partitions) > 1 else 0
        return partitions[first:] + partitions[:first]

    async def _once_more(
        self,
        partitions: Sequence[PartitionRead],
        outcomes: Mapping[int, DeliveryOutcome],
        max_bytes: int,
        *,
        committed: bool,
    ) -> dict[int, DeliveryOutcome]:
        """Return the outcomes of another attempt at these partitions, within what the others leave."""
        if not partitions:
            return {}
        left = max_bytes - sum(batches.size_bytes for batches in outcomes.values() if isinstance(batches, Batches))
        return await self._attempt(partitions, left, at_least_one=left == max_bytes, committed=committed)

    async def _is_damaged(self, partition: PartitionRead) -> bool:
        """Return whether the bucket has damage where this partition could not be read, so that it is known from now
        on. If that is not clear yet, the outcome stays: the client asks again.
        """
        extent = partition.lookup.extents[0]
        if not is_in_file(extent):
            return False
        try:
            return await self._seeker.damage.find(extent)
        except HeadraceError as error:
            log.warning("extent not examined: partition_key=%d error=%s", partition.query.partition_key, error)
            return False

    async def _ask_again(
        self, lost: Sequence[PartitionRead], epochs: Sequence[int], *, committed: bool
    ) -> dict[int, Lookup]:
        """Return what the primary says now about partitions with missing or corrupt files, by number."""
        for partition in lost:
            for extent in partition.lookup.extents:
                if is_in_file(extent):
                    self._reader.forget(extent.file_id)
        lookups = await self._locator.locate_at_primary([partition.query for partition in lost])
        if committed:
            lookups = [stable_part(one.query, lookup) for one, lookup in zip(lost, lookups, strict=True)]
        if epochs:
            lookups = [known_part(lookup, epochs[one.number]) for one, lookup in zip(lost, lookups, strict=True)]
        return {partition.number: lookup for partition, lookup in zip(lost, lookups, strict=True)}

    async def _attempt(
        self, partitions: Sequence[PartitionRead], max_bytes: int, *, committed: bool, at_least_one: bool = True
    ) -> dict[int, DeliveryOutcome]:
        """Outcomes by number, in the order of `partitions` until `max_bytes` are full; the rest get none."""
        chosen = _within(partitions, max_bytes)
        starts = await self._starts(chosen)
        files: set[uuid.UUID] = set()
        plans = [
            start if isinstance(start, HeadraceError) else self._extent_reads(partition.lookup, start, limit, files)
            for (partition, limit), start in zip(chosen, starts, strict=True)
        ]
        ranges = [
            extent_read.file_range
            for plan in plans
            if isinstance(plan, list)
            for extent_read in plan
            if extent_read.file_range is not None
        ]
        bodies = iter(await self._reader.read(ranges))
        outcomes: dict[int, DeliveryOutcome] = {}
        left = max_bytes
        for (partition, _), plan in zip(chosen, plans, strict=True):
            try:
                limit = max(min(partition.query.max_bytes, left), 0)
                extent_reads = _sound(plan)
                mine = [_marker_body(extent) if wanted is None else next(bodies) for extent, _, wanted in extent_reads]
                batches = await self._fill(
                    extent_reads,
                    mine,
                    limit,
                    at_least_one=at_least_one,
                    end_offset=partition.lookup.last_stable_offset if committed else NO_END,
                )
                at_least_one = at_least_one and not batches.buffers
                left -= batches.size_bytes
                outcomes[partition.number] = batches
            except HeadraceError as error:
                outcomes[partition.number] = error
        return outcomes

    def _extent_reads(self, lookup: Lookup, start: BatchStart, limit: int, files: set[uuid.UUID]) -> list[ExtentRead]:
        """Byte ranges of the extents in order, `limit` bytes of them from `start` on; of the first at least a header.

        `files`: the files that the response is read from; beyond FILES_MAX only files that need no read.
        """
        plan: list[ExtentRead] = []
        least_part = limit // LEAST_PART
        for extent in lookup.extents:
            if plan:
                start = BatchStart(extent.position, extent.base_offset)
            end = extent.position + extent.length
            stop = min(end, start.position + max(limit, HEADER_BYTES))
            if plan and stop < end and limit < least_part:
                break
            file_id, file_range = extent.file_id, None
            if file_id is not None:
                is_one_more = len(files) >= FILES_MAX and file_id not in files
                if is_one_more and self._reader.cache.peek(file_id, start.position, stop) is None:
                    break
                files.add(file_id)
                run_end = end if extent.length >= LONG_RUN_BYTES else 0
                file_range = FileRange(file_id, start.position, stop, end, lookup.recent, run_end)
            plan.append(ExtentRead(extent, start, file_range))
            limit -= stop - start.position
            if limit < HEADER_BYTES:
                break
        return plan

    async def _starts(self, chosen: Sequence[tuple[PartitionRead, int]]) -> list[BatchStart | HeadraceError]:
        """Return where each partition begins. Extents entered midway for the first time are searched concurrently."""
        firsts = [(lookup.extents[0], query.offset, lookup.recent) for (_, query, lookup), _ in chosen]
        known = [self._known_start(extent, offset) for extent, offset, _ in firsts]
        searches = [
            self._seeker.find_start(extent, offset, recent=recent)
            for (extent, offset, recent), start in zip(firsts, known, strict=True)
            if start is None and is_in_file(extent)  # a marker has one offset, so its start is known
        ]
        found = iter(await asyncio.gather(*searches)) if searches else iter(())
        return [next(found) if start is None else start for start in known]

    def _known_start(self, extent: Extent, offset: int) -> BatchStart | HeadraceError | None:
        error = self._seeker.damage.at(extent, offset)
        return error or self._seeker.known_start(extent, offset)

    async def _fill(
        self,
        plan: Sequence[ExtentRead],
        bodies: Sequence[RangeBytes | HeadraceError],
        limit: int,
        *,
        at_least_one: bool,
        end_offset: int,
    ) -> Batches:
        """The batches that were read. What fails after the first extent ends it; the next fetch meets it."""
        batches = Batches()
        for (extent, start, wanted), read in zip(plan, bodies, strict=True):
            began = self._clock.monotonic()
            try:
                if isinstance(read, HeadraceError):
                    raise read
                body = read
                if wanted is not None and at_least_one and not batches.buffers:
                    body = await self._whole_first(extent, start, wanted, body)
                end = batches.add(
                    extent, body, start, max_bytes=limit, at_least_one=at_least_one, end_offset=end_offset
                )
            except HeadraceError:
                if batches.buffers:
                    break
                raise
            if end.position < extent.position + extent.length:
                if end != start:
                    self._seeker.remember(extent, end)
                break
            if wanted is not None and not wanted.recent:
                await self._give_way(began)
        return batches

    async def _give_way(self, began: float) -> None:
        """Leave the event loop to other tasks for as long as an extent, from `began` on, used it."""
        await self._clock.sleep(self._clock.monotonic() - began)

    async def _whole_first(self, extent: Extent, start: BatchStart, wanted: FileRange, body: RangeBytes) -> RangeBytes:
        """`body`, or a larger one when it does not hold its first batch."""
        size = first_size(extent, body, start)
        if size <= len(body.data):
            return body
        (larger,) = await self._reader.read([wanted._replace(end=start.position + size)])
        return _sound(larger)

    def _report(self, queries: Sequence[ExtentQuery], outcomes: Mapping[int, DeliveryOutcome]) -> None:
        """Count delivered bytes; count and log partitions that could not be read."""
        delivered = 0
        for number, outcome in outcomes.items():
            if isinstance(outcome, Batches):
                delivered += outcome.size_bytes
                self._metrics.count_sent(queries[number].partition_key, outcome.size_bytes, outcome.records)
            else:
                key, offset, _ = queries[number]
                self._metrics.report_unreadable(key, f"offset={offset}", outcome)
        self._metrics.bytes.inc(delivered)


def largest_reply(queries: Sequence[ExtentQuery], lookups: Sequence[Lookup], max_bytes: int) -> int:
    """Bytes of records that `deliver` may return for these, but for a single batch that is larger than its limit."""
    if not all(lookup.recent for lookup in lookups if lookup.extents):
        max_bytes = min(max_bytes, HISTORICAL_BYTES)
    return max(0, min(max_bytes, sum(map(available_bytes, queries, lookups))))


def largest_first(queries: Sequence[ExtentQuery], lookups: Sequence[Lookup]) -> int:
    """Return the most bytes of the response's first batch, to which no limit applies."""
    found = zip(queries, lookups, strict=True)
    return max((_left(query, lookup.extents[0]) for query, lookup in found if lookup.extents), default=0)


def available_bytes(query: ExtentQuery, lookup: Lookup) -> int:
    """Approximate number of bytes for the reader. An extent entered midway counts by its share of offsets."""
    if not lookup.extents:
        return 0
    first, *others = lookup.extents
    return min(_left(query, first) + sum([extent.length for extent in others]), query.max_bytes)


def _left(query: ExtentQuery, first: Extent) -> int:
    """Return about how many bytes of its first extent the reader has before it."""
    skipped = max(query.offset - first.base_offset, 0) * first.length // (first.last_offset - first.base_offset + 1)
    return first.length - skipped


def _may_be_replaced(outcome: DeliveryOutcome | None) -> bool:
    """Return whether the primary may name another file by now, or this one may be sound when it is read again."""
    return isinstance(outcome, NotFoundError) or is_suspect(outcome)


def _progress(queries: Sequence[ExtentQuery], outcomes: Mapping[int, DeliveryOutcome]) -> list[ReadTo]:
    """Return where the reader continues in the partitions of which it gets batches."""
    return [
        ReadTo(queries[number].partition_key, queries[number].offset, batches.next.offset, batches.next.position)
        for number, batches in outcomes.items()
        if isinstance(batches, Batches) and batches.next is not None
    ]


def _marker_body(extent: Extent) -> RangeBytes:
    """The batch of a marker, which no file has."""
    return RangeBytes(memoryview(render_marker(extent)), checked=True)


def _within(partitions: Sequence[PartitionRead], max_bytes: int) -> list[tuple[PartitionRead, int]]:
    """The partitions that fit `max_bytes`, at least one, each with the bytes it may take."""
    chosen: list[tuple[PartitionRead, int]] = []
    left = max_bytes
    for partition in partitions:
        if left <= 0 and chosen:
            break
        limit = max(min(partition.query.max_bytes, left), 0)
        chosen.append((partition, limit))
        left -= min(available_bytes(partition.query, partition.lookup), limit)
    return chosen


def _sound(value: T | HeadraceError) -> T:
    if isinstance(value, HeadraceError):
        raise value
    return value
