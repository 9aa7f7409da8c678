"""Implements BucketApi: the bucket in the cluster's row.

Place: under metastore/life/own_bucket.py and the commands of `headrace storage`.
Invariant: these calls name no life: which bucket has the files does not change with the server.
"""

from __future__ import annotations

import uuid

from headrace.metastore.api.bucket import KnownBucket
from headrace.metastore.postgres.statement import Pool, Statement

_KNOWN_BUCKET = Statement("known_bucket", writes=False)
_SAMPLE_FILES = Statement("sample_files", writes=False)
_RECORD_BUCKET = Statement("record_bucket", writes=True, in_any_life=True)
_ADOPT_BUCKET = Statement("adopt_bucket", writes=True, in_any_life=True)


class PostgresBucket:
    """Implements BucketApi."""

    pool: Pool
    cluster_id: str

    async def known_bucket(self) -> KnownBucket | None:
        bucket_id, address = await _KNOWN_BUCKET.row(self.pool)
        return None if bucket_id is None else KnownBucket(bucket_id, address)

    async def record_bucket(self, bucket: KnownBucket) -> bool:
        (is_noted,) = await _RECORD_BUCKET.row(self.pool, **bucket._asdict())
        return bool(is_noted)

    async def adopt_bucket(self, before: KnownBucket | None, bucket: KnownBucket) -> bool:
        named = None if before is None else before.bucket_id
        (is_adopted,) = await _ADOPT_BUCKET.row(self.pool, before=named, **bucket._asdict())
        return bool(is_adopted)

    async def sample_files(self, oldest: int, newest: int) -> list[uuid.UUID]:
        return [file_id for (file_id,) in await _SAMPLE_FILES.rows(self.pool, oldest=oldest, newest=newest)]
