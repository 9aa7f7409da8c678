"""The parser of `headrace`: every command in the overview, and the arguments of the one that was asked for.

Place: under main.py; commands.py names the subcommands.
Invariant: only the module of the command that was asked for is imported.
"""

from __future__ import annotations

import argparse
import difflib
import sys
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from headrace.cli.commands import COMMANDS
from headrace.cli.version import version_line
from headrace.config.shown import without_logins
from headrace.storage.client_text import visible

if TYPE_CHECKING:
    from _typeshed import SupportsWrite

_UNRECOGNIZED = "unrecognized arguments:"
"""How argparse begins its message."""
DESCRIPTION = """\
Headrace: a streaming service that speaks the Kafka protocol, keeps its data in object
storage and its metadata in Postgres.

  headrace dev        run everything on this machine, nothing to install first
  headrace agent      run one stateless agent, for production
  headrace compactor  background work in a separate process
"""


class _Formatter(argparse.RawDescriptionHelpFormatter):
    """Every flag with a default shows it."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        text, default = action.help, action.default
        has_none = default is None or default is False or default == [] or default == argparse.SUPPRESS
        if not text or not action.option_strings or has_none or "default" in text or f"({default})" in text:
            return text
        return f"{text} ({default or 'default: empty'})".replace("%", "%%") if "%" not in text else text


class _Parser(argparse.ArgumentParser):
    """Its errors repeat words of the command line; an address among them may have a password."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **({"formatter_class": _Formatter} | more))

    def error(self, message: str) -> NoReturn:
        super().error(visible(without_logins(message) + _meant(message, _flags(self))))

    def print_help(self, file: SupportsWrite[str] | None = None) -> None:
        """Print the help. argparse ignores that it cannot be written."""
        (file or sys.stdout).write(self.format_help())


def _meant(message: str, known: Collection[str]) -> str:
    """The nearest flag to the first unknown one, as files have it for settings; "" if there is none."""
    if not message.startswith(_UNRECOGNIZED):
        return ""
    unknown = next((word.partition("=")[0] for word in message.split() if word.startswith("--")), "")
    close = difflib.get_close_matches(unknown, known, n=1)
    return f"; did you mean {close[0]}?" if close else ""


def _flags(parser: argparse.ArgumentParser) -> set[str]:
    """Of the parser and of the subcommands that are loaded."""
    found: set[str] = set()
    for action in parser._actions:
        found.update(flag for flag in action.option_strings if flag.startswith("--"))
        for each in action.choices.values() if isinstance(action.choices, dict) else ():
            found |= _flags(each)
    return found


def make_parser(words: Sequence[str], *, complete: bool = False) -> argparse.ArgumentParser:
    """A parser that lists every command and has the arguments of the command in `words`; `complete`: of all."""
    parser = _Parser(prog="headrace", description=DESCRIPTION)
    parser.add_argument("--version", action="version", version=version_line(), help="print the version")
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    asked = next((word for word in words if not word.startswith("-")), None)  # flags before the command take no value
    for command in COMMANDS:
        if command.name != asked and not complete:
            subparsers.add_parser(command.name, help=command.help)
            continue
        module = command.load()
        module.add_arguments(
            subparsers.add_parser(
                command.name,
                help=command.help,
                description=module.DESCRIPTION,
            )
        )
    return parser
