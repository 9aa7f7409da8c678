"""The connection over which a producer's batches of a partition reach this agent, and since when.

Place: filled and read by acknowledge; receive gives each request its origin.
A client sends the batches of a partition in order over one connection, until the leader moves or the connection ends.
So a batch that is out of order follows a gap that stays, if all that is stored of the producer came through this agent
over the connection of this batch, the first of it so long ago that what was sent before it has its answer, and no
leader of the partition moved since. Otherwise the missing batch may be on its way through another agent
(refused_sequences.py). If no other agent is registered, the producer id was given out over a connection, and the
producer's first batch came over it too, nothing was sent elsewhere. With other agents that is no proof: one that lags
behind the metadata log may have told the client of an earlier leader meanwhile.
What another agent stored shows in the commit's answer, by the producer's next sequence. What is on its way through
another agent shows nowhere, but the client sent it there because a leader moved: image.py says when any did, for any
zone. The answer's end of the metadata log shows an image that may lack a move.
Invariant: an origin that is not known, or forgotten, only makes an answer retriable. At most twice STREAMS_MAX streams
are remembered, those with the newest batches.
"""

from __future__ import annotations

import math

from headrace.agent.cluster.view import ClusterView
from headrace.agent.produce.refused_sequences import ELSEWHERE_SECONDS, is_before, sequence_after
from headrace.agent.produce.requests import Origin, PlacedBatch, Stream
from headrace.metastore.api.commit import NO_ALIAS, BatchAnswer, StagedBatch
from headrace.metastore.keys import partition_key, split_partition_key
from headrace.metastore.log.image import MetadataImage
from headrace.protocol.request import ClientConnection
from headrace.storage.clock import Clock

STREAMS_MAX = 8_192
STREAM_BYTES = 384
"""One stream in a dict."""


class _Known:
    """What is stored of one producer in one partition, as far as it came through this agent."""

    __slots__ = ("connection_id", "epoch", "moved_at", "next_sequence", "since")

    def __init__(self, connection_id: int, epoch: int, moved_at: int, next_sequence: int, since: float) -> None:
        self.connection_id = connection_id
        self.epoch = epoch
        self.moved_at = moved_at
        """The last move of a leader before the newest batch."""
        self.next_sequence = next_sequence
        self.since = since
        """When the first batch was stored from which on all came over this connection, without a move."""


class LastStored:
    """Two generations of streams: when the newer one is full, it becomes the older one, which is forgotten."""

    def __init__(self, clock: Clock, view: ClusterView, streams_max: int = STREAMS_MAX) -> None:
        self._clock = clock
        self._view = view
        self._streams_max = streams_max
        self._newer: dict[Stream, _Known] = {}
        self._older: dict[Stream, _Known] = {}

    @property
    def held_bytes(self) -> int:
        """The memory that the streams take."""
        return STREAM_BYTES * (len(self._newer) + len(self._older))

    def note(self, entry: PlacedBatch, *, is_appended: bool) -> None:
        """Note a batch of an idempotent producer that is stored: appended, or a duplicate."""
        batch, key = entry.batch, _key(entry.batch)
        known = self._newer.get(key)
        if known is None:
            known = self._older.get(key)
            if len(self._newer) >= self._streams_max:
                self._older, self._newer = self._newer, {}
            if known is not None:
                self._newer[key] = known
        origin, moved_at = entry.request.origin, _moved_at(self._view.image, batch)
        end = sequence_after(batch.base_sequence, batch.record_count)
        if known is None:
            since = self._since(batch, origin, moved_at, is_appended=is_appended)
            self._newer[key] = _Known(origin.connection_id, batch.producer_epoch, moved_at, end, since)
            return
        if batch.producer_epoch < known.epoch:
            return
        if (
            known.connection_id != origin.connection_id
            or known.moved_at != moved_at
            or not _all_came_here(known, batch, end, is_appended=is_appended)
        ):
            known.since = self._since(batch, origin, moved_at, is_appended=is_appended)
        if is_appended or batch.producer_epoch > known.epoch or is_before(known.next_sequence, end):
            known.next_sequence = end
        known.connection_id, known.epoch, known.moved_at = origin.connection_id, batch.producer_epoch, moved_at

    def is_settled(self, entry: PlacedBatch, answer: BatchAnswer) -> bool:
        """Return whether the batch that `answer` calls out of order follows a gap that stays."""
        key = _key(entry.batch)
        known = self._newer.get(key) or self._older.get(key)
        image = self._view.image
        return (
            known is not None
            and known.connection_id == entry.request.origin.connection_id
            and self._clock.monotonic() - known.since >= ELSEWHERE_SECONDS
            and known.moved_at == _moved_at(image, entry.batch)
            and 0 <= answer.metadata_offset <= image.offset
            and _stored_all(known, entry.batch, answer.next_sequence)
        )

    def _since(self, batch: StagedBatch, origin: Origin, moved_at: int, *, is_appended: bool) -> float:
        """Return from when on an origin counts that begins with this stored batch."""
        given = origin.given
        if given is None or batch.base_sequence or not is_appended or not self._is_alone():
            return self._clock.monotonic()
        is_its_own = given.producer == (batch.producer_id, batch.producer_epoch)
        return -math.inf if is_its_own and given.offset >= moved_at else self._clock.monotonic()

    def _is_alone(self) -> bool:
        return self._view.image.agents.keys() <= {self._view.node_id}


def origin_of(connection: ClientConnection) -> Origin:
    """Return the origin of a request that comes over the connection now."""
    origin: Origin | None = connection.origin
    if origin is None:
        origin = connection.origin = Origin(connection.connection_id, connection.given)
    return origin


def _key(batch: StagedBatch) -> Stream:
    """Return the producer and the partition as its client numbers batches: an alias has separate sequences."""
    if batch.alias == NO_ALIAS:
        return batch.producer_id, batch.partition_key
    return batch.producer_id, partition_key(split_partition_key(batch.partition_key)[0], batch.alias)


def _moved_at(image: MetadataImage, batch: StagedBatch) -> int:
    topic = image.topics_by_number.get(split_partition_key(batch.partition_key)[0])
    return image.moved_at if topic is None else max(image.moved_at, topic.moved_at)


def _all_came_here(known: _Known, batch: StagedBatch, end: int, *, is_appended: bool) -> bool:
    """Return whether nothing was stored elsewhere between what is known and this batch, as far as it shows."""
    if not is_appended:
        return batch.producer_epoch == known.epoch and not is_before(known.next_sequence, end)
    return batch.base_sequence == (known.next_sequence if batch.producer_epoch == known.epoch else 0)


def _stored_all(known: _Known, batch: StagedBatch, next_sequence: int) -> bool:
    """Return whether the metastore has no more of the batch's epoch than what came here. It may have less, if it was
    replaced by a copy of an earlier state."""
    if next_sequence < 0 or batch.producer_epoch < known.epoch:
        return False
    if batch.producer_epoch > known.epoch:
        return not next_sequence
    return not is_before(known.next_sequence, next_sequence)
