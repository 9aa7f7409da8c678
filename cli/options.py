"""Settings as command-line flags: every setting is a flag, generated from its declaration.

Place: shared by the commands that open metastore or bucket themselves; tools that connect to a running cluster
use the flags of tables.py.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from headrace.config.docs import descriptions
from headrace.config.load import load
from headrace.config.settings import Settings

SHORT_FORMS = {"broker.rack": "--zone"}
"""A second name for a flag, where users may look for another word."""
PREFIX = "setting:"
S3 = ("s3.endpoint", "s3.region", "s3.path.style", "s3.expected.bucket.owner")
"""The settings needed to read an object of a bucket, for tools."""


def add_settings(
    parser: argparse.ArgumentParser, shown: tuple[str, ...], *, short_config: bool = True, every: bool = True
) -> None:
    """Add --config (-c) and a flag per setting; `shown` come first, the rest in a separate group.

    Without `every` the rest is accepted but not listed: the help of a tool lists only the settings that matter to it.
    Call it last: the usage line lists the command's other flags, and the settings as one word.
    """
    names = ("--config", "-c") if short_config else ("--config",)
    parser.add_argument(*names, type=Path, metavar="FILE", help="properties file with settings (key=value lines)")
    own = parser.format_usage().removeprefix("usage: ").rstrip()
    parser.usage = f"{own} [--SETTING VALUE ...]".replace("%", "%%")
    meanings = descriptions()
    group = ("every other setting", "also from --config and HEADRACE_* variables")
    rest = parser.add_argument_group(*group) if every else parser
    for name in (*shown, *(n for n in meanings if n not in shown)):
        target = parser if name in shown else rest
        meaning = meanings[name].replace("%", "%%") if every or name in shown else argparse.SUPPRESS
        flags = [f"--{name.replace('.', '-')}"]
        if name in SHORT_FORMS:
            flags.insert(0, SHORT_FORMS[name])
        target.add_argument(*flags, dest=PREFIX + name, metavar="VALUE", help=meaning)


def settings_from(args: argparse.Namespace, **overrides: object) -> Settings:
    """The settings from file, environment and these flags. Raises ConfigError."""
    flags = {
        key.removeprefix(PREFIX): value
        for key, value in vars(args).items()
        if key.startswith(PREFIX) and value is not None
    }
    return load(path=args.config, environ=os.environ, flags=flags | overrides)
