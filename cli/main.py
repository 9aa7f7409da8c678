"""`headrace`: one command with one file per subcommand.

Place: the entry point; commands.py names the subcommands.
Invariant: only the module of the command that was asked for is imported. An error that the user can fix is one line
on stderr and exit status 1, never a traceback.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from headrace.cli.commands import COMMANDS
from headrace.cli.version import version_line
from headrace.config.errors import ConfigError
from headrace.config.shown import without_logins
from headrace.storage.errors import HeadraceError

STATUS_SIGPIPE = 141
"""The exit status that shells use for a program that wrote to a closed pipe."""
DESCRIPTION = """\
Headrace: a streaming service that speaks the Kafka protocol, keeps its data in object
storage and its metadata in Postgres.

  headrace dev        run everything on this machine, nothing to install first
  headrace agent      run one stateless agent, for production
  headrace compactor  background work in a separate process
"""


class _Parser(argparse.ArgumentParser):
    """Its errors repeat words of the command line; an address among them may have a password."""

    def error(self, message: str) -> NoReturn:
        super().error(without_logins(message))


def make_parser(words: Sequence[str]) -> argparse.ArgumentParser:
    """A parser that lists every command and has the arguments of the command in `words`."""
    parser = _Parser(prog="headrace", description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--version", action="version", version=version_line(), help="print the version")
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    asked = next((word for word in words if not word.startswith("-")), None)  # flags before the command take no value
    for command in COMMANDS:
        if command.name != asked:
            subparsers.add_parser(command.name, help=command.help)
            continue
        module = command.load()
        module.add_arguments(
            subparsers.add_parser(
                command.name,
                help=command.help,
                description=module.DESCRIPTION,
                formatter_class=argparse.RawDescriptionHelpFormatter,
            )
        )
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    words = sys.argv[1:] if argv is None else argv
    try:
        try:
            args = make_parser(words).parse_args(words)
            return int(args.run(args) or 0)
        finally:
            sys.stdout.flush()
    except (ConfigError, HeadraceError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the program that reads our output has closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return STATUS_SIGPIPE


if __name__ == "__main__":
    sys.exit(main())
