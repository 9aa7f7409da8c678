"""`headrace tables`: create, list, show, alter, pause, resume, detach and drop the Iceberg tables of topics; delete
their rows.

Place: reads metastore, bucket and catalog directly, with or without agents; the role `tables` does the appending.
Invariant: a table that Headrace did not create is never changed. A refusal is one line on stderr and exit status 1;
nothing is half-written then.
"""

from __future__ import annotations

import argparse
import asyncio
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.cli.options import PREFIX, STORE, add_settings, settings_from
from headrace.cli.output import write
from headrace.cli.tables import add_yes, confirm, pairs, say, show
from headrace.config.declared import declared
from headrace.config.errors import ConfigError
from headrace.config.settings import Settings
from headrace.config.table_configs import APPEND, UPSERT, VALUE_FORMATS, default_name
from headrace.storage.errors import InvalidError
from headrace.tables.extra import require_tables

if TYPE_CHECKING:
    from headrace.tables.creating import Values
    from headrace.tables.open_tables import OpenTables

DESCRIPTION = """\
Iceberg tables of topics: each committed record once, read from the bucket without an agent.

  headrace tables create orders -b 127.0.0.1:9092
  headrace tables create orders --partition-by day --from latest -b 127.0.0.1:9092
  headrace tables create orders --value-format registry -b 127.0.0.1:9092
  headrace tables create customers --mode upsert -b 127.0.0.1:9092
  headrace tables show orders -b 127.0.0.1:9092
  headrace tables list --json -b 127.0.0.1:9092
  headrace tables pause orders -b 127.0.0.1:9092
  headrace tables resume orders -b 127.0.0.1:9092
  headrace tables alter orders --retention-ms 2592000000 -b 127.0.0.1:9092
  headrace tables delete-rows orders --key customer-7 -b 127.0.0.1:9092
  headrace tables detach orders --upkeep -b 127.0.0.1:9092

A process with the role tables appends what is new: headrace dev --tables, or headrace compactor with
tables.catalog.name. -b takes the settings that are not given from an agent (headrace dev); elsewhere
give metastore.url, bucket and tables.catalog.* by flags, variables or --config.
"""
ACTIONS = "{list,create,show,alter,pause,resume,delete-rows,detach,drop}"
FROM_AGENT = (
    "metastore.url", "bucket", "s3.endpoint", "s3.region", "s3.path.style", "azure.endpoint", "gcs.endpoint",
    "tables.catalog.name", "tables.catalog.uri", "tables.warehouse", "tables.namespace",
)  # fmt: skip
TOLERANCES = ("none", "invalid_data", "all")
_LIST = ("table", "topic", "mode", "condition", "records", "lag", "waited_ms", "reason")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    commands = parser.add_subparsers(title="commands", metavar=ACTIONS, required=True)
    listing = commands.add_parser("list", help="list the tables, and how far each is")
    creating = commands.add_parser("create", help="create the table of a topic")
    _add_definition(creating)
    showing = commands.add_parser("show", help="show a table, and the lines that read it")
    altering = commands.add_parser("alter", help="change how long a table keeps its rows")
    altering.add_argument(
        "--retention-ms", type=int, required=True, metavar="MS", help="rows with an older record are deleted (-1: none)"
    )
    deleting = commands.add_parser(
        "delete-rows", help="count the rows of a condition, and delete them with --yes; also of a dead-letter table"
    )
    _delete_flags(deleting)
    pausing = commands.add_parser("pause", help="stop appending until it is resumed")
    pausing.add_argument("--reason", default="paused by a user", help="shown to others")
    resuming = commands.add_parser("resume", help="append again; also after a rollback")
    resuming.add_argument(
        "--at",
        choices=("rows", "offsets", "log"),
        help="of a table that is stopped: after its rows (what was rolled back is appended again), at its offsets"
        " (what was rolled back stays out), or where the log ends (rows that the log lost are deleted)",
    )
    resuming.add_argument("--errors-tolerance", choices=TOLERANCES, help="the table's from now on, as for create")
    detaching = commands.add_parser("detach", help="keep the table of a topic that was deleted")
    detaching.add_argument(
        "--upkeep", action="store_true", help="go on with its upkeep: retention, small files, old snapshots"
    )
    dropping = commands.add_parser("drop", help="remove a table from the catalog")
    dropping.add_argument("--purge", action="store_true", help="delete its files, too")
    add_yes(dropping)
    for command in (showing, altering, pausing, resuming, deleting, detaching, dropping):
        command.add_argument("table")
    work = {
        listing: _list, creating: _create, showing: _show, altering: _alter, pausing: _pause, resuming: _resume,
        deleting: _delete_rows, detaching: _detach, dropping: _drop,
    }  # fmt: skip
    for command, run_it in work.items():
        command.add_argument("--json", action="store_true", help="JSON for scripts")
        command.add_argument(
            "--bootstrap-server", "-b", metavar="SERVERS", help="agents that show the settings which are not given"
        )
        names = ("metastore.url", "bucket", "tables.catalog.name", "tables.catalog.uri", "tables.warehouse")
        add_settings(command, (*names, "tables.namespace", *STORE), every=False)
        command.set_defaults(run=run, work=run_it)


