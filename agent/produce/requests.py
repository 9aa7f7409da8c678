"""One Produce request on its way: its reply, the clients that wait for it, each of its batches.

Place: PendingRequest is made by receive.py, carried by every batch of the request, completed by acknowledge.py. A
batch is an Arrival as it arrived, and a PlacedBatch once upload.py gave it a place in a segment file.
Invariant: a batch without an outcome says REQUEST_TIMED_OUT, so in every failure, what a client reads is never more
than what is known. One callback per request, none per batch; the request keeps no record bytes. A batch carries the
request and the reply that wait for it; it leaves the write path only with an answer.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import NamedTuple

from kio.schema.errors import ErrorCode

from headrace.agent.produce.refused_sequences import Numbered
from headrace.metastore.api.commit import NO_ALIAS, BatchTransaction, FileStatus, MovedKeys, StagedBatch
from headrace.metastore.keys import split_partition_key
from headrace.protocol.errors import file_error
from headrace.protocol.produce_codec import (
    FIRST_BY_ID,
    ProducePartitionReply,
    ProduceRequest,
    RecordError,
    encode_produce_response,
    refuse,
)
from headrace.protocol.request import CloseConnection, GivenProducer, Promise, Request, Response
from headrace.storage.records.header import BatchHeader

ALL_ACKS = -1
_NAMES = {int(code): code.name for code in ErrorCode}


class Refusal(NamedTuple):
    """A Kafka error code and, for clients from v8 on, the reason in words and the records that are the reason."""

    code: int
    message: str
    record_errors: tuple[RecordError, ...] = ()

    def write_to(self, reply: ProducePartitionReply) -> None:
        """Answer one batch with it."""
        reply.error_code = self.code
        reply.error_message = self.message
        reply.record_errors = self.record_errors

    @property
    def name(self) -> str:
        """The code's Kafka name; its number for a code that Kafka does not have."""
        return _NAMES.get(self.code, str(self.code))


def not_stored(reason: str) -> Refusal:
    """Return what answers batches that certainly are not stored and may be sent again."""
    return Refusal(file_error(FileStatus.CONDEMNED), f"not stored: {reason}")


class Origin(NamedTuple):
    """How a request came (last_stored.py)."""

    connection_id: int
    given: GivenProducer | None
    """What the connection's last InitProducerId gave out."""


NO_ORIGIN = Origin(-1, None)

LEADER_ONLY_TIMEOUT_MS = 30_000
"""How long a request with acks=0 or acks=1 waits. A client's timeout is how long a leader waits for its followers:
these clients do not ask for that, and one that sends its records again after a short time would write them twice."""


def deadline_of(request: Request, produce: ProduceRequest) -> float:
    """Return a time on Clock.monotonic(): by the client's timeout for all acknowledgements, else by a fixed one."""
    timeout_ms = max(produce.timeout_ms, 0) if produce.acks == ALL_ACKS else LEADER_ONLY_TIMEOUT_MS
    return request.received_at + timeout_ms / 1000


