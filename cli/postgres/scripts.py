"""The scripts that `headrace postgres` prints, for psql and for a shell. Pure.

Place: under command.py.
Invariant: each script can be run again: psql executes only what a query of the catalogs answers (\\gexec). Names are
quoted. No script has a password: psql asks for it (\\password) and sends a hash.
"""

from __future__ import annotations

import re
import shlex
from typing import NamedTuple

from psycopg import sql

from headrace.config.settings import Settings
from headrace.metastore.postgres.database_setup import Names, SetupStep, database_steps, server_steps
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
