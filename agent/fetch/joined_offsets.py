"""Questions for offsets that arrive together: one call to the primary for all of them.

Place: between ListOffsets and the metastore. A client that starts sends one request for each of its partitions, all at
once.
Invariant: the call begins after the last of its questions was asked, so each answer is as new as that of a single call.
Questions do not wait for the call of earlier ones, which may have to search.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from headrace.metastore.api.read import OffsetAnswer, OffsetQuery, ReadApi

_Asked = list[tuple[Sequence[OffsetQuery], asyncio.Future[list[OffsetAnswer]]]]


class JoinedOffsets:
    """For one event loop."""

    def __init__(self, metastore: ReadApi) -> None:
        self._metastore = metastore
        self._asked: _Asked = []
        self._calls: set[asyncio.Task[None]] = set()

    async def list_offsets(self, queries: Sequence[OffsetQuery]) -> list[OffsetAnswer]:
        """One answer per query, in order; what the metastore raises."""
        answer: asyncio.Future[list[OffsetAnswer]] = asyncio.get_running_loop().create_future()
        if not self._asked:  # the call begins in the loop's next turn, with all that are asked in this one
            call = asyncio.create_task(self._call())
            self._calls.add(call)
            call.add_done_callback(self._calls.discard)
        self._asked.append((queries, answer))
        return await answer

    async def _call(self) -> None:
        asked, self._asked = self._asked, []
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
