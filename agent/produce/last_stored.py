"""The way by which the last stored batch of each producer came: its connection, and which agents there were then.

Place: filled and read by acknowledge; receive gives each request its route.
If an earlier batch came by the same route, a batch that is out of order has a gap before it for good: its client sends
in order on a connection, and had no reason to send through another agent. Otherwise, what is missing may be on its way
through another agent (refused_sequences.py).
Invariant: a route that is not known, or forgotten, only lets an answer be retriable. At most twice STREAMS_MAX streams
are remembered, those with the newest batches.
"""

from __future__ import annotations

from headrace.agent.produce.batches import Stream
from headrace.agent.produce.pending import Route
from headrace.metastore.log.image import MetadataImage

STREAMS_MAX = 8_192
STREAM_BYTES = 256
"""One stream in a dict; its route is shared with its request."""


class LastStored:
    """Two generations of streams: when the newer one is full, it becomes the older one, which is forgotten."""

    def __init__(self, streams_max: int = STREAMS_MAX) -> None:
        self._streams_max = streams_max
        self._newer: dict[Stream, Route] = {}
        self._older: dict[Stream, Route] = {}

    @property
    def held_bytes(self) -> int:
        """The memory that the streams take."""
        return STREAM_BYTES * (len(self._newer) + len(self._older))

    def note(self, stream: Stream, route: Route) -> None:
        """A batch of the stream is stored, and came by this route."""
        if len(self._newer) >= self._streams_max and stream not in self._newer:
            self._older, self._newer = self._newer, {}
        self._newer[stream] = route

    def came_by(self, stream: Stream, route: Route) -> bool:
        """Return whether the last stored batch of the stream came by this route."""
        return (self._newer.get(stream) or self._older.get(stream)) == route


class AgentChanges:
    """Counts how often the agents that clients are sent to have changed, as far as requests saw it."""

    def __init__(self) -> None:
        self._count = 0
        self._image: MetadataImage | None = None
        self._agents: frozenset[tuple[int, int]] = frozenset()

    def count(self, image: MetadataImage) -> int:
        """Return the count at this image."""
        if image is not self._image:
            self._image = image
            agents = frozenset((agent.node_id, agent.broker_epoch) for agent in image.agents.values() if agent.live)
            if agents != self._agents:
                self._agents = agents
                self._count += 1
        return self._count
