"""The commit's side of the boundary: stored files' batches get their order, their offsets, their producer ids.

Place: between the stored file and the acknowledgement (agent/produce/commit.py). headrace.scan.bulk calls bulk
writes on Spark's driver; housekeeping finishes what a killed driver left.
Invariant of bulk writes: a writer (a streaming query, or a batch job) writes batches with rising ids. An attempt at
a batch is staged in chunks; then it is decided, and no other attempt at this batch is ever committed. Each chunk is
committed once, by the first call. So a batch that is run again, by any number of drivers, is in the topics once.
Invariant: a file id is judged once; the same file committed again gets the same answer.
"""

from __future__ import annotations

import enum
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple, Protocol

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


class BatchTransaction(enum.IntEnum):
    """Whether a batch belongs to a transaction of its producer."""

    NO_TRANSACTION = 0
    ADDED = 1
    """Code of a batch in a transaction to which its producer has added the partition."""
    ANY_PARTITION = 2
    """Code of a batch that may begin the transaction, and add the partition (KIP-890)."""


class MovedKeys(enum.IntEnum):
    """What an agent says of the keys of a batch that has no partition count."""

    UNKNOWN = 0
    """Nothing: as far as the agent knows, the batch's partition is not split in two."""
    STAY = 1
    MOVED = 2
    """Some key belongs to the child."""


NO_ALIAS = -1


class StagedBatch(NamedTuple):
    """One batch of a stored segment file, waiting for its offset."""

    partition_key: int
    position: int
    length: int
    record_count: int
    """lastOffsetDelta + 1."""
    max_timestamp: int
    producer_id: int = -1
    producer_epoch: int = -1
    base_sequence: int = -1
    leader_epoch: int = -1
    """The epoch under which the agent accepted it; -1 skips the check."""
    partition_count: int = -1
    """The topic's undeleted partition count that the client chose the partition by; -1 if it sent none."""
    transaction: int = BatchTransaction.NO_TRANSACTION
    """A BatchTransaction. A transactional batch has a producer epoch of at most EPOCH_MAX (metastore/transactions)."""
    keys: int = MovedKeys.UNKNOWN
    """One of MovedKeys."""
    alias: int = NO_ALIAS
    """The index of the alias of this partition that the batch came for; then it has no partition count."""


@dataclass(frozen=True, slots=True)
class FileCommit:
    """A complete segment file. Batches are in file order."""

    file_id: uuid.UUID
    size: int
    batches: list[StagedBatch]
    body: bytes | None = field(default=None, repr=False)
    """The bytes of an inline file, which its commit stores; None: the bucket has them."""


class FileStatus(enum.IntEnum):
    """The result of a file in a commit call."""

    COMMITTED = 0
    """Its batches were judged; also when this very commit had happened before (the same answer again)."""
    AGENT_FENCED = 1
    """Nothing happened: (node id, broker epoch) is not registered, or fenced."""
    CONDEMNED = 2
    """Nothing happened, and never will: the sweeper owns this id."""
    TOO_OLD = 3
    """Nothing happens under this id any more: it is older than the answers that are kept."""


class BatchOutcome(enum.IntEnum):
    """The result of a batch of a committed file. Numbers are stored: never reuse one."""

    APPENDED = 0
    DUPLICATE = 1
    """One of the producer's last 5 batches: base_offset and append time are the original's."""
    OUT_OF_ORDER = 2
    PRODUCER_FENCED = 3
    UNKNOWN_PARTITION = 4
    PARTITION_COUNT_MISMATCH = 5
    LEADER_EPOCH_MISMATCH = 6
    DUPLICATE_SEQUENCE = 7
    """Stored before the producer's last 5 batches: its offset is not known any more (decisions/0037)."""
    PARTITION_MARKED = 8
    """The partition takes no new records: the client asks for metadata and chooses another one."""
    SENT_BACK = 9
    """The topic doubles or halves: the client asks for metadata, and sends the batch again (partitions/splitting.py,
    partitions/merging.py)."""
    MOVED_KEY = 10
    """The topic has doubled or halved, and the batch comes behind newer records of its producer, or may do so: it is
    never appended."""
    INVALID_TXN_STATE = 11
    """No transaction of the producer is open here; or one is, and the batch does not belong to it."""
    UNKNOWN_PRODUCER = 12
    """No transactional id has the producer id of a transactional batch any more."""


class BatchAnswer(NamedTuple):
    outcome: BatchOutcome
    base_offset: int
    """-1 unless APPENDED or DUPLICATE."""
    append_time_ms: int
    """max_timestamp of the batch as it was first appended; -1 unless APPENDED or DUPLICATE."""
    next_sequence: int = -1
    """The sequence that, for OUT_OF_ORDER, the partition expects of the producer in the batch's epoch; else -1. For the
    agent: no client gets it."""
    metadata_offset: int = -1
    """The end of the metadata log when the batch was judged as OUT_OF_ORDER; else -1."""


@dataclass(frozen=True, slots=True)
class FileAnswer:
    """`batches[i]` answers `FileCommit.batches[i]`; empty unless COMMITTED."""

    file_id: uuid.UUID
    status: FileStatus
    batches: list[BatchAnswer] = field(default_factory=list)


class CommitApi(Protocol):
    """Order, offsets, duplicates; and bulk writes, each call of which is idempotent: repeat it if its outcome is
    unknown.
    """

    async def commit_files(self, node_id: int, broker_epoch: int, files: Sequence[FileCommit]) -> list[FileAnswer]:
        """Order the files' batches, in the given order; one answer per file.

        Idempotent by file id: the same file again gets the answer it got first. Readers see all of
        a call's appended batches at once. The bytes of inline files are stored in the same transaction, each once.
        """

    async def allocate_producer_ids(self, count: int) -> range:
        """A block of producer ids that no other call ever gets."""

    async def database_ms(self) -> int:
        """The clock of file ids, in ms since the epoch."""

    async def stage_bulk_chunk(self, attempt: uuid.UUID, chunk: int, files: Sequence[BulkFile]) -> None:
        """Keep one chunk of an attempt; chunks count from 0. InvalidError for a run outside its file."""

    async def decide_bulk_write(
        self,
        writer: str,
        batch_id: int,
        attempt: uuid.UUID,
        chunks: int,
        counts: Mapping[int, int] = NO_COUNTS,
        *,
        is_named: bool = False,
    ) -> BulkDecision:
        """Let this attempt with so many staged chunks be the batch, unless another one is already.

        `counts`: how many partitions of each topic, by its number, the files were laid out for. Without them, topics
        with partitions that split are refused. `is_named`: by a user, who may name two writes the same.
        """

    async def commit_bulk_chunk(self, writer: str, attempt: uuid.UUID, chunk: int) -> BulkProgress:
        """Commit a chunk of the decided attempt, if it is the next one; how far the write is then."""
