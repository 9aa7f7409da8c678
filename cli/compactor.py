"""`headrace compactor`: background work in a separate process, in its foreground.

Place: `headrace agent` with process.roles=compactor, under a name of its own and without listeners.
If the process dies here, the leases of its jobs run out and other workers go on.
"""

from __future__ import annotations

import argparse

from headrace.cli.options import add_settings, settings_from
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


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what the command takes."""
    add_settings(parser, SHOWN)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Work until a signal; 0 after a clean stop."""
    from headrace.cli.serving import serve  # here, so that --help imports no agent

    return serve(settings_from(args, **{"process.roles": COMPACTOR}))
