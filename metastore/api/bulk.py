"""Values of bulk writes: files that many tasks stored, committed by one driver, once.

Place: of CommitApi, which headrace.scan.bulk calls on Spark's driver; housekeeping finishes what a killed driver left.
Invariant: a writer (a streaming query, or a batch job) writes batches with rising ids. An attempt at a batch is staged
in chunks; then it is decided, and no other attempt at this batch is ever committed. Each chunk is committed once, by
the first call. So a batch that is run again, by any number of drivers, is in the topics once.
"""

from __future__ import annotations

import enum
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

NO_COUNTS: Mapping[int, int] = MappingProxyType({})


class BulkRun(NamedTuple):
    """Neighbouring batches of one partition in a file: it becomes an extent. Position and length in bytes."""

    partition_key: int
    position: int
    length: int
    records: int
    """Number of records of all batches: lastOffsetDelta + 1 each."""
    max_timestamp: int


@dataclass(frozen=True, slots=True)
class BulkFile:
    """A complete segment file in the bucket, under an id of new_bulk_file_id. Runs are in file order."""

    file_id: uuid.UUID
    size: int
    runs: tuple[BulkRun, ...]


class BulkOutcome(enum.IntEnum):
    """The result of decide_bulk_write."""

    DECIDED = 0
    """The batch is decided, now or by an earlier call, maybe for another attempt: that one is to be committed."""
    PREVIOUS_UNFINISHED = 1
    """Nothing happened: an earlier batch of the writer has chunks to commit (the returned attempt)."""
    NOT_STAGED = 2
    """Nothing happened: chunks are missing; they are kept for a day."""
    UNKNOWN_PARTITION = 3
    """Nothing happened: a partition does not exist (any more)."""
    FILES_TOO_OLD = 4
    """Nothing happened: the term of a file ended, or its id is from the future."""
    TOPIC_CHANGES = 5
    """Nothing happened: the topic's partitions change, or did since the files were laid out. Run the batch again."""
    OTHER_TOPIC = 6
    """Nothing happened: the batch is decided, and it has no records of this topic."""


class BulkDecision(NamedTuple):
    """`next_chunk` of `chunks` of `attempt` is to be committed; complete if they are equal."""

    outcome: BulkOutcome
    attempt: uuid.UUID | None
    next_chunk: int
    chunks: int
    partition_key: int | None
    """The unknown one, or one of the topic that changes, or that the decided batch does not have."""


class BulkProgress(NamedTuple):
    """State of a decided bulk write."""

    next_chunk: int
    chunks: int
