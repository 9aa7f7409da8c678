"""`headrace planners`: let database roles plan scans, with no other right.

Place: run by an administrator, with the account that owns the metastore's tables, after `headrace migrate` of a new
version. The views and functions of the roles are in a separate schema.
Invariant of a role: the role has no right to a table or to any other function that reads or changes one. It sees the
topics, their configs and all else of the metadata log, as every Kafka client does, and where records are; it takes
and releases read pins. Each function here runs with its owner's rights and a fixed search_path, so objects that the
role creates are never called.
Invariant: it can be repeated, and is to be after each `headrace migrate` of a new version.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from psycopg import sql

from headrace.cli.options import add_settings, settings_from
from headrace.cli.output import write
from headrace.config.errors import ConfigError
from headrace.metastore.postgres.address import url_with_password
from headrace.metastore.postgres.errors import translated
from headrace.metastore.postgres.pool import connected
from headrace.metastore.postgres.sql_files import Field, Signature, signatures

SCHEMA = "headrace_planning"
FUNCTIONS = (
    "ask_inline_move",
    "assert_life",
    "look_up_extents",
    "list_offsets",
    "own_database",
    "pin_reads",
    "release_pins",
    "server_timeline",
    "wall_ms",
)
"""What a scan calls on its driver, and what its statements call by name."""
VIEWS = {
    "cluster": "cluster_id, incarnation_id, commit_shards, life, system_identifier, timeline, next_timeline,"
    " next_incarnation_id, database_oid, bucket_id, bucket_address",
    "commit_shards": "seq",
    "metadata_head": "next_offset",
    "metadata_log": "record_offset, record",
    "metadata_snapshots": "end_offset, data",
    "schema_migrations": "name",
}
"""Table -> the columns that a scan reads: without the secret of the zones."""


def grant_planning(url: str, roles: Sequence[str]) -> None:
    """Let exactly these roles plan scans; they exist already. Repeat it after an upgrade.

    InvalidError if a role does not exist, or the caller may not grant it.
    """
    with translated("grant planning", writes=False), connected(url) as connection:
        (tables,) = connection.execute("SELECT current_schema()").fetchone() or ("public",)
        (database,) = connection.execute("SELECT current_database()").fetchone() or ("",)
        for statement in _definitions(str(tables)):
            connection.execute(statement)
        for role in roles:
            for grant in (
                "GRANT USAGE ON SCHEMA {schema} TO {role}",
                "GRANT SELECT ON ALL TABLES IN SCHEMA {schema} TO {role}",
                "GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA {schema} TO {role}",
                "ALTER ROLE {role} IN DATABASE {database} SET search_path = {schema}",
            ):
                names = {"schema": SCHEMA, "role": role, "database": str(database)}
                connection.execute(
                    sql.SQL(grant).format(**{name: sql.Identifier(value) for name, value in names.items()})
                )


def _definitions(tables: str) -> list[sql.Composed]:
    """The schema with its views and functions. `tables` is the schema of the metastore."""
    schema, source = sql.Identifier(SCHEMA), sql.Identifier(tables)
    begin = [
        sql.SQL("REVOKE CREATE ON SCHEMA {} FROM PUBLIC").format(source),
        sql.SQL("DROP SCHEMA IF EXISTS {} CASCADE").format(schema),
        sql.SQL("CREATE SCHEMA {}").format(schema),
    ]
    views = [
        sql.SQL("CREATE VIEW {}.{} WITH (security_barrier) AS SELECT {} FROM {}.{}").format(
            schema, sql.Identifier(table), sql.SQL(columns), source, sql.Identifier(table)
        )
        for table, columns in VIEWS.items()
    ]
    functions: list[sql.Composed] = []
    for name in FUNCTIONS:
        functions += _function(signatures()[name], schema, source)
    return [*begin, *views, *functions]


def _function(signature: Signature, schema: sql.Identifier, source: sql.Identifier) -> list[sql.Composed]:
    """The same function with its owner's rights; not for PUBLIC."""
    returns = f"TABLE ({_fields(signature.columns)})" if signature.columns else signature.returns
    selected = ", ".join(column.name for column in signature.columns)
    arguments = ", ".join(field.name for field in signature.parameters)
    called = sql.SQL("{}.{}({})").format(source, sql.Identifier(signature.name), sql.SQL(arguments))
    body = (
        sql.SQL("SELECT {} FROM {}").format(sql.SQL(selected), called)
        if selected
        else sql.SQL("SELECT {}").format(called)
    )
    name = sql.SQL("{}.{}").format(schema, sql.Identifier(signature.name))
    return [
        sql.SQL(
            "CREATE FUNCTION {}({}) RETURNS {} LANGUAGE sql VOLATILE SECURITY DEFINER"
            " SET search_path = pg_catalog, {}, pg_temp AS {}"
        ).format(
            name, sql.SQL(_fields(signature.parameters)), sql.SQL(returns), source, sql.Literal(body.as_string(None))
        ),
        sql.SQL("REVOKE EXECUTE ON FUNCTION {}({}) FROM PUBLIC").format(
            name, sql.SQL(", ".join(field.type for field in signature.parameters))
        ),
    ]


def _fields(fields: Sequence[Field]) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in fields)


DESCRIPTION = """\
Let roles of Postgres plan scans (Spark's source `headrace`, `headrace export`): find topics, offsets and files, and
take read pins. They can read no table and commit nothing. Roles that were named before and are not now lose it.

  psql … -c "CREATE ROLE spark LOGIN PASSWORD '…'"
  headrace planners --role spark --metastore-url postgresql://headrace@db/headrace

Repeat it after each upgrade (`headrace migrate`). The bucket's keys still give access to every topic's records.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("--role", action="append", required=True, help="a role that exists; can be repeated")
    add_settings(parser, ("metastore.url",), every=False)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Grant, and print what was done."""
    settings = settings_from(args)
    if not settings.metastore_url:
        raise ConfigError("metastore.url is not set (--metastore-url)")
    grant_planning(url_with_password(settings), args.role)
    write(f"roles may plan scans: roles={','.join(args.role)} schema={SCHEMA}")
    return 0
