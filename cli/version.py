"""`headrace version` and `headrace --version`: what is installed."""

from __future__ import annotations

import argparse

from headrace.cli.commands import version_line
from headrace.cli.output import write

DESCRIPTION = "Print the version of Headrace and of the Python that runs it."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print Headrace's and Python's version."""
    write(version_line())
    return 0