def _add_definition(creating: argparse.ArgumentParser) -> None:
    """Add the flags for what a table is from its creation on."""
    creating.add_argument("topic")
    creating.add_argument("--table", metavar="NAME", help="name of the table (the topic's, with _ for . and -)")
    creating.add_argument(
        "--from",
        dest="start",
        default="earliest",
        metavar="START",
        help="earliest (default), latest, or milliseconds since 1970: the first record",
    )
    creating.add_argument(
        "--partition-by",
        action="append",
        default=[],
        metavar="HOW",
        help="day or partition (of the record), a column of the value, or year, month, day, hour, bucket[N] or"
        " truncate[N] of one: day(created), bucket[16](customer); may be given several times",
    )
    creating.add_argument(
        "--value-format",
        default="binary",
        choices=VALUE_FORMATS,
        help="binary (default): one column; registry: Avro or JSON in Confluent's wire format; json: columns are what"
        " is there; avro, json-schema: values of --schema-file",
    )
    creating.add_argument("--schema-file", metavar="PATH", help="the schema of --value-format avro or json-schema")
    creating.add_argument(
        "--errors-tolerance",
        default="invalid_data",
        choices=TOLERANCES,
        help="what goes to the dead-letter table and does not pause the table: nothing, records that do not fit"
        " (default), records with a schema that the table cannot follow, too",
    )
    creating.add_argument(
        "--mode",
        default=APPEND,
        choices=(APPEND, UPSERT),
        help="append (default): a row per record; upsert: a row per key, for a compacted topic or with --key-columns;"
        " headrace-spark-tables merges the records",
    )
    creating.add_argument(
        "--key-columns",
        type=lambda text: tuple(filter(None, map(str.strip, text.split(",")))),
        default=(),
        metavar="COLUMNS",
        help="columns of the value that make the key of --mode upsert, separated by commas; key is the record's",
    )
    creating.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="a property of the Iceberg table"
    )
    creating.add_argument(
        "--retention-ms", type=int, default=-1, metavar="MS", help="rows with an older record are deleted (-1: none)"
    )


def _delete_flags(deleting: argparse.ArgumentParser) -> None:
    """Add the flags that say which rows go, and how."""
    which = deleting.add_mutually_exclusive_group(required=True)
    which.add_argument(
        "--where", metavar="CONDITION", help="for example \"kafka.timestamp < '2026-01-01T00:00:00+00:00'\""
    )
    which.add_argument("--key", metavar="TEXT", help="rows of records with this key, in UTF-8")
    deleting.add_argument("--yes", "-y", action="store_true", help="delete them; otherwise they are only counted")
    deleting.add_argument(
        "--expire-snapshots",
        action="store_true",
        help="with --yes: remove older snapshots at once, and with them the files that have the rows",
    )


def run(args: argparse.Namespace) -> int:
    """Do it; 0, or 1 for a refusal."""
    require_tables()
    if args.work is _drop:
        confirm(args, f"drop table {args.table}{' and delete its files' if args.purge else ''}?")
    settings = _settings(args)
    for name, value in (("metastore.url", settings.metastore_url), ("bucket", settings.bucket)):
        if not value:
            raise ConfigError(f"{name} is not set (--{name.replace('.', '-')}, or -b with an agent)")
    asyncio.run(_run(args, settings))
    return 0


async def _run(args: argparse.Namespace, settings: Settings) -> None:
    from headrace.tables.open_tables import open_tables  # here: it needs pyiceberg

    async with open_tables(settings) as tables:
        await args.work(args, tables)


