"""`headrace agent`: run one stateless agent in the foreground, with the roles that the
settings name; with --processes several, to use all cores.

Place: a thin command; process/serve.py composes the process and stops it, several_agents.py runs several.
"""

from __future__ import annotations

import argparse

from headrace.cli.options import PREFIX, add_settings, settings_from, whole
from headrace.config.settings import Settings

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

  headrace agent --processes 4 --listeners PLAINTEXT://10.0.0.7:9092 ...

runs four agents, on ports 9092 to 9095, with one HTTP port for all: an agent uses one core.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument(
        "--processes",
        type=whole(1, 100),
        default=1,
        metavar="N",
        help="agents that this command runs, each in its own process; ports and a given node.id count up (1)",
    )
    parser.add_argument("--process-of", help=argparse.SUPPRESS)  # I/N, from the command that runs several
    add_settings(parser, SHOWN)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Serve until a signal; 0 after a clean drain."""
    settings = settings_from(args)
    if args.processes > 1:
        return _run_several(args, settings)
    from headrace.cli.process.loaded import OneOfSeveral, serve  # here, so that --help imports no agent

    if args.process_of:
        index, count = map(int, args.process_of.split("/"))
        return serve(settings, one_of=OneOfSeveral(index, count))
    return serve(settings)


def _run_several(args: argparse.Namespace, settings: Settings) -> int:
    from headrace.cli.children import load_code

    load_code()  # while this process loads its own
    from headrace.cli.several_agents import serve_processes

    passed_on = {key.removeprefix(PREFIX): str(v) for key, v in vars(args).items() if key.startswith(PREFIX) and v}
    if args.config:
        passed_on["config"] = str(args.config)
    return serve_processes(settings, args.processes, passed_on)
