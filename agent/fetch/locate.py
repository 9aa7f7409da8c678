"""Which extents hold what a reader asks for: from the index, else from the primary in one question.

Place: between the plan of a fetch and its reads.
Invariant: OFFSET_OUT_OF_RANGE is said only after the primary said so, because the index may lag and a
rewound consumer would read everything twice. All partitions that need the primary share one call.
If the process dies here clients repeat their fetch.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from headrace.agent.fetch.index import TailIndex
from headrace.agent.fetch.lookup import Lookup, LookupStatus
from headrace.agent.fetch.metrics import FetchMetrics
from headrace.metastore.api.read import ExtentQuery, PartitionExtents, ReadApi
from headrace.storage.errors import HeadraceError

log = logging.getLogger(__name__)


class Locator:
    """Answers ExtentQueries; as much as it can without the metastore."""

    def __init__(self, index: TailIndex, metastore: ReadApi, metrics: FetchMetrics) -> None:
        self._index = index
        self._metastore = metastore
        self._metrics = metrics

    async def locate(self, queries: Sequence[ExtentQuery]) -> list[Lookup]:
        """One answer per query, in order. Does not give way to other tasks when the index knows everything."""
        answers: list[Lookup | None] = []
        unknown = []
        for query in queries:
            found = self._index.look(*query)
            answers.append(found)
            if found is None:
                unknown.append(query)
        if not unknown:
            return [answer for answer in answers if answer is not None]
        asked = iter(await self.locate_at_primary(unknown))
        return [next(asked) if answer is None else answer for answer in answers]

    async def locate_at_primary(self, queries: Sequence[ExtentQuery]) -> list[Lookup]:
        """The same, whatever the index says."""
        self._metrics.primary_queries.inc()
        generation = self._index.generation
        try:
            answers = await self._metastore.find_extents(queries)
        except HeadraceError as error:
            log.warning("extents not found: partitions=%d error=%s", len(queries), error)
            return [Lookup(LookupStatus.UNAVAILABLE)] * len(queries)
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
        recent = bool(extents) and extents[-1].last_offset + 1 >= answer.high_watermark
        return Lookup(LookupStatus.FOUND, answer.log_start_offset, high_watermark, extents, recent)
