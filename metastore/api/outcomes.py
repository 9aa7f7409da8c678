"""How transactions ended, and which bulk writes are decided: what the metastore hands over to the bucket.

Place: called by the compactor's job (compactor/outcomes.py), and for its table by a rebuild.
Order: the job reads what is not forgotten, stores it in the bucket, then has it forgotten.
Invariant: each end of a transaction is here, by partition, from the statement that made it until the bucket has it; so
are the files of each decided bulk write.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from headrace.metastore.api.jobs import JobToken


class TransactionOutcome(NamedTuple):
    """One transaction in one partition. A batch of it has its producer id and epoch, and a sequence below the end."""

    topic_id: uuid.UUID
    partition_index: int
    producer_id: int
    epoch: int
    end_sequence: int
    marker_offset: int
    ended_ms: int
    """Milliseconds since the epoch, on the database's clock."""
    commits: bool


class EndedTransaction(NamedTuple):
    """`outcome` is None if the partition is gone."""

    partition_key: int
    marker_offset: int
    outcome: TransactionOutcome | None


class OutcomeApi(Protocol):
    """What the job needs. A call that takes a token is fenced by that lease."""

    async def ended_transactions(self, most: int) -> list[EndedTransaction]:
        """Return up to `most` ended transactions that are not forgotten."""

    async def forget_outcomes(self, token: JobToken, ended: Sequence[EndedTransaction]) -> None:
        """The bucket has them. Idempotent."""

    async def markers_in_log(self, outcomes: Sequence[TransactionOutcome]) -> list[bool]:
        """Return whether the marker of each is in the log: neither lost, nor below the log start, nor cleaned away."""

    async def decided_bulk_files(self, most: int) -> list[uuid.UUID]:
        """Return up to `most` files of decided attempts at bulk writes that are not forgotten."""

    async def forget_decided_bulk_files(self, token: JobToken, files: Sequence[uuid.UUID]) -> None:
        """The bucket has them. Idempotent."""

    async def bulk_files_in_index(self, files: Sequence[uuid.UUID]) -> list[bool]:
        """Return whether each is a file of a decided attempt that is still there."""
