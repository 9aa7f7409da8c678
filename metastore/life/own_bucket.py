"""Whether a bucket is the one that has the metastore's files: at the start of a process, and until the row names it.

Place: every process that opens both calls `require_bucket` before it writes or serves; keeper.py compares the id again
every few seconds, and calls `learn_bucket` while the row names none.
Invariant: a process uses only the bucket that the row names by id and by address. The address is compared because a
copy has the id of its original. A bucket that the row does not name is recorded only if it has most of the files that
the metastore names: a wrong prefix that was formatted has none of them.
"""

from __future__ import annotations

import logging
import random
import uuid
from collections.abc import Awaitable, Callable, Sequence

from headrace.metastore.api.life import KnownBucket, LifeApi
from headrace.storage.bucket_properties import bucket_address, ensure_bucket_id, read_bucket_id
from headrace.storage.cluster_properties import read_cluster_id
from headrace.storage.errors import InvalidError, NotFoundError
from headrace.storage.file_id import object_key
from headrace.storage.objects.store import ObjectStore

logger = logging.getLogger(__name__)

SAMPLE = 8
"""Files from each end of the metastore's index that are looked for."""
SampleFiles = Callable[[int, int], Awaitable[Sequence[uuid.UUID]]]
"""LifeApi.sample_files."""
ADOPT = (
    "if the files of that bucket were moved, copied or restored to this one, `headrace storage adopt-bucket` compares"
    " them with the metastore"
)


async def require_bucket(api: LifeApi, store: ObjectStore, url: str) -> None:
    """InvalidError, with instructions, unless the bucket at this setting `bucket` belongs to the metastore."""
    address, known = bucket_address(url), await api.known_bucket()
    found = await read_cluster_id(store)
    if found is not None and found != api.cluster_id:
        raise InvalidError(
            f"bucket and metastore belong to different clusters: bucket={found} metastore={api.cluster_id}: "
            "correct metastore.url or bucket; nothing was changed"
        )
    if known is not None and known.address != address:
        raise InvalidError(other_bucket(known, address))
    if found is None:
        raise InvalidError(
            "bucket is not formatted: run `headrace storage format --ignore-formatted "
            f"--cluster-id {api.cluster_id}` with this metastore.url and bucket"
        )
    if known is not None and await read_bucket_id(store) != known.bucket_id:
        raise InvalidError(
            f"this is not the bucket that the metastore knows at {address}: its id is not {known.bucket_id}: {ADOPT};"
            " nothing was changed"
        )


async def require_files(api: LifeApi, store: ObjectStore) -> None:
    """InvalidError if the bucket lacks most of the newest files: it was restored to an earlier state, or is empty."""
    if missing := await most_missing(api.sample_files, store, oldest=0):
        raise InvalidError(
            f"the bucket lacks the newest files that the metastore names, as {object_key(missing[0])}: is it mounted,"
            " or was it restored to an earlier state? `headrace audit` lists what is missing, and `headrace storage"
            " adopt-bucket --force` accepts the loss; nothing was changed"
        )


def other_bucket(known: KnownBucket, address: str) -> str:
    """Return what to do about a setting `bucket` that names another one."""
    return (
        f"the metastore has its files in another bucket: metastore={known.address} bucket={address}: correct bucket;"
        f" nothing was changed. Else, {ADOPT}"
    )


async def learn_bucket(api: LifeApi, store: ObjectStore, url: str, rng: random.Random) -> bool:
    """Record the bucket as the metastore's, which knows none; False if it lacks the files, or another one is known."""
    if missing := await most_missing(api.sample_files, store):
        logger.error("the bucket lacks files that the metastore names: missing=%s", object_key(missing[0]))
        return False
    return await api.record_bucket(KnownBucket(await ensure_bucket_id(store, draw(rng)), bucket_address(url)))


async def claim_bucket(api: LifeApi, store: ObjectStore, url: str, rng: random.Random) -> None:
    """Make this bucket the metastore's, or complete that; InvalidError if the metastore knows another one.

    The row comes before the bucket's cluster id: after a crash between the two, only this bucket can be completed.
    """
    known = await api.known_bucket()
    if known is not None and known.address != bucket_address(url):
        raise InvalidError(other_bucket(known, bucket_address(url)))
    own = KnownBucket(
        await ensure_bucket_id(store, draw(rng) if known is None else known.bucket_id), bucket_address(url)
    )
    if not await api.record_bucket(own):
        raise InvalidError(f"this is not the bucket that the metastore knows at {own.address}: {ADOPT}")


def draw(rng: random.Random) -> uuid.UUID:
    """Draw an id for a bucket."""
    return uuid.UUID(int=rng.getrandbits(128), version=4)


async def most_missing(sample: SampleFiles, store: ObjectStore, *, oldest: int = SAMPLE) -> list[uuid.UUID]:
    """Return files of a sample that the bucket does not have, if those are more than half; else none."""
    named = await sample(oldest, SAMPLE)
    missing = [file_id for file_id in named if not await _has(store, file_id)]
    if 2 * len(missing) <= len(named):
        return []
    again = set(await sample(oldest, SAMPLE))  # without those that were deleted meanwhile
    still = [file_id for file_id in missing if file_id in again]
    return still if 2 * len(still) > len(named) else []


async def _has(store: ObjectStore, file_id: uuid.UUID) -> bool:
    try:
        await store.head(object_key(file_id))
    except NotFoundError:
        return False
    return True
