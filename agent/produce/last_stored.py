"""The origin from which a producer's batches of a partition reach this agent, and since when.

Place: filled and read by acknowledge; receive gives each request its origin.
A client sends the batches of a partition in order over one connection, until the leader moves or the connection ends.
So if this agent stored the producer's last batch from the same origin, and the first one from it so long ago that
what was sent before it has its answer, a batch that is out of order follows a gap that stays. Otherwise the missing
one may be on its way through another agent (refused_sequences.py). If the producer id was given out over a connection,
and the producer's first batch came over it too, nothing was sent elsewhere.
Invariant: an origin that is not known, or forgotten, only makes an answer retriable. At most twice STREAMS_MAX streams
are remembered, those with the newest batches.
"""

from __future__ import annotations

import math

from headrace.agent.produce.batches import PlacedBatch, Stream
from headrace.agent.produce.pending import Origin
from headrace.agent.produce.refused_sequences import ELSEWHERE_SECONDS
from headrace.metastore.log.image import MetadataImage
from headrace.protocol.request import ClientConnection
from headrace.storage.clock import Clock

STREAMS_MAX = 8_192
STREAM_BYTES = 320
"""One stream in a dict with its time; its origin is shared with its request."""


class LastStored:
    """Two generations of streams: when the newer one is full, it becomes the older one, which is forgotten."""

    def __init__(self, clock: Clock, streams_max: int = STREAMS_MAX) -> None:
        self._clock = clock
        self._streams_max = streams_max
        self._newer: dict[Stream, tuple[Origin, float]] = {}
        self._older: dict[Stream, tuple[Origin, float]] = {}

    @property
    def held_bytes(self) -> int:
        """The memory that the streams take."""
        return STREAM_BYTES * (len(self._newer) + len(self._older))

    def note(self, entry: PlacedBatch, *, is_appended: bool) -> None:
        """A batch of an idempotent producer is stored: appended, or a duplicate."""
        stream, origin = entry.stream, entry.request.origin
        known = self._newer.get(stream)
        if known is not None and (known[0] is origin or known[0] == origin):
            return
        if known is None:
            known = self._older.get(stream)
            if len(self._newer) >= self._streams_max:
                self._older, self._newer = self._newer, {}
        if known is None or known[0] != origin:
            batch = entry.batch
            is_first = is_appended and not batch.base_sequence
            is_first = is_first and origin.issued == (batch.producer_id, batch.producer_epoch)
            known = origin, -math.inf if is_first else self._clock.monotonic()
        self._newer[stream] = known

    def is_settled(self, entry: PlacedBatch) -> bool:
        """Return whether the stream's stored batches have come from the origin of this one for ELSEWHERE_SECONDS."""
        known = self._newer.get(entry.stream) or self._older.get(entry.stream)
        return (
            known is not None
            and known[0] == entry.request.origin
            and self._clock.monotonic() - known[1] >= ELSEWHERE_SECONDS
        )


class RequestOrigins:
    """Makes the origins of requests. Counts how often the agents changed that clients are sent to."""

    def __init__(self) -> None:
        self._count = 0
        self._image: MetadataImage | None = None
        self._agents: frozenset[tuple[int, int]] = frozenset()
        self._changed_at = -1

    def origin(self, connection: ClientConnection, image: MetadataImage) -> Origin:
        """Return the origin of a request that is judged with this image."""
        if image is not self._image:
            self.see(image)
        origin: Origin | None = connection.origin
        if origin is None or origin.agent_changes != self._count:
            given = connection.given
            issued = given.producer if given is not None and given.offset >= self._changed_at else None
            origin = connection.origin = Origin(connection.connection_id, self._count, issued)
        return origin

    def see(self, image: MetadataImage) -> None:
        """Look whether the agents are others than in the image before."""
        self._image = image
        agents = frozenset((agent.node_id, agent.broker_epoch) for agent in image.agents.values() if agent.live)
        if agents != self._agents:
            self._agents, self._changed_at = agents, image.offset
            self._count += 1
