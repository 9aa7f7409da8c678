"""What the bucket has of its cluster: the cluster's id, the bucket's own, the newest life, the backup.

Place: read before the metastore is opened, compared with it by the area cluster of `headrace doctor`; the backups of
Postgres are judged in its area postgres, when the bucket is readable.
Invariant: reads only.
A backup is known by its record (`headrace backup`), because Postgres does not keep one.
"""

from __future__ import annotations

import random
import uuid
from typing import NamedTuple

import msgspec

from headrace.cli.doctor.findings import Area, Finding
from headrace.config.settings import Settings
from headrace.metastore.api.life import LifeApi
from headrace.metastore.backups import BackupRecord, WalArchive, backup_age_s, backup_problem, read_backup
from headrace.metastore.life.bucket import LifeRecord, Position, newest_life, read_position, with_database
from headrace.metastore.life.keeper import WRITES
from headrace.metastore.life.verdict import LifeVerdict, judge
from headrace.storage.bucket_properties import read_bucket_id
from headrace.storage.clock import Clock
from headrace.storage.cluster_properties import read_cluster_id
from headrace.storage.objects.open import StoreOptions, open_store
from headrace.storage.objects.store import ObjectStore


class BucketFacts(NamedTuple):
    """What the bucket has; None: nothing of that kind."""

    cluster_id: str | None
    bucket_id: uuid.UUID | None
    newest: LifeRecord | None
    reached: Position | None
    backup: BackupRecord | None


async def read_bucket_facts(store: ObjectStore) -> BucketFacts:
    """Errors as ObjectStore.get and list_objects, CorruptError for objects that are damaged."""
    newest = await newest_life(store, None)
    reached = None if newest is None else await read_position(store, newest.life)
    newest = None if newest is None else await with_database(store, newest)
    return BucketFacts(
        await read_cluster_id(store), await read_bucket_id(store), newest, reached, await read_backup(store)
    )


async def open_bucket_facts(settings: Settings, clock: Clock, rng: random.Random) -> BucketFacts:
    """Read it from the bucket of the settings, without retries."""
    options = StoreOptions.of(msgspec.structs.replace(settings, store_retries=0, store_hedge_percent=0))
    store = open_store(settings.bucket, options, clock=clock, rng=rng)
    try:
        return await read_bucket_facts(store)
    finally:
        await store.close()


async def verdict_of(metastore: LifeApi, facts: BucketFacts) -> LifeVerdict:
    """Judge as a process of the cluster would at its start, without beginning a life."""
    found = await metastore.describe_life()
    verdict = judge(found, facts.newest, facts.reached)
    if verdict in WRITES and found.bucket_id not in (None, facts.bucket_id):
        return LifeVerdict.OTHER_BUCKET
    return verdict


AREA = Area("postgres")
TO_DO = "docs/operate/BACKUPS.md has recipes, and which file.delete.delay.ms they need"


def judge_backup(record: BackupRecord | None, archive: WalArchive, now_ms: int, delay_ms: int) -> Finding:
    """`now_ms`: since the epoch; `delay_ms`: file.delete.delay.ms as the cluster has it."""
    problem = backup_problem(record, archive, now_ms, delay_ms)
    if record is None:
        return AREA.warn("backup", str(problem), f"take one and record it: headrace backup; {TO_DO}")
    if problem is not None:
        return AREA.warn("backup", problem, f"take backups more often, or raise file.delete.delay.ms; {TO_DO}")
    age_s = backup_age_s(record, archive, now_ms)
    return AREA.ok("backup", f"a restore ({record.kind}) would go back {age_s / 3600:.1f} h")
