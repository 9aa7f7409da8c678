"""`headrace postgres setup`: the printed script on a real server, by psql; then format, an agent and doctor.

Roles are of the whole server, so each test has its own names. They log in over TCP with their passwords, as in
production.
"""

from __future__ import annotations

import json
import os
import secrets
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest
from psycopg import sql

from headrace.cli.main import main
from headrace.metastore.postgres.database_setup import Names
from headrace.metastore.postgres.embedded import EmbeddedPostgres
from headrace.metastore.postgres.installation import find_installation
from tests.agent_process import AgentUnderTest
from tests.kafka_clients import KafkaClients

HARD = "\"na'me\\"
"""Part of a name that quoting has to get right."""
_LET_IN = "COPY (SELECT 'host all all 127.0.0.1/32 scram-sha-256') TO PROGRAM 'cat >> pg_hba.conf'"


class SetUp:
    """Names of one test, and how the command runs with them."""

    def __init__(self, server: EmbeddedPostgres, folder: Path, suffix: str) -> None:
        own = secrets.token_hex(4)
        self.server, self.folder = server, folder
        self.names = Names(*(f"{name}_{own}{suffix}" for name in ("data", "owner", "agent", "reader")))
        self.passwords = {role: secrets.token_urlsafe(16) for role in self.names[1:]}

    @property
    def flags(self) -> list[str]:
        return [word for field, name in self.names._asdict().items() for word in (f"--{field}", name)]

    def url(self, role: str) -> str:
        return psycopg.conninfo.make_conninfo(
            host="127.0.0.1",
            port=self.server.port,
            user=role,
            dbname=self.names.database,
            password=self.passwords.get(role, ""),
        )

    def url_of_text(self, role: str) -> str:
        return f"postgresql://{role}:{self.passwords[role]}@127.0.0.1:{self.server.port}/{self.names.database}"

    def password_flags(self) -> list[str]:
        found: list[str] = []
        for number, (role, password) in enumerate(self.passwords.items()):
            path = self.folder / f"password-{number}"
            path.write_text(f"{password}\n")
            found += ["--password-file", f"{role}={path}"]
        return found


@pytest.fixture
def let_in(postgres_server: EmbeddedPostgres) -> None:
    with psycopg.connect(postgres_server.url(), autocommit=True) as connection:
        connection.execute(_LET_IN)
        connection.execute("SELECT pg_reload_conf()")


def _set_up(server: EmbeddedPostgres, folder: Path, suffix: str) -> Iterator[SetUp]:
    made = SetUp(server, folder, suffix)
    yield made
    with psycopg.connect(server.url(), autocommit=True) as connection:
        connection.execute(
            sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(made.names.database))
        )
        for role in made.names[1:]:
            connection.execute(sql.SQL("DROP ROLE IF EXISTS {}").format(sql.Identifier(role)))


@pytest.fixture
def plain(postgres_server: EmbeddedPostgres, let_in: None, tmp_path: Path) -> Iterator[SetUp]:
    yield from _set_up(postgres_server, tmp_path, "")


@pytest.fixture
def hard(postgres_server: EmbeddedPostgres, let_in: None, tmp_path: Path) -> Iterator[SetUp]:
    yield from _set_up(postgres_server, tmp_path, HARD)


