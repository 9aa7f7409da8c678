"""What links ask a source cluster, and the answers, in forms that were checked.

Place: between the jobs of links (copying.py, discovery.py) and kafka_source.py, which asks a Kafka cluster.
Invariant: a source is not trusted: every answer has a bounded size, and offsets, counts and texts are checked before
they are returned. What a batch claims is checked where it is copied (chunks.py).
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from kio.schema.errors import ErrorCode

from headrace.compactor.links.chunks import OFFSET_MAX
from headrace.storage.errors import CorruptError

TopicIndex = tuple[str, int]
"""A topic's name and a partition's index."""
NO_LEADER = -1
TEXT_CHARACTERS_MAX = 249
"""The most characters of a topic's name, as in Kafka."""
PARTITIONS_MAX = 10_000
"""Partitions of one topic that a link takes."""
ABORTED_MAX = 1_000_000
EPOCH_MAX = 1 << 31


class SourcePartition(NamedTuple):
    """`leader`: a node id; NO_LEADER: none now."""

    leader: int
    leader_epoch: int


class SourceTopic(NamedTuple):
    """`topic_id`: of the source; made of cluster and name where the source has none."""

    name: str
    topic_id: uuid.UUID
    partitions: tuple[SourcePartition, ...]
    """One for each index."""
    problem: str = ""
    """Why it cannot be read; empty: it can."""


class SourceMetadata(NamedTuple):
    """What any broker says of the cluster."""

    cluster_id: str
    topics: Mapping[str, SourceTopic]


class SourceBounds(NamedTuple):
    """The ends of a partition at the source; `error` not none: the leader did not say."""

    start: int = -1
    """The log start."""
    end: int = -1
    """The high watermark."""
    stable: int = -1
    """The last stable offset."""
    error: ErrorCode = ErrorCode.none

    def check(self) -> None:
        """CorruptError unless start <= stable <= end."""
        if not 0 <= self.start <= self.stable <= self.end < OFFSET_MAX:
            raise CorruptError(f"offsets contradict: start={self.start} stable={self.stable} end={self.end}")


class SourcePosition(NamedTuple):
    """The place from which a partition is fetched. `last_epoch`: of the record before the offset; -1: not known."""

    topic: str
    topic_id: uuid.UUID
    partition: int
    offset: int
    leader_epoch: int
    last_epoch: int
    bytes_max: int


class Fetched(NamedTuple):
    """A partition's part of an answer. `records`: batches, the last one perhaps cut; writable, the caller's alone."""

    topic: str
    partition: int
    error: ErrorCode
    bounds: SourceBounds
    aborted: Sequence[tuple[int, int]]
    """(producer id, first offset) of each aborted transaction with batches in it."""
    records: memoryview
    diverging: tuple[int, int] | None = None
    """(epoch, end offset): where the source's log is another one than that of the position."""


class FetchAnswer(NamedTuple):
    """`throttle_s`: how long the source's quota wants the next request to wait, in seconds."""

    partitions: Sequence[Fetched]
    throttle_s: float = 0.0


class SourceProducer(NamedTuple):
    """A producer's state at the source. `open_since`: the first offset of its open transaction; -1: it has none."""

    producer_id: int
    epoch: int
    last_sequence: int
    timestamp: int
    open_since: int


class SourceGroup(NamedTuple):
    """A group, with Kafka's names of its type and state. `coordinator`: the node that listed it."""

    group_id: str
    kind: str
    protocol_type: str
    state: str
    coordinator: int


class CommittedAt(NamedTuple):
    """What a group committed at the source in a partition."""

    offset: int
    leader_epoch: int
    metadata: str


GroupOffsets = Mapping[TopicIndex, CommittedAt]


class Source(Protocol):
    """A source cluster. UnavailableError if it cannot be reached or does not answer in time, CorruptError for an
    answer that cannot be, InvalidError if it refuses.
    """

    async def metadata(self, names: Sequence[str] | None = None) -> SourceMetadata:
        """The cluster, and these topics of it; all if None."""

    async def configs(self, names: Sequence[str]) -> dict[str, dict[str, str]]:
        """Return what the topics were given, by topic and name. Those that may not be read are missing."""

    async def bounds(self, leader: int, partitions: Mapping[TopicIndex, int]) -> dict[TopicIndex, SourceBounds]:
        """Return the bounds of partitions of one leader; `partitions` has their leader epochs."""

    async def fetch(self, leader: int, positions: Sequence[SourcePosition], bytes_max: int) -> FetchAnswer:
        """Read committed batches of partitions of one leader. Waits a moment if there is nothing new."""

    async def epoch_ends(self, leader: int, epochs: Mapping[TopicIndex, int]) -> dict[TopicIndex, int]:
        """The end offset of an epoch of each partition; -1: not known."""

    async def producers(self, leader: int, partitions: Iterable[TopicIndex]) -> dict[TopicIndex, list[SourceProducer]]:
        """The producers that partitions know; a partition of which the leader does not say is missing."""

    async def groups(self) -> list[SourceGroup]:
        """All groups that the login may describe, of every broker."""

    async def group_offsets(self, coordinator: int, group_ids: Sequence[str]) -> dict[str, GroupOffsets]:
        """Return what groups of one coordinator have committed. A group of which it does not say is missing; so is a
        partition in which an open transaction is about to commit another offset.
        """

    async def deny_writes(self, topic: str) -> None:
        """Deny all users to write to the topic. Idempotent."""

    async def close(self) -> None:
        """End all connections."""
