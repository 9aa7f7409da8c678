"""The count of commit shards, and how it grows.

Place: `headrace storage grow-commit-shards`. Decision 77 says how partitions, shards and agents relate.
Invariant: the count only grows, by doublings, between two commits: no commit, swap or log start has the locks of one
count and the feed of the other.
"""

from __future__ import annotations

from typing import Protocol


class ShardApi(Protocol):
    """Growing the commit shards."""

    async def count_commit_shards(self) -> int:
        """Return how many there are now."""

    async def grow_commit_shards(self, shards: int, expected_head: int) -> bool:
        """Make it so many; False if the metadata log has moved on, and nothing happened. Not idempotent.

        All writing calls of the cluster wait meanwhile: some 3 us per partition. UnavailableError if one that was
        under way took longer than half a second. Every registered agent must follow growth (COMMIT_SHARDS): the caller
        looks at the image of `expected_head`.
        """
