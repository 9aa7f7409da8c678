"""One Produce request on its way: its reply, filled in batch by batch, and who waits for it.

Place: made by receive, carried by every batch of the request, completed by acknowledge.
Invariant: a batch that nobody judged says REQUEST_TIMED_OUT, so whatever goes wrong, what a client
reads is never more than what is known. One future per request, none per batch.
If the process dies here the client sees its connection close, and repeats the request.
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from kio.schema.errors import ErrorCode

from agent.listener.request import CloseConnection
from agent.protocol.errors import file_error
from agent.protocol.produce_codec import ProducePartitionReply, ProduceReply, ProduceRequest, refuse
from metastore.values import FileStatus

_NAMES = {int(code): code.name for code in ErrorCode}


class Refusal(NamedTuple):
    """A Kafka error code and, for clients from v8 on, the reason in words."""

    code: int
    message: str

    def write_to(self, reply: ProducePartitionReply) -> None:
        """Answer one batch with it."""
        reply.error_code = self.code
        reply.error_message = self.message

    @property
    def name(self) -> str:
        """The code's Kafka name; its number for a code that Kafka does not have."""
        return _NAMES.get(self.code, str(self.code))


def not_stored(reason: str) -> Refusal:
    """What answers batches that certainly are not stored and may be sent again."""
    return Refusal(file_error(FileStatus.CONDEMNED), f"not stored: {reason}")


class PendingRequest:
    """`deadline` and `appended_at` on Clock.monotonic(), in seconds."""

    __slots__ = ("_answered", "_is_aborted", "_unjudged", "appended_at", "by_id", "deadline", "reply")

    def __init__(self, produce: ProduceRequest, *, by_id: bool, appended_at: float, deadline: float) -> None:
        self.reply = refuse(produce, ErrorCode.request_timed_out)
        self.by_id = by_id
        """Whether the client names topics by id (v13+), so that errors speak of ids too."""
        self.appended_at = appended_at
        self.deadline = deadline
        self._answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._is_aborted = False
        self._unjudged = sum(len(topic.partitions) for topic in produce.topics)
        if not self._unjudged:
            self.answer()

    def judged(self) -> None:
        """One of the batches has its final answer."""
        self._unjudged -= 1
        if not self._unjudged:
            self.answer()

    def answer(self) -> None:
        """Let the client have the reply as it stands."""
        if not self._answered.done():
            self._answered.set_result(None)

    def abort(self) -> None:
        """Nobody will work on it any more: the client learns nothing but that its connection ends."""
        if not self.is_answered:
            self._is_aborted = True
            self.answer()

    @property
    def is_answered(self) -> bool:
        """Nobody waits for it any more."""
        return self._answered.done()

    async def wait(self) -> ProduceReply:
        """The reply, once every batch is judged or the deadline has passed; CloseConnection after `abort`.

        Who stops waiting, because the client is gone, does not take its batches back.
        """
        await self._answered
        if self._is_aborted:
            raise CloseConnection("produce request abandoned: its outcome is unknown")
        return self.reply
