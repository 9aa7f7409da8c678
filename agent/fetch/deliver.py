"""From located extents to each reader's batches, within the limits of the request.

Place: between the long poll, which knows that there is enough to send, and the reply.
Invariant: limits hold for the response and for each partition, but for one batch per response, which
goes to the first partition in an order that is rotated anew each time: nobody starves behind a
partition that lags, has huge batches or lies in many files. A file that is missing or corrupt is asked of the primary
once more (compaction may have swapped it away), then it is a storage error: never a loop, never a
wrong byte. Historical extents are gone through one at a time, the loop left to others as long in between.
If the process dies here clients repeat their fetch.
Source: KIP-74 (limits, one batch at least).
"""

from __future__ import annotations

import asyncio
import itertools
import random
import uuid
from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeVar

from headrace.agent.fetch.assemble import Portion
from headrace.agent.fetch.cache import ChunkCache, Piece
from headrace.agent.fetch.locate import Located, Locator
from headrace.agent.fetch.metrics import FetchMetrics
from headrace.agent.fetch.read import Slice, SliceReader
from headrace.agent.fetch.seek import Seeker
from headrace.agent.fetch.walk import BatchStart, first_size, start_of
from headrace.metastore.values import Extent, ExtentQuery
from headrace.storage.clock import Clock
from headrace.storage.errors import CorruptError, HeadraceError, NotFoundError
from headrace.storage.records.header import HEADER_BYTES

T = TypeVar("T")

HISTORICAL_BYTES = 16 * 1024 * 1024
"""The most that a response carries when some of it is historical: bounds what backfills hold in memory."""
FILES_MAX = 64
"""The most files that a response is read from, but for what is in memory: bounds how long it takes when they are many.

A client that loses patience before its answer asks for the same again, and for ever if that takes as long.
"""

_GONE_OR_UNSOUND = (NotFoundError, CorruptError)


class Job(NamedTuple):
    """One partition that has something to deliver; `number` is its place among the queries."""

    number: int
    query: ExtentQuery
    place: Located


class Stretch(NamedTuple):
    """A part of an extent: the batches from `start` on, and the slice that should hold what fits."""

    extent: Extent
    start: BatchStart
    slice: Slice


Outcome = Portion | HeadraceError


