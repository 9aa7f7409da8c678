"""What a worker knows of one linked partition while it copies it.

Place: held by copying.py for each partition of its share. Pure; times are the clock's monotonic seconds.
Invariant: `end` is where the chunks in memory end, `stored_end` what the metastore appended; both are the log end when
nothing is in memory. A problem is kept until the partition is copied again without one; the pause before the next
attempt doubles.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from headrace.compactor.links.chunks import Chunk
from headrace.compactor.links.producers import ProducerStates
from headrace.compactor.links.source import NO_LEADER, SourceBounds, SourcePosition, TopicIndex
from headrace.metastore.api.links import LinkedPartition, PartitionReport

PARTITION_BYTES = 1024 * 1024
"""What one partition may add to an answer, besides a first batch that is larger."""
PAUSE_SECONDS, PAUSE_SECONDS_MAX = 1.0, 60.0
OWN_PRODUCER = "a producer id of the source is one of this cluster's: the copy cannot take its records"
OWN_PRODUCER_PAUSE_SECONDS = 300.0
STALL_SECONDS = 60.0
"""After so long without progress a reason is looked for."""


@dataclass(slots=True)
class PartitionCopy:
    """One partition: its row, where the copy is, and where the source is."""

    row: LinkedPartition
    moved_at: float
    """The time when the copy last grew, or had nothing to copy."""
    end: int = 0
    stored_end: int = 0
    last_epoch: int = -1
    producers: ProducerStates = field(default_factory=ProducerStates)
    bounds: SourceBounds = field(default_factory=SourceBounds)
    leader: int = NO_LEADER
    leader_epoch: int = -1
    current_at: float = 0.0
    """The time when the copy last had all that the source had, as far as this worker knows."""
    problem: str = ""
    ready_end: int = -1
    """The end of source and copy at which all states of producers were added; -1: none."""
    lost: int = 0
    """Offsets that the source no longer had, since the last report."""
    bytes_max: int = PARTITION_BYTES
    is_recreated: bool = False
    """Whether the source has no such topic, or another one of its name."""
    needs_bounds: bool = False
    """Whether its offset was out of the source's range: the bounds say why."""
    fetched_at: float = 0.0
    next_attempt_at: float = 0.0
    _pause: float = PAUSE_SECONDS

    @classmethod
    def of(cls, row: LinkedPartition, now: float) -> PartitionCopy:
        """The state of a partition of which nothing is in memory."""
        copy = cls(row, now, current_at=now)
        copy.end = copy.stored_end = row.high_watermark
        copy.last_epoch, copy.problem = row.last_epoch, row.problem
        if row.problem == OWN_PRODUCER:
            copy.next_attempt_at = now + OWN_PRODUCER_PAUSE_SECONDS
        return copy

    @property
    def place(self) -> TopicIndex:
        """The partition's name at the source."""
        return self.row.name, self.row.partition_index

    @property
    def is_behind(self) -> bool:
        """Whether there is something stable to copy."""
        return self.bounds.stable > self.end

    def may_fetch(self, now: float) -> bool:
        """Return whether it can be fetched now."""
        return self.leader != NO_LEADER and not self.is_recreated and now >= self.next_attempt_at

    def position(self, room_bytes: int = 0) -> SourcePosition:
        """The place from which it is fetched: the log end, or the source's log start if that is above it.
        `room_bytes`: what it may add to the answer, if that is more than usual.
        """
        offset = max(self.end, self.bounds.start)
        last_epoch = self.last_epoch if offset == self.end else -1
        row, most = self.row, max(self.bytes_max, room_bytes)
        return SourcePosition(row.name, row.source_id, row.partition_index, offset, self.leader_epoch, last_epoch, most)

    def fail(self, problem: str, now: float) -> None:
        """Keep the reason why it is not copied, and wait before the next attempt."""
        self.problem, self.ready_end = problem, -1
        self.next_attempt_at = now + self._pause
        self._pause = min(2 * self._pause, PAUSE_SECONDS_MAX)

    def grow(self, chunk: Chunk, now: float) -> int:
        """Count a chunk that is in memory; how many offsets of it the source no longer had."""
        missing = max(min(self.bounds.start, chunk.next_offset) - chunk.base_offset, 0)
        lost = missing if chunk.base_offset else 0  # a copy begins at the source's log start: nothing was lost there
        self.end, self.last_epoch, self.producers = chunk.next_offset, chunk.last_epoch, chunk.producers
        self.bytes_max = PARTITION_BYTES
        self.sound(now)
        return lost

    def sound(self, now: float) -> None:
        """Count progress, or that there is nothing to copy: there is no problem."""
        self.moved_at = now
        self.problem, self._pause = "", PAUSE_SECONDS

    def hangs(self, problem: str) -> None:
        """Keep the reason why nothing comes; it is asked for as before."""
        self.problem, self.ready_end = problem, -1

    def is_stalled(self, now: float) -> bool:
        """Return whether a reason should be looked for: the source has more, and nothing comes."""
        return self.bounds.end > self.end and now - self.moved_at >= STALL_SECONDS and now >= self.next_attempt_at

    def report(self) -> PartitionReport:
        """Return what people, and the controller, hear of it."""
        start, end, stable, _ = self.bounds
        is_ready = not self.problem and self.stored_end == end == stable == self.ready_end
        return PartitionReport(self.row.partition_key, start, end, stable, is_ready, self.lost, self.problem)
