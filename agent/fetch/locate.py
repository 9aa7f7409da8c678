"""Finds the extents for a fetch: in the index, in what the primary said earlier, else with one query to the primary.

Place: between the plan of a fetch and its reads.
Invariant: OFFSET_OUT_OF_RANGE is sent only after the primary confirmed it, because the index may lag and a
consumer would reset its offset and read everything twice. All partitions that need the primary share one call and its
budget of extents; partitions that get none of it are found by a later fetch, since each call begins at a random one.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Sequence

from headrace.agent.fetch.index.index import TailIndex
from headrace.agent.fetch.index.tail import Lookup, LookupStatus, up_to
from headrace.agent.fetch.metrics import FetchMetrics
from headrace.metastore.api.read import ALL_BYTES, EXTENTS_PER_CALL, Extent, ExtentQuery, IndexApi, PartitionExtents
from headrace.storage.errors import HeadraceError

log = logging.getLogger(__name__)

READ_AHEAD = 16
"""How many times a reader's bytes the primary is asked for: a replay asks it about once in so many fetches."""
READ_AHEAD_PARTITIONS = 64
"""Fetches that look up more partitions than this at once do not read ahead: together they have one budget."""


class Locator:
    """Answers ExtentQueries, without the metastore where possible."""

    def __init__(self, index: TailIndex, metastore: IndexApi, rng: random.Random, metrics: FetchMetrics) -> None:
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
            found = self._index.look(*query) or self._index.look_back(*query)
            answers.append(found)
            if found is None:
                unknown.append(query)
        if not unknown:
            return [answer for answer in answers if answer is not None]
        asked = iter(await self.locate_at_primary(unknown, max_bytes))
        return [next(asked) if answer is None else answer for answer in answers]

    def known(self, key: int, offset: int, max_bytes: int) -> tuple[Sequence[Extent], bool]:
        """The extents from `offset` on that are known without the primary, and whether they are recent."""
        found = self._index.look(key, offset, max_bytes)
        if found is not None:
            return found.extents, found.recent
        return up_to(self._index.history.from_offset(key, offset), 0, max_bytes), False

    async def locate_at_primary(self, queries: Sequence[ExtentQuery], max_bytes: int = ALL_BYTES) -> list[Lookup]:
        """The same from the primary, without the index."""
        self._metrics.primary_queries.inc()
        generation, changes = self._index.generation, self._index.history.changes
        ahead = READ_AHEAD if len(queries) <= READ_AHEAD_PARTITIONS else 1
        wider = [query._replace(max_bytes=min(query.max_bytes * ahead, ALL_BYTES)) for query in queries]
        first = self._rng.randrange(len(queries)) if len(queries) > EXTENTS_PER_CALL else 0
        try:
            found = await self._metastore.find_extents(
                [*wider[first:], *wider[:first]], min(max_bytes * ahead, ALL_BYTES)
            )
        except HeadraceError as error:
            log.warning("cannot find extents: partitions=%d error=%s", len(queries), error)
            return [Lookup(LookupStatus.UNAVAILABLE)] * len(queries)
        answers = found[len(found) - first :] + found[: len(found) - first]
        for answer in answers:
            if self._index.observe(answer, generation):
                stable_end = answer.last_stable_offset
                stable = [extent for extent in answer.extents if extent.last_offset < stable_end]
                self._index.history.keep(answer.partition_key, stable, changes, answer.aborted)
        return [self._judge(query, answer) for query, answer in zip(queries, answers, strict=True)]

    def _judge(self, query: ExtentQuery, answer: PartitionExtents) -> Lookup:
        if not answer.known:
            return Lookup(LookupStatus.GONE)
        # The feed may have brought more while the primary answered.
        high_watermark = max(answer.high_watermark, self._index.high_watermark(query.partition_key))
        if not answer.log_start_offset <= query.offset <= high_watermark:
            return Lookup(
                LookupStatus.OUT_OF_RANGE,
                answer.log_start_offset,
                high_watermark,
                last_stable_offset=answer.last_stable_offset,
            )
        extents = up_to(answer.extents, 0, query.max_bytes)
        if not extents and query.offset < high_watermark:
            found = self._index.look(*query)
            if found is not None:
                return found
        end = extents[-1].last_offset + 1 if extents else query.offset
        ends_early = end < answer.high_watermark and sum(extent.length for extent in extents) < query.max_bytes
        recent = bool(extents) and end >= answer.high_watermark
        return Lookup(
            LookupStatus.FOUND,
            answer.log_start_offset,
            high_watermark,
            extents,
            recent,
            cut=ends_early,
            last_stable_offset=answer.last_stable_offset,  # the feed may have brought more, but `aborted` fits this
            aborted=answer.aborted,
        )