class PendingRequest(Promise):
    """`deadline` and `appended_at` on Clock.monotonic(), in seconds. Who stops waiting takes no batch back."""

    __slots__ = (
        "_correlation_id",
        "_is_aborted",
        "_unjudged",
        "appended_at",
        "before_answer",
        "deadline",
        "origin",
        "reply",
        "version",
        "wants_answer",
    )

    def __init__(
        self, produce: ProduceRequest, *, correlation_id: int, version: int, appended_at: float, deadline: float
    ) -> None:
        super().__init__()
        self.reply = refuse(produce, ErrorCode.request_timed_out)
        self.appended_at = appended_at
        self.deadline = deadline
        self.origin = NO_ORIGIN
        self._correlation_id = correlation_id
        self.version = version
        self.wants_answer = produce.acks != 0
        """Whether the client waits for a response (acks other than 0)."""
        self._is_aborted = False
        self.before_answer: Callable[[], None] | None = None
        """Called once, just before the answer is given."""
        self._unjudged = sum([len(topic.partitions) for topic in produce.topics])
        if not self._unjudged:
            self.answer()

    @property
    def by_id(self) -> bool:
        """Whether the client names topics by id, so that errors speak of ids too."""
        return self.version >= FIRST_BY_ID

    def answer(self) -> None:
        """The response is final. Calling it again does nothing."""
        if self.before_answer is not None:
            call, self.before_answer = self.before_answer, None
            call()
        super().answer()

    def judged(self) -> None:
        """Count one batch as answered; answer the request after the last one."""
        self._unjudged -= 1
        if not self._unjudged:
            self.answer()

    def refuse(self, produce: ProduceRequest, refusal: Refusal) -> None:
        """Answer all of it with one error."""
        self.reply = refuse(produce, refusal.code, refusal.message)
        self.answer()

    def abort(self) -> None:
        """Nobody will work on it any more: the client learns nothing but that its connection ends."""
        if not self.is_answered:
            self._is_aborted = True
            self.answer()

    def response(self) -> Response:
        """The reply: every batch is judged, or the deadline has passed. CloseConnection after `abort`.

        Nothing for acks=0, unless something failed: closing the connection is how Kafka tells such a client.
        """
        if self._is_aborted:
            raise CloseConnection("produce request abandoned: its outcome is unknown")
        if self.wants_answer:
            return Response(encode_produce_response(self._correlation_id, self.version, self.reply))
        failed = sum(1 for topic in self.reply.topics for partition in topic.partitions if partition.error_code)
        if failed:
            raise CloseConnection(f"produce with acks=0 failed: batches={failed}")
        return Response(None)


INT32_MAX = (1 << 31) - 1

Stream = tuple[int, int]
"""(owner, partition key): batches of one stream are committed in the order in which they came.

The owner is a producer id, or the complement of a connection id for batches without a producer.
"""


class Arrival(NamedTuple):
    """One batch that passed validation."""

    topic_id: uuid.UUID
    partition_index: int
    partition_key: int
    leader_epoch: int
    owner: int
    data: memoryview
    header: BatchHeader
    request: PendingRequest
    reply: ProducePartitionReply
    partition_count: int = -1
    """The count by which the client chose the partition; -1 if it sent none. The others are as in StagedBatch."""
    transaction: int = BatchTransaction.NO_TRANSACTION
    keys: int = MovedKeys.UNKNOWN
    alias: int = NO_ALIAS
    max_bytes: int = INT32_MAX
    """The largest batch that its topic accepted when it came: max.message.bytes."""

    @property
    def stream(self) -> Stream:
        """The stream that it keeps the order of."""
        return self.owner, self.partition_key

    @property
    def numbered(self) -> Numbered | None:
        """What identifies it among its producer's batches; None without a producer id."""
        header = self.header
        if header.producer_id < 0:
            return None
        place = split_partition_key(self.partition_key)[0], self.reply.index  # as the client names it, also an alias
        return Numbered(header.producer_id, header.producer_epoch, header.base_sequence, place)


class PlacedBatch(NamedTuple):
    """The same batch once its place in the file is known and its bytes are no longer needed.

    Merged batches are neighbours and share `batch`, which is then larger than each.
    """

    batch: StagedBatch
    records_before: int
    """Records of `batch` that come from earlier arrivals: 0 for the first, and for a batch that was not merged."""
    owner: int
    is_log_append_time: bool
    request: PendingRequest
    reply: ProducePartitionReply

    @property
    def stream(self) -> Stream:
        """The stream that it keeps the order of."""
        return self.owner, self.batch.partition_key

    @property
    def numbered(self) -> Numbered | None:
        """What identifies it among its producer's batches; None without a producer id."""
        batch = self.batch
        if batch.producer_id < 0:
            return None
        place = split_partition_key(batch.partition_key)[0], self.reply.index
        return Numbered(batch.producer_id, batch.producer_epoch, batch.base_sequence, place)
