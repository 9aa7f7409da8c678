"""The parser of `headrace`: every command in the overview, and the arguments of the one that was asked for.

Place: under main.py; commands.py names the subcommands.
Invariant: only the module of the command that was asked for is imported.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, NoReturn

from headrace.cli.commands import COMMANDS
from headrace.cli.version import version_line
from headrace.config.shown import without_logins

if TYPE_CHECKING:
    from _typeshed import SupportsWrite

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

    def print_help(self, file: SupportsWrite[str] | None = None) -> None:
        """Print the help. argparse ignores that it cannot be written."""
        (file or sys.stdout).write(self.format_help())


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
