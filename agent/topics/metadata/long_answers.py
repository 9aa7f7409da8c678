"""Long answers of Metadata: computed one at a time, and each once for all clients that wait for the same one.

Place: under metadata.py, which computes them.
Definitions: a request *has the turn* while its answer is computed; requests with the same key that arrive before that
wait for its answer (`Turn`), those that arrive later wait for the next one. So with N clients that ask for the same,
also while the image changes all the time, at most two answers are computed: one for those that came before the
computation began, one for those that came during it.
Invariant: who waits learns of the end in any case, also if the request that had the turn failed or was cancelled; then
one of them has the next turn.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from headrace.agent.topics.metadata.encoded_answers import AnswerKey, EncodedAnswer


class Turn:
    """One answer, for the requests that wait for it."""

    def __init__(self) -> None:
        self.answer: EncodedAnswer | None = None
        """Set by the request that has the turn; None if others cannot have it."""
        self._is_over = asyncio.Event()

    async def wait(self) -> EncodedAnswer | None:
        """Wait until the turn is over. Return its answer."""
        await self._is_over.wait()
        return self.answer

    def end(self) -> None:
        """Wake the requests that wait."""
        self._is_over.set()


class LongAnswers:
    """Those of one agent."""

    def __init__(self) -> None:
        self._one = asyncio.Lock()
        self._next: dict[AnswerKey, Turn] = {}
        """The turns that have not begun."""

    def joined(self, key: AnswerKey | None) -> Turn | None:
        """Return the turn of a request with this key, if one waits for it. No other request has an answer for None."""
        return None if key is None else self._next.get(key)

    @asynccontextmanager
    async def turn(self, key: AnswerKey | None) -> AsyncIterator[Turn]:
        """Wait for the turn, and have it during the block. Call it only if no other one can be joined."""
        own = Turn()
        if key is not None:
            self._next[key] = own
        try:
            async with self._one:
                self._begin(key, own)
                yield own
        finally:
            self._begin(key, own)  # it was cancelled while it waited
            own.end()

    def _begin(self, key: AnswerKey | None, own: Turn) -> None:
        if key is not None and self._next.get(key) is own:
            del self._next[key]
