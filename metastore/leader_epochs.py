"""Where a partition's leader epochs end: the part of the metastore's boundary behind OffsetForLeaderEpoch.

Place: consumers ask it to find out whether their position still means the same records (KIP-320).
Invariant: every answer is the primary's; an epoch's end never goes back while its records are there.
If the process dies here nothing is lost: it only reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol


class EpochQuery(NamedTuple):
    """Where does the partition's log end for whoever knows it up to `leader_epoch`?"""

    partition_key: int
    leader_epoch: int


class EpochEnd(NamedTuple):
    """The largest epoch up to the asked one that has records (or is the current one), and the next offset after it.

    Both are -1 for an epoch that is not there yet. Below the first epoch it is the asked epoch, and the log start.
    """

    known: bool
    """False for a partition that is gone."""
    leader_epoch: int
    end_offset: int


class LeaderEpochApi(Protocol):
    """Reading leader epochs."""

    async def find_epoch_ends(self, queries: Sequence[EpochQuery]) -> list[EpochEnd]:
        """One answer per query, in order; O(log n) each."""
