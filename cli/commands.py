"""The subcommands of `headrace`: the table of their modules, the parser of the one that was asked for.

Place: under cli/main.py; `headrace completion` makes the whole parser.
Invariant: only the module of the command that was asked for is imported, so `headrace --help` costs no more than
argparse.
"""

from __future__ import annotations

import argparse
import difflib
import platform
import sys
from collections.abc import Collection, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, Protocol, cast

from headrace import __version__
from headrace.config.addresses import without_logins
from headrace.storage.client_text import visible

if TYPE_CHECKING:
    from _typeshed import SupportsWrite


class CommandModule(Protocol):
    """The interface of a command's module."""

    DESCRIPTION: str
    """The command's `--help` text, with an example."""

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        """Add flags and subcommands; set `run`, which takes the parsed arguments and returns the exit status."""


class Command(NamedTuple):
    """One subcommand."""

    name: str
    module: str
    help: str

    def load(self) -> CommandModule:
        """Import the command's module and everything it uses."""
        return cast(CommandModule, import_module(self.module))


COMMANDS = (
    Command("dev", "headrace.cli.dev", "run everything on this machine, nothing to install first"),
    Command("agent", "headrace.cli.agent", "run one agent"),
    Command("compactor", "headrace.cli.compactor", "run background work: compaction, retention, deletion"),
    Command("storage", "headrace.cli.storage", "format metastore and bucket, or show their cluster"),
    Command("migrate", "headrace.cli.migrate", "create or upgrade the metastore"),
    Command("postgres", "headrace.cli.postgres", "roles, database and standbys of Postgres, as commands"),
    Command("planners", "headrace.cli.planners", "let database roles plan scans, and nothing else"),
    Command("doctor", "headrace.cli.doctor.command", "look at everything a cluster depends on, and say what to change"),
    Command("backup", "headrace.cli.backup", "take or record a backup of Postgres"),
    Command("audit", "headrace.cli.audit", "compare the bucket with the metastore"),
    Command("damage", "headrace.cli.damage", "list damaged records, repair them, or go past them"),
    Command("topics", "headrace.cli.topics", "list, describe, create, alter or delete topics"),
    Command("partitions", "headrace.cli.partitions", "check a partition that fails or is behind"),
    Command("groups", "headrace.cli.groups", "list, describe, reset or delete consumer groups"),
    Command("configs", "headrace.cli.configs", "describe, set or delete configs"),
    Command("users", "headrace.cli.users", "list, create, alter or delete users with passwords"),
    Command("acls", "headrace.cli.acls", "list, create or delete ACLs"),
    Command("quotas", "headrace.cli.quotas", "list, set or delete quotas"),
    Command("clients", "headrace.cli.clients", "show which users and client ids send and get most"),
    Command("features", "headrace.cli.features", "show, raise or lower feature levels"),
    Command("transactions", "headrace.cli.transactions", "list, describe or abort transactions; find hanging ones"),
    Command("records", "headrace.cli.records", "produce, consume and delete records; show offsets"),
    Command("cluster", "headrace.cli.cluster", "show the id of a running cluster, or unregister an agent"),
    Command("console", "headrace.cli.console.command", "show a running cluster in a browser"),
    Command("top", "headrace.cli.top", "show a running cluster on one screen of the terminal"),
    Command("segments", "headrace.cli.segments", "list remote segments, and what happened to them"),
    Command("export", "headrace.cli.export", "write a topic's records to Parquet files"),
    Command("link", "headrace.cli.links", "copy topics of another Kafka cluster here, with their offsets"),
    Command("tables", "headrace.cli.topic_tables", "keep topics as Iceberg tables"),
    Command("dump-log", "headrace.cli.dump_log", "print the metadata log, a snapshot or segment files"),
    Command("shell", "headrace.cli.shell.command", "browse the cluster's metadata"),
    Command(
        "bench", "headrace.cli.bench.command", "measure throughput, latency and cost, also of two systems in turns"
    ),
    Command("cost", "headrace.cli.cost.command", "what a workload needs, and what it costs next to Kafka"),
    Command("completion", "headrace.cli.completion", "print the script for tab completion in bash or zsh"),
    Command("version", "headrace.cli.version", "print the version"),
)
"""Commands in the order of the overview."""


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


def version_line() -> str:
    """Headrace's and Python's version, as one line."""
    return f"headrace {__version__} (Python {platform.python_version()})"
