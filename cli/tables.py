"""What a tool found, as a table for people or as JSON for scripts; and the flags that all such tools share.

Place: under `headrace topics`, `groups`, `configs` and `records`.
Invariant: JSON holds what the table shows, under the same names, one document on stdout. If the process dies
here nothing is lost.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from cli.client.cluster import KafkaCluster
from cli.client.transport import client_config
from storage.clock import SystemClock
from storage.errors import InvalidError

Row = Mapping[str, Any]


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Where the cluster is, and in which form to answer."""
    parser.add_argument("--bootstrap-server", "-b", metavar="SERVERS", help="host:port pairs, comma-separated")
    parser.add_argument("--config", "-c", type=Path, metavar="FILE", help="properties file of the admin client")
    parser.add_argument("--json", action="store_true", help="JSON for scripts instead of a table")


def add_yes(parser: argparse.ArgumentParser) -> None:
    """For what cannot be taken back."""
    parser.add_argument("--yes", "-y", action="store_true", help="do not ask for confirmation")


def open_cluster(args: argparse.Namespace) -> KafkaCluster:
    """The cluster that the flags name. ConfigError when they do not."""
    clock = SystemClock()
    return KafkaCluster(
        client_config(args.bootstrap_server, args.config), lambda seconds: asyncio.run(clock.sleep(seconds))
    )


def show(args: argparse.Namespace, rows: Sequence[Row], columns: Sequence[str]) -> None:
    """Print the rows; `columns` in order, for the table."""
    if args.json:
        print(json.dumps([dict(row) for row in rows], default=str))
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        numbers = bool(rows) and all(isinstance(row.get(column), int | None) for row in rows)
        table.add_column(column, justify="right" if numbers else "left", overflow="fold")
    for row in rows:
        table.add_row(*(_cell(row.get(column)) for column in columns))
    Console(soft_wrap=not sys.stdout.isatty(), highlight=False).print(table)


def say(args: argparse.Namespace, text: str, **facts: Any) -> None:
    """One thing that was done."""
    print(json.dumps(facts, default=str) if args.json else text)


def confirm(args: argparse.Namespace, question: str) -> None:
    """Go on only if the person says yes, or said --yes. InvalidError otherwise, also where nobody can be asked."""
    if args.yes:
        return
    if not sys.stdin.isatty():
        raise InvalidError(f"{question} nobody to ask: repeat with --yes")
    if input(f"{question} [y/N] ").strip().lower() not in ("y", "yes"):
        raise InvalidError("not confirmed: nothing was done")


def pairs(given: Sequence[str], what: str) -> dict[str, str]:
    """`key=value` arguments. InvalidError for others."""
    for text in given:
        if "=" not in text or text.startswith("="):
            raise InvalidError(f"not a {what} of the form key=value: {text}")
    return {key: value for key, _, value in (text.partition("=") for text in given)}


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, list | tuple):
        return ",".join(map(str, value)) or "-"
    return str(value)
