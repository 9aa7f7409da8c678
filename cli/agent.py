"""`headrace agent`: one stateless agent in the foreground, with whatever roles the settings give it.

Place: what it is composed of, and how it ends, is serving.py's.
If the process dies here, clients move to the other agents and repeat what was not acknowledged.
"""

from __future__ import annotations

import argparse

from headrace.cli.options import add_settings, settings_from

SHOWN = (
    "metastore.url",
    "bucket",
    "s3.endpoint",
    "kafka.port",
    "http.port",
    "advertised.host",
    "broker.rack",
    "linger.ms",
    "log.level",
)
DESCRIPTION = """\
Run one stateless agent. Start as many as you like on the same metastore and bucket, behind a load
balancer or not: each serves every topic.

  headrace storage format -t $(headrace storage random-uuid) \\
      --metastore-url postgresql://headrace@db/headrace --bucket s3://logs/headrace
  headrace agent --metastore-url postgresql://headrace@db/headrace --bucket s3://logs/headrace

It prints one line with the word `ready` and its addresses once clients can connect. SIGTERM drains.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what the command takes."""
    add_settings(parser, SHOWN)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Serve until a signal; 0 after a clean drain."""
    from headrace.cli.serving import serve  # here, so that --help imports no agent

    return serve(settings_from(args))
