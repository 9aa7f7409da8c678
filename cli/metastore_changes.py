"""What `headrace storage` changes in the metastore of a cluster: its bucket, its commit shards, its sealed secrets.

Place: under cli/storage.py, for `adopt-bucket`, `grow-commit-shards`, `seal-secrets` and `rotate-zone-secret`;
`headrace topics restore` opens the metastore in the same way. An operator runs `adopt-bucket` after the files were
moved, copied or restored; agents refuse such a bucket until then. `seal-secrets` is also the last step of `headrace
storage format` for a cluster that begins with a key.
Invariant of the metastore that is opened: if the settings name the bucket, it confirms that this server is the
metastore before anything is changed. A command without a bucket changes what its address reaches; its output is true
of that server only.
Invariant of adopt-bucket: the bucket has every byte that the metastore names, or the operator accepts what is
missing (--force). No process of the cluster is running, and one that starts meanwhile is refused from the change on:
the bucket gets an id that its original does not have. The bucket gets it before the row: if the command is
interrupted between the two, no process may use the bucket, and the same command completes the change.
Invariant of grow-commit-shards: the count changes in one statement, and never goes down; an interrupted command
changed all of it or nothing.
Invariant of seal-secrets: the command can be repeated at any time, while agents run. After an interruption the same
command continues: each secret is in clear or sealed, and agents with the key read both. Decision 58.
"""

from __future__ import annotations

import argparse
import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from headrace.cli.options import STORE, add_settings, settings_from
from headrace.cli.output import ProgressBar, write
from headrace.compactor.audit import Audit, Kind, audit
from headrace.config.errors import ConfigError
from headrace.config.settings import Settings
from headrace.metastore.api.agents import COMMIT_SHARDS, COMMIT_SHARDS_MAX, SEALED_SECRETS
from headrace.metastore.api.life import KnownBucket
from headrace.metastore.life.bucket import newest_life
from headrace.metastore.life.own_bucket import draw
from headrace.metastore.life.watch import FollowedLife, require_unused
from headrace.metastore.log.effective_configs import read_settings
from headrace.metastore.log.features import change_feature
from headrace.metastore.log.own_records import UserScramKeysRecord
from headrace.metastore.log.scram_keys import SealedKeys
from headrace.metastore.log.snapshot import load_image
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.metastore.sealing import Sealing
from headrace.storage.bucket_properties import bucket_address, read_bucket_id, replace_bucket_id
from headrace.storage.clock import SystemClock
from headrace.storage.cluster_properties import read_cluster_id
from headrace.storage.errors import InvalidError, UnavailableError
from headrace.storage.objects.open import StoreOptions, open_store
from headrace.storage.objects.store import ObjectStore
from headrace.storage.segment.rereading import VerifiedReads


@asynccontextmanager
async def open_current(settings: Settings) -> AsyncIterator[PostgresMetastore]:
    """Errors as PostgresMetastore.open; UnavailableError if the bucket names another server as the metastore."""
    metastore = await PostgresMetastore.open(settings.metastore_url, settings)
    try:
        if settings.bucket:
            clock, rng = SystemClock(), random.Random()
            store = open_store(settings.bucket, StoreOptions.of(settings), clock=clock, rng=rng)
            try:
                await FollowedLife(metastore.life, store, clock, rng).require_current()
            finally:
                await store.close()
        yield metastore
    finally:
        await metastore.close()


DESCRIPTION = """\
After the files of a cluster were moved, copied or restored to another bucket or prefix, or its address
changed: compare this bucket with the metastore, and name it as the metastore's. Stop all agents,
compactors and Spark jobs first. Agents that are still set to the earlier bucket are refused afterwards.

  headrace storage adopt-bucket --metastore-url postgresql://headrace@db/headrace --bucket s3://copy/headrace
"""
LOSES = (Kind.MISSING, Kind.UNSOUND, Kind.MISMATCH)
"""What the audit may find of a bucket that lacks records."""
SHOWN = 20


