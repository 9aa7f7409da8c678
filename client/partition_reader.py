"""One partition that the member owns: its position, and the records that were fetched and not delivered.

Place: filled by fetching.py, emptied by consumer.py.
Invariant: `position` is the offset after the last record that the application was given or that is hidden from it; at
the next `getmany` all of these are delivered. What is fetched continues at `next_fetch`.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from headrace.client.offsets import TopicPartition
from headrace.metastore.partitions.topic_partitions import CreatedFrom
from headrace.metastore.partitions.waiting import PositionReport
from headrace.storage.records.codec import Record

BUFFERED_RECORDS = 2_000


@dataclass(slots=True, eq=False)
class PartitionReader:
    """`has_begun`: it may be fetched; until then `position` is where it will begin. `waits_for` is what it was found
    to wait for when it began."""

    partition: TopicPartition
    position: int
    next_fetch: int
    has_begun: bool = False
    waits_for: CreatedFrom | None = None
    high_watermark: int = -1
    leader_epoch: int = -1
    """The largest of the delivered records'."""
    crossed: frozenset[int] = frozenset()
    """Marked partitions with keys that may come from here since onPartitionKeyAssigned."""
    last_report: PositionReport | None = None
    """The last report to this coordinator, in this generation."""
    buffer: deque[tuple[Record, int]] = field(default_factory=deque)
    """Records with their leader epochs."""

    @property
    def wants_records(self) -> bool:
        return self.has_begun and len(self.buffer) < BUFFERED_RECORDS

    @property
    def next_offset(self) -> int:
        """Offset of the next record, as far as it is known."""
        return self.buffer[0][0].offset if self.buffer else max(self.position, self.next_fetch)

    @property
    def is_at_end(self) -> bool:
        """The position is the high watermark of the last fetch."""
        return self.position == self.high_watermark

    def deliver(self) -> Record:
        """The next record; the position moves past it, and past what follows without records."""
        record, self.leader_epoch = self.buffer.popleft()
        self.position = self.next_offset if self.buffer else self.next_fetch
        return record

    def report(self) -> PositionReport:
        """Return the report as of now."""
        return PositionReport(self.position, self.leader_epoch)

    def move(self, position: int) -> None:
        """Continue there."""
        self.position = self.next_fetch = position
        self.buffer.clear()
