"""Questions for offsets that arrive together: one call to the primary for all of them.

Place: between ListOffsets and the metastore. A client that starts sends one request for each of its partitions, all at
once. A request that needs a search has a separate call.
Invariant: the call begins after the last of its questions was asked, so each answer is as new as that of a single call.
Questions do not wait for the call of earlier ones, and a call has QUERIES_MAX queries at most: a request with more is
alone in its call.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from headrace.metastore.api.read import IndexApi, OffsetAnswer, OffsetQuery

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