def add_adopt_bucket(commands: Any) -> None:
    """Add the command and its arguments."""
    adopting = commands.add_parser(
        "adopt-bucket",
        help="name another bucket as the metastore's, after its files were moved, copied or restored",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    adopting.add_argument(
        "--force", action="store_true", help="although files are missing or damaged: their records cannot be read"
    )
    add_settings(adopting, ("metastore.url", "bucket", *STORE), every=False)
    adopting.set_defaults(run=run_adopt)


def run_adopt(args: argparse.Namespace) -> int:
    """Print what was found and done; 1 if files are missing and --force is not given."""
    settings = settings_from(args)
    for name, value in (("metastore.url", settings.metastore_url), ("bucket", settings.bucket)):
        if not value:
            raise ConfigError(f"{name} is not set (--{name.replace('.', '-')} or --config)")
    return asyncio.run(_adopt(settings, force=args.force))


async def _adopt(settings: Settings, *, force: bool) -> int:
    store = open_store(settings.bucket, StoreOptions.of(settings), clock=SystemClock(), rng=random.Random())
    try:
        metastore = await PostgresMetastore.open(settings.metastore_url, settings)
        try:
            return await adopt(metastore, store, settings, force=force)
        finally:
            await metastore.close()
    finally:
        await store.close()


async def adopt(metastore: PostgresMetastore, store: ObjectStore, settings: Settings, *, force: bool) -> int:
    """The exit status. InvalidError, and nothing is changed, if the bucket is another cluster's or lacks a life of
    this one, or if processes of the cluster are running.
    """
    known, address = await metastore.life.known_bucket(), bucket_address(settings.bucket)
    await _require_of_the_cluster(metastore, store)
    if known is not None and known == (await read_bucket_id(store), address) and not force:
        write(f"this is the metastore's bucket already: {address}")
        return 0
    await _require_stopped(metastore)
    await require_unused(store, SystemClock())  # also by agents on another database, which this one is a copy of
    bar = ProgressBar()
    delay_ms = (await read_settings(metastore.cluster, settings)).file_delete_delay_ms
    reads = VerifiedReads(store, SystemClock(), random.Random())
    found = await audit(metastore, reads, deep=False, delete_delay_ms=delay_ms, on_progress=bar)
    bar.close()
    lost = report(found)
    if lost and not force:
        write("nothing was changed: copy what is missing, or accept with --force that its records cannot be read")
        return 1
    await _require_stopped(metastore)  # the audit may have taken hours
    bucket = KnownBucket(draw(random.SystemRandom()), address)
    await replace_bucket_id(store, bucket.bucket_id)
    if not await metastore.life.adopt_bucket(known, bucket):
        raise UnavailableError("the metastore's bucket was changed meanwhile: repeat the command")
    before = "no bucket was recorded" if known is None else f"before: {known.address}"
    write(f"the metastore has its files in this bucket from now on: {address} ({before})")
    return 0


def report(found: Audit) -> int:
    """Print what the bucket lacks; the number of files, at least."""
    lost = [violation for violation in found.violations if violation.kind in LOSES]
    for violation in lost[:SHOWN]:
        write(f"{violation.kind}: file={violation.file_id} {violation.detail}")
    count = len(lost) + found.violation_count - len(found.violations)
    if count > SHOWN:
        write(f"… and {count - SHOWN:,} more: `headrace audit` lists them")
    write(f"files that the metastore names: {found.files:,}, missing or damaged: {count:,}")
    return count


async def _require_of_the_cluster(metastore: PostgresMetastore, store: ObjectStore) -> None:
    cluster_id = await read_cluster_id(store)
    if cluster_id != metastore.cluster_id:
        raise InvalidError(
            f"the bucket is not a copy of the metastore's: cluster id in the bucket={cluster_id}"
            f" metastore={metastore.cluster_id}: correct metastore.url or bucket, or copy all objects; nothing was"
            " changed"
        )
    life = await newest_life(store, None)
    stored = (await metastore.life.describe_life()).life
    if (0 if life is None else life.life) < stored:
        raise InvalidError(
            f"the bucket does not know life {stored} of this metastore: copy the objects below metastore/, too; nothing"
            " was changed"
        )


async def _require_stopped(metastore: PostgresMetastore) -> None:
    running = {
        role: count for role, count in (await metastore.cluster.setting_proposals()).role_counts.items() if count
    }
    if running:
        counts = ", ".join(f"{role} {count}" for role, count in sorted(running.items()))
        raise InvalidError(
            f"processes of the cluster are running, and write to the bucket that they have: {counts}: stop them; one"
            " that was killed counts for a minute; nothing was changed"
        )


ATTEMPTS = 20
"""The metadata log may change between a look at it and the growth, or a call may hold it up for too long."""

PAUSE_SECONDS = 2.0
"""How long commits pass between two attempts: they wait behind each one."""


async def grow_commit_shards(settings: Settings, shards: int) -> str:
    """Return what was done, as a line. InvalidError for a count that is no doubling, or if an agent does not
    follow growth; UnavailableError if the metastore was too busy each time.
    """
    async with open_current(settings) as metastore:
        reason = "the metadata log keeps changing"
        for _ in range(ATTEMPTS):
            image = await load_image(metastore.cluster)
            before = await metastore.cluster.count_commit_shards()
            if shards == before:
                return f"{COMMIT_SHARDS}={shards}: there are as many already"
            possible = [before << doublings for doublings in range(1, 11) if before << doublings <= COMMIT_SHARDS_MAX]
            if shards not in possible:
                raise InvalidError(f"commit shards grow by doublings: wanted={shards} possible={possible}")
            change_feature(image, COMMIT_SHARDS, shards, allow_downgrade=False)
            try:
                if await metastore.cluster.grow_commit_shards(shards, image.offset):
                    return f"{COMMIT_SHARDS}={shards}: before, there were {before}"
            except UnavailableError as error:
                reason = str(error)
                await asyncio.sleep(PAUSE_SECONDS)
        raise UnavailableError(f"{reason}: repeat the command")


SEAL_ATTEMPTS = 10
"""The metadata log may change between a look at it and the change."""


async def seal_secrets(settings: Settings) -> list[str]:
    """Return what was done, in lines. ConfigError without a key; InvalidError names what has to be done first."""
    sealing = Sealing(settings.metadata_secret_keys)
    if not sealing:
        raise ConfigError("metadata.secret.keys is not set")
    async with open_current(settings) as metastore:
        users, is_new = await _seal_users(metastore, SealedKeys(sealing, metastore.cluster_id))
        zone = await metastore.cluster.seal_zone_secret(renew=is_new)
    return [
        f"{SEALED_SECRETS}=1: agents without metadata.secret.keys cannot start",
        f"users: {users} sealed now",
        f"zone secret: {'sealed now' if zone else 'sealed before'}",
    ]


async def _seal_users(metastore: PostgresMetastore, sealed_keys: SealedKeys) -> tuple[int, bool]:
    """(how many were sealed, whether no agent has ever registered)."""
    for _ in range(SEAL_ATTEMPTS):
        image = await load_image(metastore.cluster)
        due = sealed_keys.due(image)
        if not due or await metastore.cluster.append_records(image.offset, due):
            users = sum(isinstance(record, UserScramKeysRecord) for record in due)
            return users, not image.agents and not image.unregistered
    raise UnavailableError("the metadata log keeps changing: repeat the command")
