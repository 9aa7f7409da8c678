"""`headrace agent`: run one stateless agent in the foreground, with the roles that the settings name.

Place: a thin command; process/serve.py composes the process and stops it.
"""

from __future__ import annotations

import argparse

from headrace.cli.options import add_settings, settings_from

SHOWN = (
    "metastore.url",
    "bucket",
    "s3.endpoint",
    "listeners",
    "advertised.listeners",
    "http.port",
    "broker.rack",
    "linger.ms",
    "log.level",
)
DESCRIPTION = """\
Run one stateless agent. You can start any number of agents on the same metastore and bucket, with or
without a load balancer: each agent serves every topic.

  headrace storage format -t $(headrace storage random-uuid) \\
      --metastore-url postgresql://headrace@db/headrace --bucket s3://logs/headrace
  headrace agent --metastore-url postgresql://headrace@db/headrace --bucket s3://logs/headrace

Prints one line with the word `ready` and its addresses when clients can connect. SIGTERM drains the agent.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    add_settings(parser, SHOWN)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Serve until a signal; 0 after a clean drain."""
    from headrace.cli.process.serve import serve  # here, so that --help imports no agent

    return serve(settings_from(args))
