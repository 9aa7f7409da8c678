"""Output of the tools, as a table for people or as JSON for scripts, with the flags that they share.

Place: under `headrace topics`, `groups`, `configs` and `records`; other commands take the text of times from here.
Invariant of times: any int64 of milliseconds has a text. A producer may write any time.
Invariant: JSON holds what the table shows, one document on stdout: column names in lower case with `_` for `-`, true
and false, numbers, null for unknown values.
"""

from __future__ import annotations

import argparse
import datetime
import json
import sys
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from headrace.cli.output import write, write_error
from headrace.cli.plain_console import cell, table_console
from headrace.cli.record_json import plain
from headrace.config.load import BOOTSTRAP_SERVER
from headrace.protocol.client.cluster import KafkaCluster
from headrace.protocol.client.transport import client_config
from headrace.storage.client_text import one_line
from headrace.storage.errors import HeadraceError, InvalidError


def iso_time(time_ms: int) -> str:
    """2026-01-31T12:00:00.250+00:00; `N ms` outside of the years 1 to 9999."""
    try:
        return datetime.datetime.fromtimestamp(time_ms / 1000, datetime.UTC).isoformat(timespec="milliseconds")
    except (ValueError, OverflowError, OSError):
        return f"{time_ms} ms"


Row = Mapping[str, Any]
CLIENT_FILE = ("--config", "--command-config", "-c")


def add_flags(parser: argparse.ArgumentParser, *, file_names: Sequence[str] = CLIENT_FILE) -> None:
    """The address of the cluster, and the output format. `file_names`: of the flag for the client's file."""
    parser.add_argument(
        "--bootstrap-server", "-b", metavar="SERVERS", help=f"host:port pairs, comma-separated (${BOOTSTRAP_SERVER})"
    )
    parser.add_argument(
        *file_names,
        dest="config",
        type=client_file,
        metavar="FILE",
        help="properties file of the admin client",
    )
    parser.add_argument("--json", action="store_true", help="JSON for scripts instead of a table")


def client_file(text: str) -> Path:
    """The file; a config of a topic, as Kafka's tools take it under this name, is refused with the right flag."""
    if "=" in text and not Path(text).exists():
        raise argparse.ArgumentTypeError(
            f"{text}: not a file with settings of the client; for a config of a topic: --set {text}"
        )
    return Path(text)


def add_yes(parser: argparse.ArgumentParser) -> None:
    """Add the option --yes, for operations that cannot be undone."""
    parser.add_argument("--yes", "-y", action="store_true", help="do not ask for confirmation")


def open_cluster(args: argparse.Namespace) -> KafkaCluster:
    """The cluster that the flags name. ConfigError if they name none."""
    return KafkaCluster.of(client_config(args.bootstrap_server, args.config))


def show(args: argparse.Namespace, rows: Sequence[Row], columns: Sequence[str]) -> None:
    """Print the rows; `columns` are the table's columns in order."""
    if args.json:
        write(json.dumps(plain(list(rows))))
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        numbers = bool(rows) and all(_is_number(row.get(column)) for row in rows)
        table.add_column(column.upper().replace("_", "-"), justify="right" if numbers else "left", overflow="fold")
    for row in rows:
        table.add_row(*(cell(_cell(row.get(column))) for column in columns))
    table_console().print(table)


def say(args: argparse.Namespace, text: str, **facts: Any) -> None:
    """Report one thing that was done."""
    write(json.dumps(plain(facts)) if args.json else text)


def do_each(args: argparse.Namespace, what: str, names: Iterable[str], done: str, work: Callable[[str], None]) -> int:
    """Do `work` for each name; report for each that it is `done`, or the error. The exit status: 1 if any failed."""
    rows: list[Row] = []
    for name in names:
        try:
            work(name)
        except HeadraceError as error:
            rows.append({what: name, "outcome": "failed", "error": str(error)})
            if not args.json:
                write_error(f"error: {error}")
        else:
            rows.append({what: name, "outcome": done, "error": None})
            if not args.json:
                write(f"{done}: {one_line(name)}", flush=True)
    if args.json:
        show(args, rows, ())
    return 1 if any(row["error"] for row in rows) else 0


def confirm(args: argparse.Namespace, question: str) -> None:
    """Continue only if the user confirms, or gave --yes. InvalidError otherwise, also if there is no terminal to
    ask.
    """
    if args.yes:
        return
    if not sys.stdin.isatty():
        raise InvalidError(f"{question} no terminal to ask on: repeat with --yes")
    try:
        answer = input(f"{one_line(question)} [y/N] ")
    except EOFError:
        answer = ""
    if answer.strip().lower() not in ("y", "yes"):
        raise InvalidError("not confirmed: nothing was done")


def pairs(given: Sequence[str], what: str) -> dict[str, str]:
    """`key=value` arguments with unique keys. InvalidError for others."""
    found = key_values(given, what)
    refuse_twice([key for key, _ in found], what)
    return dict(found)


def key_values(given: Sequence[str], what: str) -> list[tuple[str, str]]:
    """`key=value` arguments; keys may repeat. InvalidError for others."""
    for text in given:
        if "=" not in text or text.startswith("="):
            raise InvalidError(f"not a {what} of the form key=value: {text}")
    return [(key, value) for key, _, value in (text.partition("=") for text in given)]


def refuse_twice(names: Sequence[str], what: str) -> None:
    """InvalidError, with the name, for a name that is given more than once."""
    for name in names:
        if names.count(name) > 1:
            raise InvalidError(f"{what} given twice: {name}")


def _is_number(value: Any) -> bool:
    return value is None or (isinstance(value, int) and not isinstance(value, bool))


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, uuid.UUID):
        return str(plain(value))
    if isinstance(value, list | tuple):
        return ",".join(map(str, value)) or "-"
    return str(value)