class Delivery:
    """Turns located extents into portions."""

    def __init__(
        self,
        locator: Locator,
        reader: SliceReader,
        seeker: Seeker,
        cache: ChunkCache,
        clock: Clock,
        rng: random.Random,
        metrics: FetchMetrics,
    ) -> None:
        self._locator = locator
        self._reader = reader
        self._cache = cache
        self._seeker = seeker
        self._clock = clock
        self._rng = rng
        self._metrics = metrics

    async def deliver(
        self, queries: Sequence[ExtentQuery], located: Sequence[Located], max_bytes: int
    ) -> list[tuple[Located, Outcome]]:
        """One (what is known of the partition, its batches or the error) per query, in order.

        `max_bytes` bounds the response, each query's own `max_bytes` its partition.
        """
        places = list(located)
        jobs = self._rotated([Job(i, queries[i], place) for i, place in enumerate(places) if place.extents])
        if not all(job.place.recent for job in jobs):
            max_bytes = min(max_bytes, HISTORICAL_BYTES)
        outcomes = await self._attempt(jobs, max_bytes)
        lost = [job for job in jobs if isinstance(outcomes.get(job.number), _GONE_OR_UNSOUND)]
        if lost:
            again = await self._ask_again(lost)
            places = [again.get(i, place) for i, place in enumerate(places)]
            jobs = [Job(job.number, job.query, places[job.number]) for job in lost if places[job.number].extents]
            for job in lost:
                del outcomes[job.number]
            left = max_bytes - sum(portion.size_bytes for portion in outcomes.values() if isinstance(portion, Portion))
            outcomes |= await self._attempt(jobs, left, at_least_one=left == max_bytes)
        self._report(queries, outcomes)
        return [(place, outcomes.get(i) or Portion()) for i, place in enumerate(places)]

    def _rotated(self, jobs: list[Job]) -> list[Job]:
        first = self._rng.randrange(len(jobs)) if len(jobs) > 1 else 0
        return jobs[first:] + jobs[:first]

    async def _ask_again(self, lost: Sequence[Job]) -> dict[int, Located]:
        """What the primary says now of partitions whose files were missing or corrupt, by number."""
        for job in lost:
            for extent in job.place.extents:
                self._cache.forget(extent.file_id)
        places = await self._locator.locate_at_primary([job.query for job in lost])
        return {job.number: place for job, place in zip(lost, places, strict=True)}

    async def _attempt(self, jobs: Sequence[Job], max_bytes: int, *, at_least_one: bool = True) -> dict[int, Outcome]:
        """Outcomes by number, in the order of `jobs` until `max_bytes` are full; the rest get none."""
        chosen = _within(jobs, max_bytes)
        starts = await self._starts(chosen)
        files: set[uuid.UUID] = set()
        plans = [
            start if isinstance(start, HeadraceError) else self._stretches(job.place, start, limit, files)
            for (job, limit), start in zip(chosen, starts, strict=True)
        ]
        slices = [stretch.slice for plan in plans if isinstance(plan, list) for stretch in plan]
        pieces = iter(await self._reader.read(slices))
        outcomes: dict[int, Outcome] = {}
        left = max_bytes
        for (job, _), plan in zip(chosen, plans, strict=True):
            try:
                limit = max(min(job.query.max_bytes, left), 0)
                stretches = _sound(plan)
                mine = list(itertools.islice(pieces, len(stretches)))
                portion = await self._fill(stretches, mine, limit, at_least_one=at_least_one)
                at_least_one = at_least_one and not portion.buffers
                left -= portion.size_bytes
                outcomes[job.number] = portion
            except HeadraceError as error:
                outcomes[job.number] = error
        return outcomes

    def _stretches(self, place: Located, start: BatchStart, limit: int, files: set[uuid.UUID]) -> list[Stretch]:
        """Slices of the extents in order, `limit` bytes of them from `start` on; of the first at least a header.

        `files`: those that the response is read from; beyond FILES_MAX only such as need no reading.
        """
        plan: list[Stretch] = []
        for extent in place.extents:
            if plan:
                start = start_of(extent)
            end = extent.position + extent.length
            stop = min(end, start.position + max(limit, HEADER_BYTES))
            is_one_more = len(files) >= FILES_MAX and extent.file_id not in files
            if is_one_more and self._cache.peek(extent.file_id, start.position, stop) is None:
                break
            files.add(extent.file_id)
            plan.append(Stretch(extent, start, Slice(extent.file_id, start.position, stop, end, place.recent)))
            limit -= stop - start.position
            if limit < HEADER_BYTES:
                break
        return plan

    async def _starts(self, chosen: Sequence[tuple[Job, int]]) -> list[BatchStart | HeadraceError]:
        """Where each job begins. Extents that are entered midway for the first time are searched side by side."""
        firsts = [(job.place.extents[0], job.query.offset, job.place.recent) for job, _ in chosen]
        known = [self._seeker.known_start(extent, offset) for extent, offset, _ in firsts]
        searches = [
            self._seeker.find_start(extent, offset, recent=recent)
            for (extent, offset, recent), start in zip(firsts, known, strict=True)
            if start is None
        ]
        found = iter(await asyncio.gather(*searches)) if searches else iter(())
        return [next(found) if start is None else start for start in known]

    async def _fill(
        self, plan: Sequence[Stretch], pieces: Sequence[Piece | HeadraceError], limit: int, *, at_least_one: bool
    ) -> Portion:
        """The portion that the stretches give. What fails after the first extent ends it; the next fetch meets it."""
        portion = Portion()
        for (extent, start, wanted), read in zip(plan, pieces, strict=True):
            began = self._clock.monotonic()
            try:
                piece = _sound(read)
                if at_least_one and not portion.buffers:
                    piece = await self._whole_first(extent, start, wanted, piece)
                end = portion.add(extent, piece, start, max_bytes=limit, at_least_one=at_least_one)
            except HeadraceError:
                if portion.buffers:
                    break
                raise
            if end.position < extent.position + extent.length:
                if end != start:
                    self._seeker.remember(extent, end)
                break
            if not wanted.recent:
                await self._give_way(began)
        return portion

    async def _give_way(self, began: float) -> None:
        """Let the loop do other things for as long as it was held since `began`: a backfill gets half of it at most."""
        await self._clock.sleep(self._clock.monotonic() - began)

    async def _whole_first(self, extent: Extent, start: BatchStart, wanted: Slice, piece: Piece) -> Piece:
        """`piece`, or a larger one when it does not hold its first batch."""
        size = first_size(extent, piece, start)
        if size <= len(piece.data):
            return piece
        (larger,) = await self._reader.read([wanted._replace(end=start.position + size)])
        return _sound(larger)

    def _report(self, queries: Sequence[ExtentQuery], outcomes: Mapping[int, Outcome]) -> None:
        """Count what is delivered; count and log what could not be."""
        delivered = 0
        for number, outcome in outcomes.items():
            if isinstance(outcome, Portion):
                delivered += outcome.size_bytes
            else:
                key, offset, _ = queries[number]
                self._metrics.report_unreadable(key, f"offset={offset}", outcome)
        self._metrics.bytes.inc(delivered)


def available_bytes(query: ExtentQuery, place: Located) -> int:
    """About how many bytes the reader can have. An extent that it enters midway counts by its share of offsets."""
    if not place.extents:
        return 0
    first = place.extents[0]
    skipped = max(query.offset - first.base_offset, 0) * first.length // (first.last_offset - first.base_offset + 1)
    return min(sum(extent.length for extent in place.extents) - skipped, query.max_bytes)


def _within(jobs: Sequence[Job], max_bytes: int) -> list[tuple[Job, int]]:
    """The jobs that fit `max_bytes`, at least one, each with the bytes it may take."""
    chosen: list[tuple[Job, int]] = []
    left = max_bytes
    for job in jobs:
        if left <= 0 and chosen:
            break
        limit = max(min(job.query.max_bytes, left), 0)
        chosen.append((job, limit))
        left -= min(available_bytes(job.query, job.place), limit)
    return chosen


def _sound(value: T | HeadraceError) -> T:
    if isinstance(value, HeadraceError):
        raise value
    return value
