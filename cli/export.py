"""`headrace export`: write a topic's records to Parquet files.

Place: reads metastore and bucket directly (headrace.scan), with or without a running agent.
Invariant: after a crash, the same command continues; each offset is in exactly one file. Exit status 1 with one line
that says what is wrong; finished chunks stay.
"""

from __future__ import annotations

import argparse
import asyncio
import random
from pathlib import Path

from headrace.cli.options import STORE, add_settings, settings_from
from headrace.cli.output import ProgressBar, write
from headrace.config.errors import ConfigError
from headrace.config.extras import not_installed
from headrace.config.settings import Settings
from headrace.storage.clock import SystemClock
from headrace.storage.errors import InvalidError
from headrace.storage.objects.open import StoreOptions, open_store

DESCRIPTION = """\
Export the committed records of a topic to Parquet files, one per offset range and date:

  headrace export --topic orders --format parquet --to /data/orders \\
                  --metastore-url postgresql://… --bucket s3://logs/headrace
  headrace export --topic orders --format parquet --to s3://lake/orders --infer-json …

The same command again continues where the last one ended, also after a crash, and exports what is new.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("--topic", required=True, help="the topic")
    parser.add_argument("--format", choices=("parquet",), default="parquet", help="parquet")
    parser.add_argument(
        "--to",
        required=True,
        metavar="PLACE",
        help="a directory, or a bucket as --bucket (s3://, az:// or gs://), reached by the same settings and keys",
    )
    parser.add_argument(
        "--infer-json", action="store_true", help="values are JSON objects: infer their schema from the first ones"
    )
    parser.add_argument(
        "--skip-lost",
        action="store_true",
        help="continue if retention or DeleteRecords removed records that were not exported yet",
    )
    parser.add_argument(
        "--isolation-level",
        choices=("read_committed", "read_uncommitted"),
        default="read_committed",
        help="read_committed (default): no records of aborted or open transactions; read_uncommitted: all records",
    )
    add_settings(parser, ("metastore.url", "bucket", *STORE), every=False)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Export all that is committed now, and print how much that was."""
    settings = settings_from(args)
    for name, value in (("metastore.url", settings.metastore_url), ("bucket", settings.bucket)):
        if not value:
            raise ConfigError(f"{name} is not set (--{name.replace('.', '-')})")
    try:
        import pyarrow  # noqa: F401 -- only to say what is missing
    except ImportError as error:
        raise InvalidError(not_installed("pyarrow", "export")) from error
    rows = asyncio.run(_export(args, settings))
    write(f"exported {rows:,} records of {args.topic} to {args.to}")
    return 0


async def _export(args: argparse.Namespace, settings: Settings) -> int:
    from headrace.scan.cluster import BucketAddress, open_cluster  # here: they need pyarrow
    from headrace.scan.export.run import Exporter, ExportOptions
    from headrace.scan.read import SplitReader

    clock, rng, bar = SystemClock(), random.Random(), ProgressBar()
    options = ExportOptions(
        topic=args.topic,
        infer_json=args.infer_json,
        fail_on_data_loss=not args.skip_lost,
        committed=args.isolation_level == "read_committed",
    )
    async with open_cluster(settings) as cluster:
        target = open_store(target_url(args.to), StoreOptions.of(settings), clock=clock, rng=rng)
        reader = SplitReader.open(BucketAddress.of(settings), clock, rng, pin_hint="A chunk took more than an hour")
        try:
            exporter = Exporter(cluster, reader, target, options, lambda done, total: bar("offsets", done, total))
            return await exporter.run()
        finally:
            bar.close()
            await asyncio.to_thread(reader.close)
            await target.close()


def target_url(place: str) -> str:
    """A URL as it is; a path as the URL of its directory, which is created."""
    if "://" in place:
        return place
    try:
        Path(place).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidError(f"cannot create the directory: {place}: {error.strerror}") from error
    return Path(place).absolute().as_uri()
