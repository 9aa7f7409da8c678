r"""`headrace postgres`: print or do what an administrator of Postgres does before Headrace is formatted.

Place: metastore/postgres/database_setup.py has the statements; the scripts here print them, and the steps for a
standby.
Invariant of scripts: each script can be run again: psql executes only what a query of the catalogs answers (\gexec).
Names are quoted. No script has a password: psql asks for it (\password) and sends a hash.
Invariant: without --execute nothing is changed, and without --admin-url nothing is even asked. A second run changes
nothing. No password is in an argument, a printed line, or a statement that Postgres could log.
"""

from __future__ import annotations

import argparse
import re
import shlex
from pathlib import Path
from typing import NamedTuple

from psycopg import sql

from headrace.cli.options import add_settings, settings_from
from headrace.cli.output import write
from headrace.cli.passwords import password_in
from headrace.cli.tables import key_values, say
from headrace.config.settings import Settings
from headrace.metastore.postgres.database_setup import (
    Connection,
    Names,
    SetupStep,
    administrator,
    apply,
    database_steps,
    has_database,
    missing,
    server_steps,
    set_password,
)
from headrace.storage.errors import InvalidError

_SLOT_NAME = re.compile(r"[a-z0-9_]{1,63}")


def setup_script(names: Names, settings: Settings) -> str:
    """Return roles, database and rights as a script of psql."""
    lines = [
        "-- run by an administrator: psql -d postgres -f setup.sql; again after headrace storage format",
        "\\set ON_ERROR_STOP on",
        *_gexec(server_steps(names)),
        f"\\connect {sql.Identifier(names.database).as_string(None)}",
        *_gexec(database_steps(names, settings)),
        "",
        after_setup(names),
    ]
    return "\n".join(lines)


def after_setup(names: Names) -> str:
    """Return what is next, as comments."""
    quoted = [sql.Identifier(role).as_string(None) for role in (names.owner, names.agent, names.reader)]
    return "\n".join(
        [
            "-- passwords, if roles log in with one: in psql, which asks and sends a hash:",
            *(f"--   \\password {role}" for role in quoted),
            f"-- then: headrace storage format, migrate, planners    as {names.owner}",
            "--       headrace postgres setup                       again: the reader loses the secret of the zones",
            f"--       agents, compactors, Spark                     as {names.agent}",
            f"--       headrace doctor, console, top                 as {names.reader}",
        ]
    )


def _gexec(steps: list[SetupStep]) -> list[str]:
    return [line for step in steps for line in ("", f"-- {step.what}", f"{step.query} \\gexec")]


class Standbys(NamedTuple):
    """What the steps for standbys are made of."""

    primary: str
    port: int
    names: tuple[str, ...]
    role: str
    data: str
    slot_wal_keep_gib: int

    def check(self) -> Standbys:
        """Return them. InvalidError for a name that no slot may have, or that is given twice."""
        for name in self.names:
            if not _SLOT_NAME.fullmatch(name):
                raise InvalidError(f"not a name for a slot: {name!r} (lower case letters, digits and _)")
        if len(set(self.names)) < len(self.names):
            raise InvalidError("a name of a standby is given twice")
        if not self.role.isprintable() or not self.role:
            raise InvalidError(f"not a name for Postgres: {self.role!r}")
        if self.slot_wal_keep_gib < 1 or not 0 < self.port < 65_536:
            raise InvalidError("--slot-wal-keep-gib and --port: not above 0")
        return self


def standby_steps(standbys: Standbys) -> str:
    """Return the steps as one text: psql's lines for the primary, one of a shell for each standby."""
    role = sql.Identifier(standbys.role).as_string(None)
    literal = sql.Literal(standbys.role).as_string(None)
    create = sql.Literal(f"CREATE ROLE {role} LOGIN REPLICATION").as_string(None)
    slots = [
        f"SELECT pg_create_physical_replication_slot('{name}')"
        f" WHERE NOT EXISTS (SELECT FROM pg_replication_slots WHERE slot_name = '{name}');"
        for name in standbys.names
    ]
    copies = []
    for name in standbys.names:
        place = f"host={_value(standbys.primary)} port={standbys.port} user={_value(standbys.role)}"
        words = ["pg_basebackup", "-d", f"{place} application_name={name}", "-D", standbys.data]
        copies += [f"# {name}", shlex.join([*words, "-R", "-X", "stream", "-S", name, "-c", "fast"])]
    return "\n".join(
        [
            "-- 1. on the primary, in psql as a superuser: a role, and a slot for each standby",
            f"SELECT {create} WHERE NOT EXISTS (SELECT FROM pg_roles WHERE rolname = {literal}) \\gexec",
            *slots,
            f"--    its password, and into the file ~/.pgpass of each standby: \\password {role}",
            f"--    in pg_hba.conf of the primary, then pg_reload_conf(): host replication {role} STANDBY/32"
            " scram-sha-256",
            "",
            "# 2. on each standby's machine: a copy of the primary; then start Postgres on it",
            *copies,
            "",
            "-- 3. on the primary, once pg_stat_replication shows it: from now on commits wait for a standby",
            f"ALTER SYSTEM SET max_slot_wal_keep_size = '{standbys.slot_wal_keep_gib}GB';",
            f"ALTER SYSTEM SET synchronous_standby_names = 'ANY 1 ({', '.join(standbys.names)})';",
            "SELECT pg_reload_conf();",
            "",
            "-- 4. is it so: sync_state is quorum",
            "SELECT application_name, state, sync_state FROM pg_stat_replication;",
            "--    promotion, and how to go on without a standby: docs/operate/POSTGRES.md",
        ]
    )


