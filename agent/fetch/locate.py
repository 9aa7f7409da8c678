"""Which extents hold what a reader asks for: from the index, else from the primary in one question.

Place: between the plan of a fetch and its reads.
Invariant: OFFSET_OUT_OF_RANGE is said only after the primary said so, because the index may lag and a
rewound consumer would read everything twice. All partitions that need the primary share one call.
If the process dies here clients repeat their fetch.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Sequence
from typing import NamedTuple

from headrace.agent.fetch.index import Sight, TailIndex
from headrace.agent.fetch.metrics import FetchMetrics
from headrace.metastore.api import ReadApi
from headrace.metastore.values import Extent, ExtentQuery, PartitionExtents
from headrace.storage.errors import HeadraceError

log = logging.getLogger(__name__)


class Place(enum.Enum):
    """How a partition's look-up ended."""

    FOUND = enum.auto()
    OUT_OF_RANGE = enum.auto()
    GONE = enum.auto()
    """Deleted: no such partition any more."""
    UNAVAILABLE = enum.auto()
    """The metastore had to be asked and did not answer."""


class Located(NamedTuple):
    """Answer to one ExtentQuery. Offsets are -1 when not known."""

    place: Place
    log_start_offset: int = -1
    high_watermark: int = -1
    extents: Sequence[Extent] = ()
    recent: bool = False
    """These extents reach the high watermark or come from the index: other readers will want them too."""


class Locator:
    """Answers ExtentQueries; as much as it can without the metastore."""

    def __init__(self, index: TailIndex, metastore: ReadApi, metrics: FetchMetrics) -> None:
        self._index = index
        self._metastore = metastore
        self._metrics = metrics

    async def locate(self, queries: Sequence[ExtentQuery]) -> list[Located]:
        """One answer per query, in order. Does not give way to other tasks when the index knows everything."""
        answers: list[Located | None] = []
        unknown = []
        for query in queries:
            sight = self._index.look(*query)
            answers.append(_from_index(sight) if sight is not None else None)
            if sight is None:
                unknown.append(query)
        if not unknown:
            return [answer for answer in answers if answer is not None]
        asked = iter(await self.locate_at_primary(unknown))
        return [next(asked) if answer is None else answer for answer in answers]

    async def locate_at_primary(self, queries: Sequence[ExtentQuery]) -> list[Located]:
        """The same, whatever the index says."""
        self._metrics.primary_queries.inc()
        generation = self._index.generation
        try:
            answers = await self._metastore.find_extents(queries)
        except HeadraceError as error:
            log.warning("extents not found: partitions=%d error=%s", len(queries), error)
            return [Located(Place.UNAVAILABLE)] * len(queries)
        for answer in answers:
            self._index.observe(answer, generation)
        return [self._judge(query, answer) for query, answer in zip(queries, answers, strict=True)]

    def _judge(self, query: ExtentQuery, answer: PartitionExtents) -> Located:
        if not answer.known:
            return Located(Place.GONE)
        # The feed may have brought more while the primary answered.
        high_watermark = max(answer.high_watermark, self._index.high_watermark(query.partition_key))
        if not answer.log_start_offset <= query.offset <= high_watermark:
            return Located(Place.OUT_OF_RANGE, answer.log_start_offset, high_watermark)
        extents = answer.extents
        if not extents and query.offset < high_watermark:
            sight = self._index.look(*query)
            if sight is not None:
                return _from_index(sight)
        recent = bool(extents) and extents[-1].last_offset + 1 >= answer.high_watermark
        return Located(Place.FOUND, answer.log_start_offset, high_watermark, extents, recent)


def _from_index(sight: Sight) -> Located:
    return Located(Place.FOUND, sight.log_start_offset, sight.high_watermark, sight.extents, recent=True)
