"""`headrace completion`: the script that completes commands, flags and their values in a shell.

Place: shtab makes it from the parser of all commands.
Invariant: the script is complete in itself; nothing is started while a user types.
"""

from __future__ import annotations

import argparse

SHELLS = ("bash", "zsh")
DESCRIPTION = """\
Print the script for tab completion.

  eval "$(headrace completion bash)"
  headrace completion zsh > ~/.zfunc/_headrace
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("shell", choices=SHELLS)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the script."""
    import shtab  # here: other commands do not need it

    from headrace.cli.commands import make_parser
    from headrace.cli.output import write

    write(shtab.complete(make_parser((), complete=True), args.shell))
    return 0
