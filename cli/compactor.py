"""`headrace compactor`: background work in the foreground of a process of its own.

Place: `headrace agent` with process.roles=compactor, under a name of its own and without listeners.
If the process dies here, the leases of its jobs run out and other workers go on.
"""

from __future__ import annotations

import argparse
from typing import Any

from headrace.cli.options import add_settings, settings_from
from headrace.cli.serving import serve
from headrace.config.listeners import COMPACTOR

SHOWN = (
    "metastore.url",
    "bucket",
    "s3.endpoint",
    "http.port",
    "log.cleaner.threads",
    "log.cleaner.io.max.bytes.per.second",
    "log.level",
)
DESCRIPTION = """\
Do a cluster's background work: merge small segment files into large ones, rewrite small batches, end
what retention ends, delete what is dead. Start as many as you like: jobs are leased, and what one
leaves undone another goes on with. Agents do the same beside their own work if process.roles says so.

  headrace compactor --metastore-url postgresql://headrace@db/headrace --bucket s3://logs/headrace

It prints one line with the word `ready`. SIGTERM lets jobs end, or gives them back.
"""


def add(subparsers: Any) -> None:
    """Register the command."""
    parser = subparsers.add_parser(
        "compactor",
        help="do background work: compaction, retention, deletion",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_settings(parser, SHOWN)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Work until a signal; 0 after a clean stop."""
    return serve(settings_from(args, **{"process.roles": COMPACTOR}))
