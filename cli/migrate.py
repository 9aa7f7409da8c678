"""`headrace migrate`: bring the metastore's schema up to this version.

Place: before the first agent of a new version; what it does is metastore/postgres/migrate.py's.
Invariant: forward only. If the process dies here, the same command goes on where it stopped.
"""

from __future__ import annotations

import argparse
import asyncio
import uuid

from headrace.cli.options import add_settings, settings_from
from headrace.config.errors import ConfigError
from headrace.config.settings import Settings
from headrace.metastore.postgres.migrate import migrate
from headrace.metastore.postgres.store import PostgresMetastore

DESCRIPTION = """\
Create or upgrade the metastore's tables and functions. Forward only, safe to run twice and by two
processes at once, and before the new agents start.

  headrace migrate --metastore-url postgresql://headrace@db/headrace
  headrace migrate --restored --metastore-url …       after a restore from a backup: see docs/OPERATIONS.md
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what the command takes."""
    parser.add_argument(
        "--restored",
        action="store_true",
        help="this metastore came from a backup: give it a new incarnation id, so that agents drop what they"
        " remember and nothing is deleted until an audit",
    )
    add_settings(parser, ("metastore.url", "commit.shards"), every=False)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Apply what is missing and say what was done."""
    settings = settings_from(args)
    if not settings.metastore_url:
        raise ConfigError("metastore.url is not set (--metastore-url)")
    print(migrate(settings.metastore_url, commit_shards=settings.commit_shards))
    if args.restored:
        print(f"new life: incarnation_id={asyncio.run(_begin_incarnation(settings))}")
    return 0


async def _begin_incarnation(settings: Settings) -> uuid.UUID:
    metastore = await PostgresMetastore.open(settings.metastore_url, settings)
    try:
        return await metastore.begin_incarnation()
    finally:
        await metastore.close()
