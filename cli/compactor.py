"""`headrace compactor`: background work in a separate process, in its foreground.

Place: the same as `headrace agent` with process.roles=compactor, without listeners.
Invariant: if the process crashes, the leases of its jobs expire and other workers continue them.
"""

from __future__ import annotations

import argparse

from headrace.cli.options import add_settings, settings_from
from headrace.config.listeners import COMPACTOR, TABLES

SHOWN = (
    "metastore.url",
    "bucket",
    "s3.endpoint",
    "http.port",
    "compactor.threads",
    "compactor.io.max.bytes.per.second",
    "log.level",
)
DESCRIPTION = """\
Do a cluster's background work: merge small segment files into large ones, rewrite small batches, apply
retention, delete dead files. You can start any number of these processes: jobs are leased, and if one
process leaves a job unfinished, another continues it. Agents do the same work if process.roles includes
compactor. With tables.catalog.name the process keeps the Iceberg tables of topics, too.

  headrace compactor --metastore-url postgresql://headrace@db/headrace --bucket s3://logs/headrace

Prints one line with the word `ready`. On SIGTERM it finishes its jobs or returns them to the queue.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    add_settings(parser, SHOWN)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Work until a signal arrives; 0 after a clean stop."""
    from headrace.cli.process.serve import serve  # here, so that --help imports no agent

    also = f",{TABLES}" if settings_from(args).tables_catalog_name else ""
    return serve(settings_from(args, **{"process.roles": COMPACTOR + also}))
