"""Answers of Metadata that many clients share: encoded once, or computed once for all that wait for the same.

Place: under metadata.py, which computes them.
Definitions: a request *has the turn* while its answer is computed; requests with the same key that arrive before
that wait for its answer (`Turn`), those that arrive later wait for the next one. So with N clients that ask for the
same, also while the image changes all the time, at most two answers are computed: one for those that came before the
computation began, one for those that came during it.
Invariant: an answer is given only to a request that arrived while its image, or an earlier one, was the newest.
Images are numbered in the order in which this agent had them; a log that was restored has smaller offsets, and a
larger number here. Answers of earlier images are forgotten when the first of a later one comes, and limited in bytes
and number. Long answers are computed one at a time. Who waits learns of the end in any case, also if the request
that had the turn failed or was cancelled; then one of them has the next turn.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import NamedTuple

from headrace.agent.access.authorization.access import Access
from headrace.agent.limits.client_memory import ClientMemory
from headrace.config.memory_budget import REMEMBERED_BYTES
from headrace.metastore.log.image import AgentImage, MetadataImage
from headrace.protocol.request import Request, Response

CACHED_ANSWERS_MAX = 64
CACHED_BODY_BYTES_MAX = 65_536
_ANSWERS_BYTES = REMEMBERED_BYTES["metadata_answers"]

AnswerKey = tuple[int, str | None, str, bytes, Access]


def answer_key(request: Request, zone: str | None, access: Access) -> AnswerKey | None:
    """Everything except the image that an answer depends on; None if the request is too long to cache."""
    if len(request.body) > CACHED_BODY_BYTES_MAX:
        return None
    return request.api_version, zone, request.connection.listener, bytes(request.body), access


class EncodedAnswer(NamedTuple):
    """An answer, and the image that it shows."""

    number: int
    """The image's number."""
    image: MetadataImage
    response: Response
    is_whole: bool = True
    """Whether all of its topics are described: then other requests can have it, too."""


class EncodedAnswers:
    """Those of one agent."""

    def __init__(self) -> None:
        self._newest: MetadataImage | None = None
        self._number = 0
        self._kept_number = 0
        self._image = MetadataImage()
        """The image of the answers that are kept."""
        self._kept: ClientMemory[AnswerKey, Response] = ClientMemory(
            _ANSWERS_BYTES, _answer_bytes, largest_bytes=_ANSWERS_BYTES, count_max=CACHED_ANSWERS_MAX
        )

    @property
    def in_use_bytes(self) -> int:
        """What is remembered of answers."""
        return self._kept.in_use_bytes

    def number(self, newest: MetadataImage) -> int:
        """Return the number of the newest image."""
        if newest is not self._newest:
            self._newest = newest
            self._number += 1
        return self._number

    def get(self, key: AnswerKey | None, number: int) -> EncodedAnswer | None:
        """Return the answer from the image of this number or of a later one, if there is one."""
        response = self._kept.get(key) if key is not None and self._kept_number >= number else None
        return None if response is None else EncodedAnswer(self._kept_number, self._image, response)

    def keep(self, key: AnswerKey, answer: EncodedAnswer) -> None:
        """Remember the answer, unless there are answers from a later image."""
        if answer.number < self._kept_number:
            return
        if answer.number > self._kept_number:
            self._kept_number, self._image = answer.number, answer.image
            self._kept.clear()
        self._kept.put(key, answer.response)


class ShownAgents:
    """The first part of an answer, with the list of agents, for each version and listener: 1,000 agents take 1 ms."""

    def __init__(self) -> None:
        self._agents: Mapping[int, AgentImage] | None = None
        self._encoded: dict[tuple[int, str], bytes] = {}

    def encoded(self, image: MetadataImage, version: int, listener: str, encode: Callable[[], bytes]) -> bytes:
        """Return what `encode` returned for these agents. Listeners and versions are few."""
        if image.agents is not self._agents:
            self._agents, self._encoded = image.agents, {}
        place = version, listener
        if place not in self._encoded:
            self._encoded[place] = encode()
        return self._encoded[place]


def _answer_bytes(key: AnswerKey, response: Response) -> int:
    assert response.buffers is not None
    return len(key[3]) + sum(map(len, response.buffers))


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
