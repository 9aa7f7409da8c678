"""The bucket in the cluster's row: part of LifeApi.

Place: under metastore/life/own_bucket.py and the commands of `headrace storage`.
Invariant: these calls name no life: which bucket has the files does not change with the server.
"""

from __future__ import annotations

from headrace.metastore.api.life import KnownBucket, LifeApi
from headrace.metastore.postgres.pass_through import PostgresNoun, calls
from headrace.metastore.postgres.statement import Statement

_KNOWN_BUCKET = Statement("known_bucket", writes=False)
_ADOPT_BUCKET = Statement("adopt_bucket", writes=True, in_any_life=True)


class PostgresBucket(PostgresNoun):
    """Implements what LifeApi says of the bucket."""

    record_bucket = calls(LifeApi.record_bucket, writes=True, in_any_life=True)
    sample_files = calls(LifeApi.sample_files, writes=False)

    async def known_bucket(self) -> KnownBucket | None:
        bucket_id, address = await _KNOWN_BUCKET.row(self.pool)
        return None if bucket_id is None else KnownBucket(bucket_id, address)

    async def adopt_bucket(self, before: KnownBucket | None, bucket: KnownBucket) -> bool:
        named = None if before is None else before.bucket_id
        (is_adopted,) = await _ADOPT_BUCKET.row(self.pool, before=named, **bucket._asdict())
        return bool(is_adopted)
