"""Finds the extents for a fetch: in the index, else with one query to the primary.

Place: between the plan of a fetch and its reads.
Invariant: OFFSET_OUT_OF_RANGE is sent only after the primary confirmed it, because the index may lag and a
consumer would reset its offset and read everything twice. All partitions that need the primary share one call and its
budget of extents; partitions that get none of it are found by a later fetch, since each call begins at a random one.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Sequence

from headrace.agent.fetch.index import TailIndex
from headrace.agent.fetch.lookup import Lookup, LookupStatus
from headrace.agent.fetch.metrics import FetchMetrics
from headrace.metastore.api.read import ALL_BYTES, EXTENTS_PER_CALL, ExtentQuery, PartitionExtents, ReadApi
from headrace.storage.errors import HeadraceError

log = logging.getLogger(__name__)


class Locator:
    """Answers ExtentQueries, without the metastore where possible."""

    def __init__(self, index: TailIndex, metastore: ReadApi, rng: random.Random, metrics: FetchMetrics) -> None:
        self._index = index
        self._metastore = metastore
        self._rng = rng
        self._metrics = metrics

    async def locate(self, queries: Sequence[ExtentQuery], max_bytes: int = ALL_BYTES) -> list[Lookup]:
        """One answer per query, in order. Does not yield to other tasks if the index has everything.

        `max_bytes` limits about what the primary looks up for all of them together.
        """
        answers: list[Lookup | None] = []
        unknown = []
        for query in queries:
            found = self._index.look(*query)
            answers.append(found)
            if found is None:
                unknown.append(query)
        if not unknown:
            return [answer for answer in answers if answer is not None]
        asked = iter(await self.locate_at_primary(unknown, max_bytes))
        return [next(asked) if answer is None else answer for answer in answers]

    async def locate_at_primary(self, queries: Sequence[ExtentQuery], max_bytes: int = ALL_BYTES) -> list[Lookup]:
        """The same from the primary, without the index."""
        self._metrics.primary_queries.inc()
        generation = self._index.generation
        first = self._rng.randrange(len(queries)) if len(queries) > EXTENTS_PER_CALL else 0
        try:
            found = await self._metastore.find_extents([*queries[first:], *queries[:first]], max_bytes)
        except HeadraceError as error:
            log.warning("cannot find extents: partitions=%d error=%s", len(queries), error)
            return [Lookup(LookupStatus.UNAVAILABLE)] * len(queries)
        answers = found[len(found) - first :] + found[: len(found) - first]
        for answer in answers:
            self._index.observe(answer, generation)
        return [self._judge(query, answer) for query, answer in zip(queries, answers, strict=True)]

    def _judge(self, query: ExtentQuery, answer: PartitionExtents) -> Lookup:
        if not answer.known:
            return Lookup(LookupStatus.GONE)
        # The feed may have brought more while the primary answered.
        high_watermark = max(answer.high_watermark, self._index.high_watermark(query.partition_key))
        if not answer.log_start_offset <= query.offset <= high_watermark:
            return Lookup(LookupStatus.OUT_OF_RANGE, answer.log_start_offset, high_watermark)
        extents = answer.extents
        if not extents and query.offset < high_watermark:
            found = self._index.look(*query)
            if found is not None:
                return found
        end = extents[-1].last_offset + 1 if extents else query.offset
        ends_early = end < answer.high_watermark and sum(extent.length for extent in extents) < query.max_bytes
        recent = bool(extents) and end >= answer.high_watermark
        return Lookup(LookupStatus.FOUND, answer.log_start_offset, high_watermark, extents, recent, cut=ends_early)
