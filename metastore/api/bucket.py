"""The bucket that the metastore knows as its own: the id and the address in the cluster's row.

Place: a value of LifeApi; under metastore/life/own_bucket.py, `headrace storage format` and `headrace storage
adopt-bucket`.
Invariant: the row names one bucket, once it is known. Only adopt_bucket names another.
"""

from __future__ import annotations

import uuid
from typing import NamedTuple


class KnownBucket(NamedTuple):
    """What distinguishes the metastore's bucket from others."""

    bucket_id: uuid.UUID
    """The id in the bucket's bucket.properties; a copy has the same."""
    address: str
    """The address under which it was confirmed, as `bucket_address` spells it."""
