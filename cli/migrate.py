"""`headrace migrate`: upgrade the metastore's schema to this version.

Place: before the first agent of a new version starts; metastore/postgres/migrate.py does the work.
Invariant: forward only. After an interruption, the same command continues where it stopped.
"""

from __future__ import annotations

import argparse
import asyncio
import random

from headrace.cli.options import STORE, add_settings, settings_from
from headrace.cli.output import write
from headrace.config.cluster_values import proposed
from headrace.config.errors import ConfigError
from headrace.config.settings import Settings
from headrace.metastore.life.keeper import LifeKeeper
from headrace.metastore.life.own_bucket import require_bucket
from headrace.metastore.life.watch import require_unused
from headrace.metastore.postgres.address import url_with_password
from headrace.metastore.postgres.migrate import migrate, plan_migration
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.storage.clock import SystemClock
from headrace.storage.objects.open import StoreOptions, open_store

DESCRIPTION = """\
Create or upgrade the metastore's tables and functions. Forward only; safe to run twice and in two
processes at once. Run it before the new agents start. A new cluster gets the values of --config for
the settings that have one value in the cluster; without --config its first controller records them.

  headrace migrate --metastore-url postgresql://headrace@db/headrace
  headrace migrate --plan --metastore-url …                       which tables would be locked
  headrace migrate --restored --metastore-url … --bucket s3://…   after a restore or a move of Postgres

After a promotion of a standby nothing is to be done: agents notice it (docs/operate/POSTGRES.md).
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument(
        "--restored",
        action="store_true",
        help="this server is the metastore from now on, although it was restored from a backup, copied or moved:"
        " begin a new life of the metastore, so that agents forget the old one and nothing is deleted until an audit",
    )
    parser.add_argument(
        "--force",
        action="store_true",
        help="with --restored: although agents are running on the server that was the metastore until now",
    )
    parser.add_argument(
        "--plan",
        action="store_true",
        help="change nothing: print the migrations that are missing, and which tables they lock how",
    )
    add_settings(parser, ("metastore.url", "commit.shards", "bucket", *STORE), every=False)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Apply the missing migrations and print what was done."""
    settings = settings_from(args)
    if not settings.metastore_url:
        raise ConfigError("metastore.url is not set (--metastore-url)")
    if args.plan:
        write("\n".join(plan_migration(url_with_password(settings)).lines()))
        return 0
    if args.restored and not settings.bucket:
        raise ConfigError("bucket is not set (--bucket): a new life of the metastore is recorded there")
    values = proposed(settings) if args.config else {}
    write(migrate(url_with_password(settings), commit_shards=settings.commit_shards, values=values))
    if args.restored:
        life = asyncio.run(_begin_life(settings, force=args.force))
        write(f"a new life of the metastore begins: life={life}")
        write("no object is deleted until you run `headrace audit --resume-janitor`")
    return 0


async def _begin_life(settings: Settings, *, force: bool) -> int:
    store = open_store(settings.bucket, StoreOptions.of(settings), clock=SystemClock(), rng=random.Random())
    metastore = await PostgresMetastore.open(settings.metastore_url, settings)
    try:
        await require_bucket(metastore.life, store, settings.bucket)
        if not force:
            await require_unused(store, SystemClock())
        return await LifeKeeper(metastore.life, store, SystemClock(), random.Random()).begin_anew("restored")
    finally:
        await metastore.close()
        await store.close()
