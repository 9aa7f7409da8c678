"""`headrace version`: what is installed."""

from __future__ import annotations

import argparse
import platform
from importlib.metadata import version
from typing import Any


def add(subparsers: Any) -> None:
    """Register the command."""
    parser = subparsers.add_parser("version", help="print the version")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print Headrace's and Python's version."""
    print(f"headrace {version('headrace')} (Python {platform.python_version()})")
    return 0