def _settings(args: argparse.Namespace) -> Settings:
    """Return the settings. If an agent is named, those of FROM_AGENT that are not given come from it.

    A flag or an environment variable gives a value also if it is the default; the file only if it is another one.
    """
    settings = settings_from(args)
    if not args.bootstrap_server:
        return settings
    from headrace.scan.cluster import agent_configs

    settings_by_name = declared()

    def is_given(name: str) -> bool:
        setting = settings_by_name[name]
        has_flag = getattr(args, f"{PREFIX}{name}", None) is not None
        is_at_default = getattr(settings, setting.field) == setting.default
        return has_flag or setting.environment in os.environ or not is_at_default

    wanted = [name for name in FROM_AGENT if not is_given(name)]
    from_agent = agent_configs(args.bootstrap_server, wanted) if wanted else {}
    return settings_from(args, **from_agent)


async def _create(args: argparse.Namespace, tables: OpenTables) -> None:
    from headrace.tables.worker import KEPT_BY_SPARK

    name = args.table or default_name(args.topic)
    properties = pairs(args.set, "property")
    await tables.create(
        name,
        args.topic,
        args.start,
        layout=args.partition_by,
        properties=properties,
        values=_values(args),
        retention_ms=args.retention_ms,
    )
    identifier = f"{tables.catalog.namespace}.{name}"
    kept = f". {KEPT_BY_SPARK}; the role tables does not" if args.mode == UPSERT else ""
    say(args, f"created: {identifier}{kept}", table=identifier, topic=args.topic, mode=args.mode)


def _values(args: argparse.Namespace) -> Values:
    from headrace.tables.creating import Values

    text = None
    if args.schema_file is not None:
        try:
            text = Path(args.schema_file).read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise InvalidError(f"--schema-file cannot be read: {error}") from error
    return Values(args.value_format, text, args.errors_tolerance, args.mode == UPSERT, args.key_columns)


async def _list(args: argparse.Namespace, tables: OpenTables) -> None:
    show(args, await tables.rows(), _LIST)


async def _show(args: argparse.Namespace, tables: OpenTables) -> None:
    found = await tables.describe(args.table)
    if args.json:
        say(args, "", **found)
        return
    write(_text(found))


def _text(found: dict[str, Any]) -> str:
    head = [
        f"{key}: {found[key]}" for key in ("table", "topic", "topic_id", "mode", "condition", "records", "snapshot")
    ]
    if found["reason"]:
        head.append(f"reason: {found['reason']}")
    if found["retention_ms"] >= 0:
        head.append(f"retention: {found['retention_ms']} ms")
    if (letters := found["dead_letters"]) is not None:
        head.append(f"dead letters: {letters['table']}, records {letters['records']}, due {letters['due']}")
    partitions = [
        f"partition {each['partition']}: offset {each['offset']}, lag {each['lag']}" for each in found["partitions"]
    ]
    gaps = [f"missing: partition {g['partition']}, offsets {g['start']} to {g['end'] - 1}" for g in found["gaps"]]
    reading = [f"\n{engine}:\n{lines}" for engine, lines in found["read_with"].items()]
    return "\n".join([*head, *partitions, *gaps, *reading])


async def _pause(args: argparse.Namespace, tables: OpenTables) -> None:
    if not args.reason.strip():
        raise InvalidError("--reason is empty")
    await tables.pause(args.table, args.reason.strip())
    say(args, f"paused: {args.table}", table=args.table, condition="paused")


async def _resume(args: argparse.Namespace, tables: OpenTables) -> None:
    await tables.resume(args.table, args.at, args.errors_tolerance)
    say(args, f"resumed: {args.table}", table=args.table, condition="following")


async def _alter(args: argparse.Namespace, tables: OpenTables) -> None:
    await tables.alter(args.table, retention_ms=args.retention_ms)
    say(args, f"altered: {args.table}", table=args.table, retention_ms=args.retention_ms)


async def _delete_rows(args: argparse.Namespace, tables: OpenTables) -> None:
    found = await tables.delete_rows(args.table, args.where, args.key, yes=args.yes, expires=args.expire_snapshots)
    what = f"rows {found['rows']}, files {found['files']} of {args.table}"
    if not args.yes:
        say(args, f"would be deleted: {what}; repeat with --yes", **found)
        return
    say(args, f"deleted: {what}; snapshots before that which still have them: {found['snapshots']}", **found)


async def _detach(args: argparse.Namespace, tables: OpenTables) -> None:
    await tables.detach(args.table, with_upkeep=args.upkeep)
    kept = "with its upkeep" if args.upkeep else "as it is"
    say(args, f"detached: {args.table} is kept {kept}", table=args.table, condition="detached", upkeep=args.upkeep)


async def _drop(args: argparse.Namespace, tables: OpenTables) -> None:
    await tables.drop(args.table, purge=args.purge)
    say(args, f"dropped: {args.table}", table=args.table)