def _value(text: str) -> str:
    """Return a value in a connection string of libpq."""
    if re.fullmatch(r"[\w.:-]+", text):
        return text
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


DESCRIPTION = """\
Roles, database, rights and standbys of the metastore's Postgres, as commands for its administrator.

  headrace postgres setup > setup.sql && psql -h db -U postgres -d postgres -f setup.sql
  headrace postgres setup --admin-url postgresql://postgres@db/postgres              what is missing
  headrace postgres setup --admin-url postgresql://postgres@db/postgres --execute    do it
  headrace postgres standby --primary db --name standby_a                            steps for a synchronous standby

Passwords: `\\password ROLE` in psql, or --password-file ROLE=PATH with --execute. The administrator's own comes from
PGPASSWORD or ~/.pgpass.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    commands = parser.add_subparsers(title="commands", metavar="{setup,standby}", required=True)
    setup = commands.add_parser("setup", help="roles with the rights that they need, and the database in UTF-8")
    for field, what in (
        ("database", "database of the metastore"),
        ("owner", "role that owns the tables: format, migrate, planners"),
        ("agent", "role of agents, compactors, Spark's drivers"),
        ("reader", "role of doctor, console and top"),
    ):
        default = Names._field_defaults[field]
        setup.add_argument(f"--{field}", default=default, metavar="NAME", help=f"{what} ({default})")
    setup.add_argument(
        "--admin-url", metavar="URL", help="address of a role that may create roles and databases, without a password"
    )
    setup.add_argument("--execute", action="store_true", help="do what is missing; default: print it")
    setup.add_argument(
        "--password-file",
        action="append",
        default=[],
        metavar="ROLE=PATH",
        help="with --execute: file with the role's password in its first line",
    )
    setup.add_argument("--json", action="store_true", help="JSON for scripts instead of text")
    add_settings(setup, ("metastore.statement.timeout.ms", "metastore.lock.timeout.ms"), every=False)
    setup.set_defaults(run=run_setup)
    standby = commands.add_parser("standby", help="print the steps for a synchronous standby")
    standby.add_argument("--primary", required=True, metavar="HOST", help="host of the primary, as the standby sees it")
    standby.add_argument("--port", type=int, default=5432, help="its port (5432)")
    standby.add_argument(
        "--name", action="append", required=True, metavar="NAME", help="name of a standby; repeat it for each of them"
    )
    standby.add_argument("--role", default="replicator", metavar="NAME", help="role for replication (replicator)")
    standby.add_argument(
        "--data", default="/var/lib/postgresql/data", metavar="DIR", help="data directory of the standby"
    )
    standby.add_argument(
        "--slot-wal-keep-gib", type=int, default=64, metavar="N", help="most WAL kept for a standby that is away (64)"
    )
    standby.set_defaults(run=run_standby)


def run_setup(args: argparse.Namespace) -> int:
    """Print the script, or what is missing, or do it; 1 if something is missing and was not done."""
    names = Names(args.database, args.owner, args.agent, args.reader).check()
    settings = settings_from(args)
    if args.admin_url is None:
        if args.execute or args.password_file or args.json:
            raise InvalidError("--execute, --password-file and --json need --admin-url")
        write(setup_script(names, settings))
        return 0
    if args.password_file and not args.execute:
        raise InvalidError("--password-file needs --execute")
    passwords = _passwords(args.password_file, names)
    done = _statements(args.admin_url, names, settings, execute=args.execute)
    changed = _set_passwords(args.admin_url, passwords)
    if args.json:
        say(args, "", statements=done, passwords_changed=changed, executed=args.execute)
    else:
        for statement in done:
            write(f"{statement};")
        for role in changed:
            write(f"-- password of {role} changed")
        if not done and not changed:
            write("-- nothing is missing")
        if done:
            write(after_setup(names) if args.execute else "-- not done: add --execute")
    return 1 if done and not args.execute else 0


def run_standby(args: argparse.Namespace) -> int:
    """Print the steps."""
    standbys = Standbys(args.primary, args.port, tuple(args.name), args.role, args.data, args.slot_wal_keep_gib).check()
    write(standby_steps(standbys))
    return 0


def _statements(url: str, names: Names, settings: Settings, *, execute: bool) -> list[str]:
    """Return the statements that were executed, or would be. What needs the database is not known before it exists."""

    def found(connection: Connection, steps: list[SetupStep]) -> list[str]:
        return [statement for _, statement in (apply if execute else missing)(connection, steps)]

    with administrator(url) as connection:
        if not execute and not has_database(connection, names):
            return found(connection, server_steps(names))
        done = found(connection, server_steps(names))
    with administrator(url, names.database) as connection:
        return done + found(connection, database_steps(names, settings))


def _passwords(given: list[str], names: Names) -> dict[str, str]:
    found: dict[str, str] = {}
    for role, path in key_values(given, "password file"):
        if role not in (names.owner, names.agent, names.reader):
            raise InvalidError(f"--password-file: none of the roles: {role}")
        found[role] = password_in(Path(path))
    return found


def _set_passwords(url: str, passwords: dict[str, str]) -> list[str]:
    if not passwords:
        return []
    with administrator(url) as connection:
        return [role for role, password in passwords.items() if set_password(connection, role, password)]
