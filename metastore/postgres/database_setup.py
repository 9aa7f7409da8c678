"""Roles, database and rights that Headrace needs in Postgres, as statements that change only what is missing. Pure, but
for `missing` and `apply`.

    owner     owns the database and its tables: `headrace storage format`, `migrate`, `planners`
    agent     agents, compactors, Spark's drivers, audit and damage: reads and writes rows, empties tables, makes none
    reader    doctor, console and top: reads, and sees all sessions and standbys (pg_monitor)

Place: `headrace postgres setup`, run by an administrator of the server.
Invariant: a step is a query of Postgres' catalogs that answers the statement to execute, or no row if nothing is to be
done. psql executes the answers by \\gexec, `apply` in the same way. So each step can be repeated. No statement has a
password: `set_password` sends a hash.
The reader cannot read the secret of the zones (table cluster): that step needs the table, so the setup is repeated
after the first `headrace storage format`.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import psycopg
from psycopg import sql

from headrace.config.settings import Settings
from headrace.metastore.postgres.address import parsed
from headrace.metastore.postgres.errors import translated
from headrace.metastore.postgres.pool import IDLE_IN_TRANSACTION_TIMEOUT_MS, SINGLE_CONNECT_TIMEOUT_S
from headrace.metastore.postgres.server_check import ENCODING, check_version
from headrace.storage.errors import InvalidError

NAME_BYTES_MAX = 63
"""Longer names are cut by Postgres."""
AGENT_RIGHTS = ("SELECT", "INSERT", "UPDATE", "DELETE", "TRUNCATE")
_HASHED = "SCRAM-SHA-256"
_SCHEMA = "public"
_TABLES = f"c.relkind IN ('r', 'p', 'v') AND c.relnamespace = '{_SCHEMA}'::regnamespace"
_SECRETS = "('zone_secret', 'zone_secret_other')"
"""Columns of the table cluster that only agents read."""
_RECORDS = ", ".join(f"{_SCHEMA}.inline_files{part}" for part in ("", *(f"_{slot}" for slot in range(16))))
"""Tables with bytes of records, which only agents read."""
_OF_RECORDS = "c.relname ~ '^inline_files(_[0-9]+)?$'"

Connection = psycopg.Connection[tuple[Any, ...]]


class Names(NamedTuple):
    """Names of the database and its roles. InvalidError by `check` if they cannot be."""

    database: str = "headrace"
    owner: str = "headrace"
    agent: str = "headrace_agent"
    reader: str = "headrace_reader"

    def check(self) -> Names:
        """Return them. InvalidError for a name that Postgres would cut or refuse, and for two equal roles."""
        for name in self:
            if not name or len(name.encode()) > NAME_BYTES_MAX or not name.isprintable():
                raise InvalidError(f"not a name for Postgres: {name!r} (1 to {NAME_BYTES_MAX} bytes, all printable)")
            if name.startswith("pg_") or name in ("public", "none"):
                raise InvalidError(f"the name is reserved by Postgres: {name}")
        if len({self.owner, self.agent, self.reader}) < 3:
            raise InvalidError("owner, agent and reader: three different roles are needed")
        return self


class SetupStep(NamedTuple):
    """One thing that must be so. `query` answers the statement that makes it so; no row: it is so."""

    what: str
    query: str


def server_steps(names: Names) -> list[SetupStep]:
    """Return what is done in any database of the server: roles and the database."""
    roles = [
        _step(
            f"role {role}: {what}",
            _fill("CREATE ROLE {role} LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE", role=role),
            _fill("EXISTS (SELECT FROM pg_roles WHERE rolname = {role:l})", role=role),
        )
        for role, what in (
            (names.owner, "owns the tables"),
            (names.agent, "agents and compactors"),
            (names.reader, "doctor, console and top"),
        )
    ]
    return [
        *roles,
        _step(
            "the reader sees sessions and standbys of all roles",
            _fill("GRANT pg_monitor TO {role}", role=names.reader),
            _fill("pg_has_role({role:r}, 'pg_monitor', 'USAGE')", role=names.reader),
        ),
        _step(
            "an administrator who is no superuser may act for the owner",
            _fill("GRANT {role} TO CURRENT_USER", role=names.owner),
            _fill(
                "pg_has_role({role:r}, 'USAGE') AND (current_setting('server_version_num')::int < 160000"
                " OR CASE WHEN current_setting('server_version_num')::int >= 160000"
                " THEN pg_has_role({role:r}, 'SET') END)",
                role=names.owner,
            ),
        ),
        _step(
            "the database, in UTF-8: names of topics and clients may have any character",
            _fill(
                f"CREATE DATABASE {{database}} OWNER {{owner}} ENCODING '{ENCODING}' TEMPLATE template0",
                database=names.database,
                owner=names.owner,
            ),
            _fill("EXISTS (SELECT FROM pg_database WHERE datname = {database:l})", database=names.database),
        ),
    ]


def database_steps(names: Names, settings: Settings) -> list[SetupStep]:
    """Return what is done in the database itself."""
    return [
        _durability(names),
        *_timeouts(names, settings),
        _unlogged_records(names),
        _step(
            "only the owner makes tables and functions",
            f"REVOKE CREATE ON SCHEMA {_SCHEMA} FROM PUBLIC",
            f"NOT has_schema_privilege('public', '{_SCHEMA}', 'CREATE')",
        ),
        *_rights_of_agents(names),
        *_rights_of_readers(names),
    ]


def _durability(names: Names) -> SetupStep:
    return _step(
        "commits are durable here with any default of the server",
        _fill("ALTER DATABASE {database} SET synchronous_commit = 'on'", database=names.database),
        "(SELECT reset_val FROM pg_settings WHERE name = 'synchronous_commit') NOT IN ('off', 'local')"
        + _fill(
            " OR EXISTS (SELECT FROM pg_db_role_setting s JOIN pg_database d ON d.oid = s.setdatabase"
            " WHERE d.datname = {database:l} AND s.setrole = 0 AND 'synchronous_commit=on' = ANY (s.setconfig))",
            database=names.database,
        ),
    )


def _timeouts(names: Names, settings: Settings) -> Iterator[SetupStep]:
    """Yield what each connection asks for itself, for those that come through a pooler, which ignores that."""
    values = {
        "statement_timeout": f"{settings.metastore_statement_timeout_ms}ms",
        "lock_timeout": f"{settings.metastore_lock_timeout_ms}ms",
        "idle_in_transaction_session_timeout": f"{IDLE_IN_TRANSACTION_TIMEOUT_MS}ms",
        "jit": "off",
    }
    for name, value in values.items():
        filled = {"role": names.agent, "database": names.database, "value": value, "pair": f"{name}={value}"}
        yield _step(
            f"agents behind a pooler: {name}",
            _fill(f"ALTER ROLE {{role}} IN DATABASE {{database}} SET {name} = {{value:l}}", **filled),
            _fill(
                "EXISTS (SELECT FROM pg_db_role_setting s JOIN pg_database d ON d.oid = s.setdatabase"
                " JOIN pg_roles r ON r.oid = s.setrole WHERE d.datname = {database:l} AND r.rolname = {role:l}"
                " AND {pair:l} = ANY (s.setconfig))",
                **filled,
            ),
        )


def _unlogged_records(names: Names) -> SetupStep:
    """Keep parameters out of the log. Only a superuser may set it; without one, SECURITY.md says what to ask for."""
    return _step(
        "records, which small files have, are in no log of slow statements",
        _fill(
            "ALTER ROLE {role} IN DATABASE {database} SET log_parameter_max_length = 0",
            role=names.agent,
            database=names.database,
        ),
        _fill(
            "NOT (SELECT rolsuper FROM pg_roles WHERE rolname = current_user)"
            " OR EXISTS (SELECT FROM pg_db_role_setting s JOIN pg_database d ON d.oid = s.setdatabase"
            " JOIN pg_roles r ON r.oid = s.setrole WHERE d.datname = {database:l} AND r.rolname = {role:l}"
            " AND 'log_parameter_max_length=0' = ANY (s.setconfig))",
            role=names.agent,
            database=names.database,
        ),
    )


def _rights_of_agents(names: Names) -> Iterator[SetupStep]:
    rights = ", ".join(AGENT_RIGHTS)
    lacking = " AND ".join(_fill("has_table_privilege({role:r}, c.oid, {right:l})", role=names.agent, right=right)
                           for right in AGENT_RIGHTS)  # fmt: skip
    yield _step(
        "agents read and write the rows of all tables",
        _fill(f"GRANT {rights} ON ALL TABLES IN SCHEMA {_SCHEMA} TO {{role}}", role=names.agent),
        f"NOT EXISTS (SELECT FROM pg_class c WHERE {_TABLES} AND ({lacking}) IS NOT TRUE)",
    )
    yield _step(
        "agents draw numbers",
        _fill(f"GRANT USAGE, SELECT ON ALL SEQUENCES IN SCHEMA {_SCHEMA} TO {{role}}", role=names.agent),
        _fill(
            f"NOT EXISTS (SELECT FROM pg_class c WHERE c.relkind = 'S' AND c.relnamespace = '{_SCHEMA}'::regnamespace"
            " AND CASE WHEN c.relkind = 'S' THEN has_sequence_privilege({role:r}, c.oid, 'USAGE') IS NOT TRUE END)",
            role=names.agent,
        ),
    )
    yield _default("of tables that a migration makes", names, "TABLES", "r", AGENT_RIGHTS, names.agent)
    yield _default("of sequences that a migration makes", names, "SEQUENCES", "S", ("USAGE", "SELECT"), names.agent)


def _rights_of_readers(names: Names) -> Iterator[SetupStep]:
    yield _step(
        "readers read all tables",
        _fill(f"GRANT SELECT ON ALL TABLES IN SCHEMA {_SCHEMA} TO {{role}}", role=names.reader),
        f"NOT EXISTS (SELECT FROM pg_class c WHERE {_TABLES} AND c.relname <> 'cluster' AND NOT {_OF_RECORDS}"
        + _fill(" AND has_table_privilege({role:r}, c.oid, 'SELECT') IS NOT TRUE)", role=names.reader),
    )
    yield _default("of tables that a migration makes", names, "TABLES", "r", ("SELECT",), names.reader)
    for what, statement, column, wanted in (
        ("readers do not see records, which small files have", f"REVOKE SELECT ON {_RECORDS} FROM", "body", "FALSE"),
        ("but which small files there are", f"GRANT SELECT (slot, file_id) ON {_RECORDS} TO", "file_id", "TRUE"),
    ):
        yield _step(
            what,
            _fill(f"{statement} {{role}}", role=names.reader),
            f"NOT EXISTS (SELECT FROM pg_class c WHERE {_TABLES} AND CASE WHEN {_OF_RECORDS} THEN"
            + _fill(
                f" has_column_privilege({{role:r}}, c.oid, '{column}', 'SELECT') IS NOT {wanted} END)",
                role=names.reader,
            ),
        )
    columns = (
        f"pg_attribute a WHERE a.attrelid = to_regclass('{_SCHEMA}.cluster') AND a.attnum > 0 AND NOT a.attisdropped"
        " AND a.attname"
    )
    yield _step(
        "readers do not see the secret with which agents trust each other",
        _fill(f"REVOKE SELECT ON {_SCHEMA}.cluster FROM {{role}}", role=names.reader),
        f"NOT EXISTS (SELECT FROM {columns} IN {_SECRETS}"
        + _fill(" AND has_column_privilege({role:r}, a.attrelid, a.attnum, 'SELECT') IS NOT FALSE)", role=names.reader),
    )
    lacking = f"{columns} NOT IN {_SECRETS}"
    yield SetupStep(
        "but the rest of that row",
        _fill(
            "SELECT format('GRANT SELECT (%s) ON public.cluster TO %I', string_agg(quote_ident(a.attname), ', '),"
            f" {{role:l}}) FROM {lacking} HAVING bool_or(has_column_privilege({{role:r}}, a.attrelid, a.attnum,"
            " 'SELECT') IS NOT TRUE)",
            role=names.reader,
        ),
    )


def _default(what: str, names: Names, kind: str, letter: str, rights: Sequence[str], role: str) -> SetupStep:
    """Rights that objects get when the owner makes them."""
    listed = ", ".join(rights)
    filled = {"owner": names.owner, "role": role}
    return _step(
        f"rights of {role} {what}",
        _fill(
            f"ALTER DEFAULT PRIVILEGES FOR ROLE {{owner}} IN SCHEMA {_SCHEMA} GRANT {listed} ON {kind} TO {{role}}",
            **filled,
        ),
        _fill(
            "(SELECT count(DISTINCT a.privilege_type) FROM pg_default_acl d, aclexplode(d.defaclacl) a"
            " WHERE d.defaclrole = {owner:r} AND a.grantee = {role:r}"
            f" AND d.defaclnamespace = '{_SCHEMA}'::regnamespace AND d.defaclobjtype = '{letter}'"
            f" AND a.privilege_type IN ({', '.join(repr(right) for right in rights)})) = {len(rights)}",
            **filled,
        ),
    )


def _step(what: str, statement: str, unless: str) -> SetupStep:
    return SetupStep(what, f"SELECT {_literal(statement)} WHERE ({unless}) IS NOT TRUE")


def _fill(template: str, **values: str) -> str:
    """Fill `{name}` with an identifier, `{name:l}` with a literal, `{name:r}` with the oid of the role."""
    filled = {name: _Filler(value) for name, value in values.items()}
    return template.format(**filled)


class _Filler:
    """A value in a template."""

    def __init__(self, value: str) -> None:
        self._value = value

    def __format__(self, how: str) -> str:
        if how == "l":
            return _literal(self._value)
        if how == "r":
            return f"(SELECT oid FROM pg_roles WHERE rolname = {_literal(self._value)})"
        return sql.Identifier(self._value).as_string(None)


def _literal(text: str) -> str:
    return sql.Literal(text).as_string(None)


@contextmanager
def administrator(url: str, database: str | None = None) -> Iterator[Connection]:
    """A connection of an administrator, to `database` or the address's own. InvalidError for an address with a
    password: all users of the machine see the arguments of a command.
    """
    arguments = parsed(url)
    if "password" in arguments:
        raise InvalidError("--admin-url has a password, which other users of this machine can read: set PGPASSWORD or"
                           " a passfile (~/.pgpass)")  # fmt: skip
    if database is not None:
        arguments["dbname"] = database
    arguments |= {"connect_timeout": SINGLE_CONNECT_TIMEOUT_S, "client_encoding": ENCODING}
    with translated("set up postgres", writes=False), psycopg.connect(autocommit=True, **arguments) as connection:
        check_version(connection.info.server_version)
        yield connection


def missing(connection: Connection, steps: Sequence[SetupStep]) -> Iterator[tuple[SetupStep, str]]:
    """Yield each step that is not done, with its statement, before the next one is looked at."""
    for step in steps:
        for (statement,) in connection.execute(step.query.encode()).fetchall():
            yield step, str(statement)


def apply(connection: Connection, steps: Sequence[SetupStep]) -> Iterator[tuple[SetupStep, str]]:
    """Execute what is missing; yield each statement after it was executed."""
    for step, statement in missing(connection, steps):
        connection.execute(statement.encode())
        yield step, statement


def has_database(connection: Connection, names: Names) -> bool:
    """Return whether the database exists."""
    found = connection.execute("SELECT FROM pg_database WHERE datname = %s", (names.database,))
    return found.fetchone() is not None


def set_password(connection: Connection, role: str, password: str) -> bool:
    """Set the role's password, hashed before it is sent; False if it is the same, as far as this administrator sees."""
    if _has_password(connection, role, password):
        return False
    hashed = connection.pgconn.encrypt_password(password.encode(), role.encode(), _HASHED.lower().encode()).decode()
    connection.execute(_fill("ALTER ROLE {role} PASSWORD {hashed:l}", role=role, hashed=hashed).encode())
    return True


def _has_password(connection: Connection, role: str, password: str) -> bool:
    try:
        found = connection.execute("SELECT rolpassword FROM pg_authid WHERE rolname = %s", (role,)).fetchone()
    except psycopg.errors.InsufficientPrivilege:  # no superuser: set again
        return False
    kind, _, rest = str(found[0] if found else "").partition("$")
    if kind != _HASHED:
        return False
    (iterations, _, salt), (_, _, server_key) = (part.partition(":") for part in rest.split("$"))
    salted = hashlib.pbkdf2_hmac("sha256", password.encode(), base64.b64decode(salt), int(iterations))
    own = hmac.digest(salted, b"Server Key", "sha256")
    return hmac.compare_digest(own, base64.b64decode(server_key))
