"""`headrace postgres`: print or do what an administrator of Postgres does before Headrace is formatted.

Place: metastore/postgres/database_setup.py has the statements; scripts.py prints them, and the steps for a standby.
Invariant: without --execute nothing is changed, and without --admin-url nothing is even asked. A second run changes
nothing. No password is in an argument, a printed line, or a statement that Postgres could log.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from headrace.cli.options import add_settings, settings_from
from headrace.cli.output import write
from headrace.cli.passwords import password_in
from headrace.cli.postgres.scripts import Standbys, after_setup, setup_script, standby_steps
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