def run_by_psql(server: EmbeddedPostgres, script: str) -> str:
    """Run a script as the superuser; what psql says. Fails if a statement does."""
    program = find_installation().bin_dir / "psql"
    where = {"PGPASSWORD": psycopg.conninfo.conninfo_to_dict(server.tcp_url())["password"]}
    user = psycopg.conninfo.conninfo_to_dict(server.tcp_url())["user"]
    words = ["-X", "-h", "127.0.0.1", "-p", str(server.port), "-U", str(user), "-d", "postgres", "-f", "-"]
    done = subprocess.run(
        [str(program), *words], input=script, capture_output=True, text=True, check=False, env=os.environ | where
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


class Session:
    """One connection of a role."""

    def __init__(self, url: str) -> None:
        self._connection = psycopg.connect(url)

    def may(self, statement: str) -> bool:
        """Return whether the role has the right; nothing stays changed. A statement that is wrong otherwise is right
        here: NULL in a column that must have a value.
        """
        try:
            self._connection.execute(statement.encode())
        except psycopg.errors.InsufficientPrivilege:
            return False
        except psycopg.IntegrityError:
            return True
        finally:
            self._connection.rollback()
        return True

    def close(self) -> None:
        self._connection.close()


@pytest.mark.slow
def test_the_printed_script_makes_roles_that_can_run_headrace(
    plain: SetUp, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["postgres", "setup", *plain.flags]) == 0
    script = capsys.readouterr().out
    assert "CREATE ROLE" in run_by_psql(plain.server, script)
    assert run_by_psql(plain.server, script).count("\n") <= 1, "a second run only connects"
    execute = ["postgres", "setup", *plain.flags, "--admin-url", plain.server.url(), "--execute"]
    assert main([*execute, *plain.password_flags(), "--json"]) == 0
    said = capsys.readouterr()
    assert json.loads(said.out) == {"statements": [], "passwords_changed": list(plain.passwords), "executed": True}
    assert not any(password in said.out + said.err for password in plain.passwords.values())

    owner, agent, reader = (plain.url_of_text(role) for role in plain.names[1:])
    bucket = f"file://{tmp_path / 'bucket'}"
    cluster = ("-t", "rJ4bU3xYQmK1c0m7cUO8Fg")
    assert main(["storage", "format", *cluster, "--metastore-url", owner, "--bucket", bucket]) == 0
    assert main(["migrate", "--metastore-url", owner]) == 0, "migrate runs again"
    capsys.readouterr()
    assert main([*execute, "--json"]) == 0
    done = json.loads(capsys.readouterr().out)["statements"]
    assert [statement.split(" ")[0] for statement in done] == ["REVOKE", "GRANT"], "the secret is taken away"
    assert main([*execute, *plain.password_flags(), "--json"]) == 0
    nothing = {"statements": [], "passwords_changed": [], "executed": True}
    assert json.loads(capsys.readouterr().out) == nothing, "repeated, it changes nothing"

    settings: dict[str, object] = {
        "metastore.url": agent, "bucket": bucket, "process.roles": "broker,controller,compactor", "log.level": "error",
        "auto.create.topics.enable": "true",
    }  # fmt: skip
    with AgentUnderTest(settings) as running:
        KafkaClients(running.kafka).produce("orders", [b"x"])
        with psycopg.connect(agent) as connection:  # what housekeeping calls every 15 s
            connection.execute("SELECT empty_slot('commit_log', log_tick('commit_log') + 2, 'commit_log_7')")
        assert main(["doctor", "--metastore-url", reader, "--bucket", bucket, "--json"]) in (0, 1)
        findings = json.loads(capsys.readouterr().out)
        words = ["top", "-b", running.kafka, "--metastore-url", reader, "--once", "--seconds", "0.1"]
        assert main(words) == 0
        screen = capsys.readouterr().out
    by_check = {(finding["area"], finding["check"]): finding for finding in findings}
    assert by_check["postgres", "schema"]["level"] == "ok", by_check["postgres", "schema"]
    assert by_check["postgres", "damage"]["level"] == "ok"
    assert not any("permission denied" in json.dumps(finding) for finding in findings)
    assert "JOBS" in screen
    assert "permission denied" not in screen


def test_the_reader_cannot_write_and_agents_make_no_tables(plain: SetUp, capsys: pytest.CaptureFixture[str]) -> None:
    execute = ["postgres", "setup", *plain.flags, "--admin-url", plain.server.url(), "--execute"]
    assert main([*execute, *plain.password_flags()]) == 0
    owner, agent, reader = (plain.url(role) for role in plain.names[1:])
    assert main(["migrate", "--metastore-url", plain.url_of_text(plain.names.owner)]) == 0
    assert main(execute) == 0
    capsys.readouterr()
    assert main(execute) == 0
    assert capsys.readouterr().out == "-- nothing is missing\n"
    with psycopg.connect(owner) as connection:
        connection.execute("CREATE TABLE made_by_a_later_migration (number int)")
        tables = [name for (name,) in connection.execute(
            "SELECT relname FROM pg_class WHERE relkind IN ('r', 'p') AND relnamespace = 'public'::regnamespace"
        )]  # fmt: skip
    assert len(tables) > 40
    with closing(Session(agent)) as agents, closing(Session(reader)) as readers:
        for table in tables:
            for change in (f"DELETE FROM {table}", f"TRUNCATE {table} CASCADE", f"INSERT INTO {table} DEFAULT VALUES"):
                assert not readers.may(change), change
                assert agents.may(change), change
            is_hidden = table == "cluster" or table.startswith("inline_files")
            assert readers.may(f"SELECT * FROM {table} LIMIT 1") == (not is_hidden), table
        assert not readers.may("SELECT zone_secret FROM cluster")
        assert readers.may("SELECT cluster_id, life FROM cluster")
        assert readers.may("SELECT * FROM inline_state()"), "what doctor and console ask"
        every_row = "SELECT * FROM read_inline(ARRAY[gen_random_uuid()], ARRAY[0], ARRAY[0])"
        for records in ("SELECT body FROM inline_files", "SELECT length(body) FROM inline_files_3", every_row):
            assert not readers.may(records), records
            assert agents.may(records), records
        for role in (agents, readers):
            for change in ("CREATE TABLE own (number int)", "DROP TABLE segment_files", "CREATE ROLE other"):
                assert not role.may(change), change


def test_names_are_quoted(hard: SetUp, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["postgres", "setup", *hard.flags]) == 0
    script = capsys.readouterr().out
    run_by_psql(hard.server, script)
    assert main(["postgres", "setup", *hard.flags, "--admin-url", hard.server.url()]) == 0
    assert capsys.readouterr().out.strip() == "-- nothing is missing"
    with psycopg.connect(hard.server.url(), autocommit=True) as connection:
        found = connection.execute(
            "SELECT pg_encoding_to_char(encoding), pg_get_userbyid(datdba) FROM pg_database WHERE datname = %s",
            (hard.names.database,),
        ).fetchone()
    assert found == ("UTF8", hard.names.owner)


def test_an_administrator_without_superuser_is_enough(
    plain: SetUp, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on managed servers: it may create roles and databases, and give pg_monitor away."""
    admin, password = f"admin_{secrets.token_hex(4)}", secrets.token_urlsafe(16)
    with psycopg.connect(plain.server.url(), autocommit=True) as connection:
        connection.execute(f"CREATE ROLE {admin} LOGIN CREATEROLE CREATEDB PASSWORD '{password}'".encode())
        connection.execute(f"GRANT pg_monitor TO {admin} WITH ADMIN OPTION".encode())
        monkeypatch.setenv("PGPASSWORD", password)
        url = f"postgresql://{admin}@127.0.0.1:{plain.server.port}/postgres"
        execute = ["postgres", "setup", *plain.flags, "--admin-url", url, "--execute", "--json"]
        try:
            for number in range(2):
                assert main([*execute, *plain.password_flags()]) == 0
                found = json.loads(capsys.readouterr().out)
                assert bool(found["statements"]) == (number == 0)
            monkeypatch.delenv("PGPASSWORD")
            assert main(["migrate", "--metastore-url", plain.url_of_text(plain.names.owner)]) == 0
            with closing(Session(plain.url(plain.names.agent))) as agents:
                assert agents.may("DELETE FROM segment_files")
        finally:
            connection.execute(f"DROP DATABASE IF EXISTS {plain.names.database} WITH (FORCE)".encode())
            for role in plain.names[1:]:
                connection.execute(f"DROP ROLE IF EXISTS {role}".encode())
            connection.execute(f"DROP OWNED BY {admin}; DROP ROLE {admin}".encode())


def test_what_is_missing_is_printed_and_not_done(plain: SetUp, capsys: pytest.CaptureFixture[str]) -> None:
    look = ["postgres", "setup", *plain.flags, "--admin-url", plain.server.url()]
    for _ in range(2):
        assert main(look) == 1
        out = capsys.readouterr().out
        assert f'CREATE ROLE "{plain.names.owner}"' in out
        assert f'CREATE DATABASE "{plain.names.database}"' in out
        assert "not done" in out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["setup", "--admin-url", "postgresql://me:secret-word@db/postgres"], "PGPASSWORD"),
        (["setup", "--execute"], "need --admin-url"),
        (["setup", "--owner", "same", "--agent", "same"], "three different roles"),
        (["setup", "--owner", "x" * 64], "63 bytes"),
        (["setup", "--owner", "a\nb"], "printable"),
        (["setup", "--owner", "pg_own"], "reserved"),
        (["standby", "--primary", "db", "--name", "A b"], "not a name for a slot"),
        (["standby", "--primary", "db", "--name", "a", "--name", "a"], "twice"),
    ],
)
def test_wrong_arguments_say_what_is_wrong(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["postgres", *words]) == 1
    error = capsys.readouterr().err
    assert said in error
    assert "secret-word" not in error
