"""How transactions ended: what the metastore hands over to the bucket.

Place: called by the compactor's job (compactor/outcomes.py), and for its table by a rebuild.
Invariant: each end of a transaction is here, by partition, from the statement that made it until the bucket has it.
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

    @property
    def named_life(self) -> int:
        """The life of the metastore that this process names."""

    async def ended_transactions(self, most: int) -> list[EndedTransaction]:
        """Return up to `most` ended transactions that are not forgotten."""

    async def forget_outcomes(self, token: JobToken, ended: Sequence[EndedTransaction]) -> None:
        """The bucket has them. Idempotent."""

    async def markers_in_log(self, outcomes: Sequence[TransactionOutcome]) -> list[bool]:
        """Return whether the marker of each is in the log: neither lost, nor below the log start, nor cleaned away."""
