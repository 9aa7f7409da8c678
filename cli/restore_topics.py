"""`headrace topics restore`: bring back deleted topics, or records that a log start has removed.

Place: the arguments; under `headrace topics`. restored_topics.py does it, and is loaded only then, as a command is
(commands.py): it needs Postgres, and rules of agents and compactors, which the other commands of topics do without.
"""

from __future__ import annotations

import argparse
import asyncio
import uuid
from importlib import import_module
from typing import Any

from headrace.cli.options import S3, add_settings, settings_from
from headrace.config.errors import ConfigError

DESCRIPTION = """\
Bring back a topic that was deleted by mistake, with its records, offsets, configs and groups; or, with --records, the
records of a topic that retention or DeleteRecords has removed. Possible for file.delete.delay.ms, while the files are
still in the bucket.

  headrace topics restore --list --metastore-url postgresql://headrace@db/headrace
  headrace topics restore orders --metastore-url postgresql://headrace@db/headrace
  headrace topics restore orders --as orders-before --metastore-url postgresql://headrace@db/headrace
  headrace topics restore orders --records --dry-run --metastore-url postgresql://headrace@db/headrace
"""


def add_restore(commands: Any) -> None:
    """Add the command and its arguments."""
    restoring = commands.add_parser(
        "restore",
        help="bring back deleted topics, or records below the log start",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    restoring.add_argument("topic", nargs="?", metavar="TOPIC")
    what = restoring.add_mutually_exclusive_group()
    what.add_argument("--list", action="store_true", help="show the deleted topics that can be restored")
    what.add_argument(
        "--records",
        action="store_true",
        help="of a topic that is there: the records below its log starts that retention would not remove again",
    )
    what.add_argument("--as", dest="new_name", metavar="NAME", help="bring the deleted topic back under another name")
    restoring.add_argument(
        "--id",
        type=uuid.UUID,
        metavar="UUID",
        help="of several deleted topics of the name; default: the newest deletion",
    )
    restoring.add_argument("--dry-run", action="store_true", help="show what would come back")
    restoring.add_argument("--json", action="store_true", help="JSON for scripts instead of text")
    add_settings(restoring, ("metastore.url", "bucket", *S3), every=False)
    restoring.set_defaults(run=run_restore, refuse=restoring.error)


def run_restore(args: argparse.Namespace) -> int:
    """Restore, or show what can be."""
    if args.list == (args.topic is not None):
        args.refuse("name a topic, or set --list")
    settings = settings_from(args)
    if not settings.metastore_url:
        raise ConfigError("metastore.url is not set (--metastore-url or --config)")
    return int(asyncio.run(import_module("headrace.cli.restored_topics").restore(args, settings)))
