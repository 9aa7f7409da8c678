"""`headrace damage`: list damaged extents, repair them from files that are still there, or skip what is lost.

Place: needs metastore and bucket, as `headrace audit` does, with or without a running cluster.
Invariant: reads only, until the user confirms a replacement (--yes); refuses a Postgres that is not the metastore. Each
extent is replaced by one swap: an interrupted run can be repeated. Exit status 0 only if nothing of what was named
stays damaged.
"""

from __future__ import annotations

import argparse
import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple

from headrace.cli.damage.work import Damaged, listed, mend_all
from headrace.cli.numbers import INT32_MAX, INT64_MAX, whole
from headrace.cli.options import S3, add_settings, settings_from
from headrace.cli.output import write
from headrace.cli.tables import add_yes, show
from headrace.config.errors import ConfigError
from headrace.config.settings import Settings
from headrace.metastore.life.following import FollowedLife
from headrace.metastore.life.own_bucket import require_bucket
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.storage.clock import SystemClock
from headrace.storage.objects.open import StoreOptions, open_store
from headrace.storage.objects.store import ObjectStore

COLUMNS = ("topic", "partition", "first_offset", "last_offset", "file", "position", "kind", "found", "checked", "why")
DESCRIPTION = """\
Records that cannot be read because the bucket has damaged bytes: consumers get CORRUPT_MESSAGE there.

  headrace damage list --metastore-url postgresql://… --bucket s3://…
  headrace damage repair orders --partition 3 …   a sound copy, from files that it was made of and that are still there
  headrace damage skip orders --partition 3 …     what cannot be repaired is lost: readers go past it

Offsets never change. Repair first: those files are deleted after file.delete.delay.ms, or a week after the damage was
found if that is later.
"""


class Opened(NamedTuple):
    """What the commands work on."""

    metastore: PostgresMetastore
    store: ObjectStore


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    commands = parser.add_subparsers(title="commands", metavar="{list,repair,skip}", required=True)
    listing = commands.add_parser("list", help="list the damaged extents that agents, merges and cleaning found")
    listing.set_defaults(run=run_list)
    repair = commands.add_parser("repair", help="replace damaged extents by sound copies, if their batches are found")
    skip = commands.add_parser("skip", help="the same, and leave out the batches that are not found: they are lost")
    for command, skips in ((repair, False), (skip, True)):
        command.add_argument("topic", metavar="TOPIC")
        command.add_argument("--partition", type=whole(0, INT32_MAX), default=0, metavar="N", help="default: 0")
        command.add_argument(
            "--offset",
            type=whole(0, INT64_MAX),
            metavar="N",
            help="the extent with this offset, also if its damage is not recorded; default: all recorded damage",
        )
        command.add_argument("--dry-run", action="store_true", help="show what would be done")
        add_yes(command)
        command.set_defaults(run=run_mend, skips=skips)
    for command in (listing, repair, skip):
        command.add_argument("--json", action="store_true", help="JSON for scripts instead of text")
        add_settings(command, ("metastore.url", "bucket", *S3), every=False)


def run_list(args: argparse.Namespace) -> int:
    """Print the damaged extents; 1 if there are any."""

    async def work(settings: Settings) -> int:
        async with opened(settings) as (metastore, _):
            rows, total = await listed(metastore.compaction)
            show(args, rows, COLUMNS)
            if not args.json:
                write(f"damaged extents: {total}")
            return 1 if total else 0

    return asyncio.run(work(require_settings(args)))


def run_mend(args: argparse.Namespace) -> int:
    """Repair or skip; 1 if something stays damaged."""

    async def work(settings: Settings) -> int:
        async with opened(settings) as (metastore, store):
            damaged = Damaged(args.topic, args.partition, args.offset)
            return await mend_all(metastore, store, damaged, args, SystemClock(), random.Random())

    return asyncio.run(work(require_settings(args)))


def require_settings(args: argparse.Namespace) -> Settings:
    """The settings. ConfigError without metastore or bucket."""
    settings = settings_from(args)
    for name, value in (("metastore.url", settings.metastore_url), ("bucket", settings.bucket)):
        if not value:
            raise ConfigError(f"{name} is not set (--{name.replace('.', '-')} or --config)")
    return settings


@asynccontextmanager
async def opened(settings: Settings) -> AsyncIterator[Opened]:
    """Errors as of opening either; UnavailableError if the bucket names another server as the metastore."""
    clock, rng = SystemClock(), random.Random()
    store = open_store(settings.bucket, StoreOptions.of(settings), clock=clock, rng=rng)
    try:
        metastore = await PostgresMetastore.open(settings.metastore_url, settings)
        try:
            await require_bucket(metastore.life, store, settings.bucket)
            await FollowedLife(metastore.life, store, clock, rng).require_current()
            yield Opened(metastore, store)
        finally:
            await metastore.close()
    finally:
        await store.close()
