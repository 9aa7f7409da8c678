"""`headrace`: one command, one subcommand a file.

Place: the only module that knows them all. Each subcommand module offers `add(subparsers)` and sets
`run` on its parser.
Invariant: an error that a person can mend is one line on stderr and exit status 1, never a traceback.
"""

from __future__ import annotations

import argparse
import os
import sys

from headrace.cli import (
    agent,
    audit,
    cluster,
    compactor,
    configs,
    dev,
    dump_log,
    groups,
    migrate,
    records,
    storage,
    topics,
    version,
)
from headrace.cli.shell import command as shell
from headrace.config.load import ConfigError
from headrace.storage.errors import HeadraceError

STATUS_SIGPIPE = 141
"""What a shell says of a program that wrote to a pipe that nobody reads."""
DESCRIPTION = """\
Headrace: a streaming service that speaks the Kafka protocol, keeps its data in object
storage and its metadata in Postgres.

  headrace dev        everything on this machine, nothing to install first
  headrace agent      one stateless agent, for production
  headrace compactor  background work in a process of its own
"""


def make_parser() -> argparse.ArgumentParser:
    """The whole command line."""
    parser = argparse.ArgumentParser(
        prog="headrace", description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--version", action="version", version=version.version_line(), help="print the version")
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in (
        dev,
        agent,
        compactor,
        storage,
        migrate,
        audit,
        topics,
        groups,
        configs,
        records,
        cluster,
        dump_log,
        shell,
        version,
    ):
        command.add(subparsers)
    return parser


def main(argv: list[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    try:
        try:
            args = make_parser().parse_args(argv)
            return int(args.run(args) or 0)
        finally:
            sys.stdout.flush()
    except (ConfigError, HeadraceError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # whoever read our output has enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return STATUS_SIGPIPE


if __name__ == "__main__":
    sys.exit(main())
