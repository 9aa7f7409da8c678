"""`headrace migrate`: upgrade the metastore's schema to this version.

Place: before the first agent of a new version starts; metastore/postgres/migrate.py does the work.
Invariant: forward only. After an interruption, the same command continues where it stopped.
"""

from __future__ import annotations

import argparse
import asyncio
import uuid

from headrace.cli.options import add_settings, settings_from
from headrace.config.cluster_values import proposed
from headrace.config.errors import ConfigError
from headrace.config.settings import Settings
from headrace.metastore.postgres.migrate import migrate
from headrace.metastore.postgres.store import PostgresMetastore

DESCRIPTION = """\
Create or upgrade the metastore's tables and functions. Forward only; safe to run twice and in two
processes at once. Run it before the new agents start. A new cluster gets the values of --config for
the settings that have one value in the cluster; without --config its first controller records them.

  headrace migrate --metastore-url postgresql://headrace@db/headrace
  headrace migrate --restored --metastore-url …       after a restore from a backup: see docs/operate/OPERATIONS.md
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument(
        "--restored",
        action="store_true",
        help="this metastore was restored from a backup: give it a new incarnation id, so that agents drop their",
    )
    add_settings(parser, ("metastore.url", "commit.shards"), every=False)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Apply the missing migrations and print what was done."""
    settings = settings_from(args)
    if not settings.metastore_url:
        raise ConfigError("metastore.url is not set (--metastore-url)")
    values = proposed(settings) if args.config else {}
    print(migrate(settings.metastore_url, commit_shards=settings.commit_shards, values=values))
    if args.restored:
        print(f"new incarnation: incarnation_id={asyncio.run(_begin_incarnation(settings))}")
    return 0


async def _begin_incarnation(settings: Settings) -> uuid.UUID:
    metastore = await PostgresMetastore.open(settings.metastore_url, settings)
    try:
        return await metastore.begin_incarnation()
    finally:
        await metastore.close()
