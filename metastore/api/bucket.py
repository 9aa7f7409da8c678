"""The bucket that the metastore knows as its own: the id and the address in the cluster's row.

Place: under metastore/life/own_bucket.py, `headrace storage format` and `headrace storage adopt-bucket`.
Invariant: the row names one bucket, once it is known. Only adopt_bucket names another.
"""

from __future__ import annotations

import uuid
from typing import NamedTuple, Protocol


class KnownBucket(NamedTuple):
    """What distinguishes the metastore's bucket from others."""

    bucket_id: uuid.UUID
    """The id in the bucket's bucket.properties; a copy has the same."""
    address: str
    """The address under which it was confirmed, as `bucket_address` spells it."""


class BucketApi(Protocol):
    """Asked at the start of a process, and by commands."""

    @property
    def cluster_id(self) -> str:
        """The cluster's id."""

    async def known_bucket(self) -> KnownBucket | None:
        """Return the metastore's bucket; None if no process has recorded it yet."""

    async def record_bucket(self, bucket: KnownBucket) -> bool:
        """Note the bucket if none is noted; False if another one is."""

    async def adopt_bucket(self, before: KnownBucket | None, bucket: KnownBucket) -> bool:
        """Note `bucket` in the place of `before`; False if `before` is not what is noted. Files that it lacks now are
        accepted as lost.
        """

    async def sample_files(self, oldest: int, newest: int) -> list[uuid.UUID]:
        """Return so many of the oldest and of the newest files with live records, as far as there are any.

        Files from before the bucket was adopted are left out: an operator has accepted what is missing of them.
        """
