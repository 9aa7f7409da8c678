"""Settings as command-line flags: every setting is a flag, generated from its declaration.

Place: shared by the commands that open metastore or bucket themselves; tools that connect to a running cluster use
the flags of tables.py. Every command's numeric flags have their types here.
Invariant of numbers: a number that the protocol cannot carry, or that has no meaning there, is a usage error that
names the bounds.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from headrace.config.declared import declared
from headrace.config.docs import descriptions
from headrace.config.link_configs import patterns
from headrace.config.load import load
from headrace.config.patterns import compile_pattern
from headrace.config.settings import Settings

INT16_MAX = 2**15 - 1
INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1


def whole(low: int, high: int) -> Callable[[str], int]:
    """Return a parser for argparse's `type`: a whole number from `low` to `high`."""

    def number(text: str) -> int:
        try:
            found = int(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(f"not a whole number: {text}") from error
        if not low <= found <= high:
            raise argparse.ArgumentTypeError(f"not between {low} and {high}: {text}")
        return found

    return number


SHORT_FORMS = {"broker.rack": "--zone"}
"""A second name for a flag, where users may look for another word."""
PREFIX = "setting:"
STORE = (
    "s3.endpoint", "s3.region", "s3.path.style", "s3.expected.bucket.owner", "azure.endpoint", "gcs.endpoint",
)  # fmt: skip
"""The settings needed to read an object of a bucket, for tools."""


def add_settings(
    parser: argparse.ArgumentParser, shown: tuple[str, ...], *, short_config: bool = True, every: bool = True
) -> None:
    """Add --config (-c) and a flag per setting; `shown` come first, the rest in a separate group.

    The rest is accepted, and listed by --help-all only, without those that go. Without `every` it is not part of the
    usage of a tool.
    Call it last: the usage line lists the command's other flags, and the settings as one word.
    """
    names = ("--config", "-c") if short_config else ("--config",)
    parser.add_argument(*names, type=Path, metavar="FILE", help="properties file with settings (key=value lines)")
    own = parser.format_usage().removeprefix("usage: ").rstrip()
    parser.usage = f"{own} [--SETTING VALUE ...]".replace("%", "%%")
    meanings = descriptions()
    rest = parser.add_argument_group()
    hidden: dict[argparse.Action, str] = {}
    for name in (*shown, *(n for n in meanings if n not in shown)):
        target = parser if name in shown else rest
        meaning = f"{meanings[name]}{_default(name)}".replace("%", "%%")
        flags = [f"--{name.replace('.', '-')}"]
        if name in SHORT_FORMS:
            flags.insert(0, SHORT_FORMS[name])
        visible = name in shown
        flag = target.add_argument(
            *flags, dest=PREFIX + name, metavar="VALUE", help=meaning if visible else argparse.SUPPRESS
        )
        if not visible and not declared()[name].goes:
            hidden[flag] = meaning
    parser.add_argument("--help-all", action=_HelpAll, rest=rest, hidden=hidden, help="show all settings and exit")


class _HelpAll(argparse.Action):
    """--help with the settings that it leaves out."""

    def __init__(
        self,
        option_strings: Sequence[str],
        dest: str,
        rest: argparse._ArgumentGroup,
        hidden: Mapping[argparse.Action, str],
        help: str,
    ) -> None:
        super().__init__(option_strings, dest, nargs=0, default=argparse.SUPPRESS, help=help)
        self._rest, self._hidden = rest, hidden

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        self._rest.title, self._rest.description = (
            "every other setting",
            "also from --config and HEADRACE_* variables",
        )
        for flag, meaning in self._hidden.items():
            flag.help = meaning
        parser.print_help()
        parser.exit()


def _default(name: str) -> str:
    setting = declared()[name]
    default = setting.default
    if default is None or default == "":
        return "" if "nset" in setting.meaning else " (unset)"
    return f" ({str(default).lower() if isinstance(default, bool) else default})"


def settings_from(args: argparse.Namespace, **overrides: object) -> Settings:
    """The settings from file, environment and these flags. Raises ConfigError."""
    flags = {
        key.removeprefix(PREFIX): value
        for key, value in vars(args).items()
        if key.startswith(PREFIX) and value is not None
    }
    return load(path=args.config, environ=os.environ, flags=flags | overrides)


def name_patterns(text: str) -> str:
    """Patterns of names, separated by commas, for argparse."""
    for each in patterns(text):
        try:
            compile_pattern(each)
        except ValueError as error:
            raise argparse.ArgumentTypeError(f"{each!r} is {error}") from error
    return text
