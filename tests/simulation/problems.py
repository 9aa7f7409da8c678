"""The kinds of wrongness that the checker tells apart.

The first eight are the classes of Jepsen's Kafka workload, as far as there are no transactions; the
others are ours.
"""

from __future__ import annotations

import enum
from typing import NamedTuple


class Kind(enum.StrEnum):
    """What was violated."""

    LOST = "lost write"
    """Acknowledged, and not in the log."""
    DUPLICATE = "duplicate"
    """Sent once by an idempotent producer (or sent once at all), and twice in the log."""
    UNSEEN = "unseen"
    """What is in the log, and a reader cannot read it although everything is calm."""
    INCONSISTENT = "inconsistent offsets"
    """Two readers, or a reader and an acknowledgement, disagree about the batch at an offset."""
    SKIPPED = "skipping poll"
    """A poll does not begin where it was asked to, or leaves out offsets."""
    REWOUND = "non-monotonic poll"
    """A consumer gets the answer that its offset is out of range, or that the log ends before it."""
    DISORDER = "non-monotonic sends"
    """The log's order contradicts the producer's, or real time's."""
    PHANTOM = "refused write"
    """Answered "not stored", and in the log."""
    GAP = "gap in offsets"
    """Offsets are not contiguous."""
    WRONG_ANSWER = "wrong answer"
    """An acknowledgement names another offset or time than the first one of the same batch."""
    EARLY = "before its commit"
    """Acknowledged, or readable, before the metastore had committed it."""
    STALE = "stale offsets"
    """ListOffsets contradicts what was acknowledged or committed, or a fetch what its agent acknowledged."""
    SPURIOUS = "spurious refusal"
    """A correct client is refused finally: out of order, fenced, or unknown topic."""
    HIDDEN = "hidden gap"
    """A batch is out of order, and its agent says that it may be sent again, although it refused none before it."""
    SUCCESSOR = "successor accepted"
    """A batch failed finally, and one behind it on its connection was stored."""
    CORRUPT = "corrupt batch"
    """A reader got bytes that no producer sent."""
    UNACCOUNTED = "unaccounted bytes"
    """Stored bytes that are in no extent, not dead, and not swept; or an extent without its bytes."""
    UNSTORED = "committed before stored"
    """The metastore names bytes that the bucket does not hold."""
    FLUSHED_EARLY = "flushed too early"
    """More files than the budget of early flushes allows, or one closed early where that gains nothing."""
    UNLISTED = "lost and not listed"
    """A failover lost it, full following would have listed it, and no agent did."""
    STUCK = "stuck"
    """Everything is calm, and still there is no definite answer."""
    LIFECYCLE = "illegal lifecycle"
    """A record, key or reference of a remote segment that may not be so."""
    CRASHED = "crashed"
    """A bug surfaced as an unexpected exception."""


class Problem(NamedTuple):
    """One violation."""

    kind: Kind
    detail: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.detail}"
