"""TLS to Postgres with its name checked, passwords that a command prints, and the role for agents: on a real server."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest
from psycopg import sql

from headrace.cli.doctor import postgres
from headrace.config.settings import Settings
from headrace.metastore.postgres.address import KEPT_SECONDS, PasswordCommand, url_with_password
from headrace.metastore.postgres.embedded import EmbeddedPostgres
from headrace.metastore.postgres.migrate import migrate
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.storage.errors import InvalidError, UnavailableError
from tests.agent.access.certificates import Authority
from tests.cli.doctor.world import ShiftedClock, lines
from tests.manual_clock import ManualClock
from tests.tools.postgres import find_postgres

ONE = Settings(metastore_pool_size=1)
SCRIPT = Path(__file__).resolve().parents[2] / "deploy" / "postgres" / "agent-role.sql"


@dataclass
class TlsServer:
    """A migrated database by TCP; the server's certificate is for localhost and 127.0.0.1."""

    server: EmbeddedPostgres
    authority: Authority

    def url(self, host: str = "127.0.0.1", **more: str) -> str:
        options = "&".join(f"{name}={value}" for name, value in more.items())
        return f"{self.server.tcp_url().replace('@127.0.0.1', '@' + host)}?{options}"


@pytest.fixture(scope="module")
def tls_server() -> Iterator[TlsServer]:
    """The distribution's Postgres: those that packages for tests bring are built without TLS."""
    found = find_postgres(15)
    if found is None:
        pytest.skip("needs a Postgres with TLS")
    with tempfile.TemporaryDirectory(prefix="headrace-tests-") as directory:
        place = Path(directory)
        place.chmod(0o711)
        authority = Authority(place)
        server = EmbeddedPostgres(place / "server", fsync=False, tcp=True, installation=found)
        server.start()
        try:
            migrate(server.url())
            with psycopg.connect(server.url(), autocommit=True) as owner:
                _pipe(owner, authority.issue("localhost").read_text(), "umask 077; cat > server.key")
                owner.execute("ALTER SYSTEM SET ssl_cert_file = 'server.key'")
                try:
                    owner.execute("ALTER SYSTEM SET ssl = on")
                except psycopg.errors.InvalidParameterValue:
                    pytest.skip("needs a Postgres with TLS")
                owner.execute("SELECT pg_reload_conf()")
            yield TlsServer(server, authority)
        finally:
            server.stop()


def _pipe(owner: psycopg.Connection[tuple[object, ...]], text: str, command: str) -> None:
    """Run a command as the server, in its directory, with this input."""
    query = sql.SQL("COPY (SELECT unnest(string_to_array({}, E'\\n'))) TO PROGRAM {}")
    owner.execute(query.format(sql.Literal(text.rstrip("\n")), sql.Literal(command)))


@pytest.mark.requirement("X2")
async def test_the_server_is_known_by_its_certificate(tls_server: TlsServer) -> None:
    trusted = str(tls_server.authority.path)
    metastore = await PostgresMetastore.open(tls_server.url(sslmode="verify-full", sslrootcert=trusted), ONE)
    async with metastore.pool.connection() as connection:
        query = "SELECT ssl, version FROM pg_stat_ssl WHERE pid = pg_backend_pid()"
        assert await (await connection.execute(query)).fetchone() == (True, "TLSv1.3")
    await metastore.close()


@pytest.mark.requirement("X2")
async def test_another_server_is_refused(tls_server: TlsServer, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    stranger = str(Authority(tmp_path / "other").path)
    with pytest.raises(UnavailableError, match="certificate verify failed"):
        await PostgresMetastore.open(tls_server.url(sslmode="verify-full", sslrootcert=stranger), ONE)
    trusted = str(tls_server.authority.path)
    elsewhere = tls_server.url("db.example.com", hostaddr="127.0.0.1", sslmode="verify-full", sslrootcert=trusted)
    with pytest.raises(UnavailableError, match=r"does not match host name"):
        await PostgresMetastore.open(elsewhere, ONE)


@pytest.mark.parametrize(("ahead_days", "level", "part"), [(0, "warn", "for 1 days"), (3, "bad", "expired 2 days ago")])
async def test_the_doctor_says_how_long_the_servers_certificate_is_valid(
    tls_server: TlsServer, ahead_days: int, level: str, part: str
) -> None:
    trusted = str(tls_server.authority.path)
    url = tls_server.url(sslmode="verify-full", sslrootcert=trusted)
    found = lines(await postgres.examine(Settings(metastore_url=url), ShiftedClock(ahead_days * 86_400)))
    assert found["connect"][0] != "bad", "the connection trusts it, by the right clock"
    assert (found["certificate"][0], part in found["certificate"][1]) == (level, True)


@pytest.fixture
def agents_role(postgres_server: EmbeddedPostgres, metastore_url: str) -> Iterator[str]:
    """A user with the role of the script, and no other right; its password is `first`."""
    user = f"agents_{os.getpid()}"
    with psycopg.connect(metastore_url, autocommit=True) as owner:
        owner.execute(SCRIPT.read_text().encode())
        owner.execute(f"CREATE ROLE {user} LOGIN PASSWORD 'first' IN ROLE headrace_agent".encode())
        _pipe(owner, f"host all {user} 127.0.0.1/32 scram-sha-256", "cat >> pg_hba.conf")
        owner.execute("SELECT pg_reload_conf()")
        yield user
        _pipe(owner, "", f"sed -i '/host all {user} /d' pg_hba.conf")
        owner.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = %s", (user,))
        owner.execute("DROP OWNED BY headrace_agent")
        owner.execute(f"DROP ROLE {user}".encode())
        owner.execute("DROP ROLE headrace_agent")


@pytest.mark.requirement("X2")
async def test_agents_work_with_the_role_and_cannot_change_the_schema(
    agents_role: str, postgres_server: EmbeddedPostgres, metastore_url: str
) -> None:
    """Every function is called by agents' tests elsewhere; here each table and sequence shows its rights."""
    url = _as(agents_role, "first", postgres_server, metastore_url)
    metastore = await PostgresMetastore.open(url, ONE)
    assert await metastore.cluster.exchange_quota_use(1, "[]") == {}
    await metastore.close()
    with psycopg.connect(url, autocommit=True) as agent:
        tables = agent.execute(
            "SELECT tablename, has_table_privilege(format('%I', tablename), 'SELECT, INSERT, UPDATE, DELETE')"
            " FROM pg_tables WHERE schemaname = 'public' AND tablename <> 'schema_migrations'"
        ).fetchall()
        assert len(tables) > 20
        assert all(may_use for _, may_use in tables)
        for forbidden in (
            "CREATE TABLE own (id int)",
            "DROP TABLE metadata_log",
            "ALTER TABLE cluster ADD COLUMN more int",
            "CREATE OR REPLACE FUNCTION wall_ms() RETURNS bigint LANGUAGE sql AS 'SELECT 1::bigint'",
            "INSERT INTO schema_migrations (name, checksum) VALUES ('9999_own', '')",
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                agent.execute(forbidden.encode())
    migrate(metastore_url)  # the owner, while the agents' role exists


@pytest.mark.requirement("X2")
async def test_a_command_gives_the_password_of_new_connections(
    agents_role: str, postgres_server: EmbeddedPostgres, metastore_url: str, tmp_path: Path
) -> None:
    token = tmp_path / "token"
    token.write_text("first\n")
    settings = Settings(metastore_pool_size=1, metastore_password_command=f"cat '{token}'")
    url = _as(agents_role, "", postgres_server, metastore_url)
    metastore = await PostgresMetastore.open(url, settings)
    await metastore.close()
    with psycopg.connect(metastore_url, autocommit=True) as owner:
        owner.execute(f"ALTER ROLE {agents_role} PASSWORD 'second'".encode())
    with pytest.raises(UnavailableError, match="password authentication failed") as refused:
        await PostgresMetastore.open(url, settings)
    assert "first" not in str(refused.value)
    token.write_text("second\n")
    metastore = await PostgresMetastore.open(url, settings)
    await metastore.close()
    with psycopg.connect(url_with_password(Settings(metastore_url=url, metastore_password_command=f"cat '{token}'"))):
        pass


def _as(user: str, password: str, server: EmbeddedPostgres, url: str) -> str:
    login = f"{user}:{password}" if password else user
    return f"postgresql://{login}@127.0.0.1:{server.port}/{urlsplit(url).path.lstrip('/')}"


async def test_a_password_is_kept_for_a_minute(tmp_path: Path) -> None:
    clock, count = ManualClock(), tmp_path / "count"
    program = (
        f"import pathlib; p = pathlib.Path({str(count)!r}); p.write_text((p.read_text() if p.exists() else '') + 'x')"
    )
    command = PasswordCommand(f'{sys.executable} -c "{program}; print(len(p.read_text()))"', clock)
    assert [await command.password() for _ in range(3)] == ["1", "1", "1"]
    clock.jump(KEPT_SECONDS)
    assert await command.password() == "2"


@pytest.mark.parametrize(
    ("command", "error", "said"),
    [
        ("false", UnavailableError, "gave no password: program=false status=1"),
        ("true", UnavailableError, "gave no password: program=true status=0"),
        ("/no/such/program --secret=x", InvalidError, "cannot be run: program=/no/such/program"),
        ("echo 'open", InvalidError, "No closing quotation"),
    ],
)
def test_a_command_that_fails_is_named_without_its_arguments(command: str, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said) as raised:
        url_with_password(Settings(metastore_url="postgresql://x@y/z", metastore_password_command=command))
    assert "secret" not in str(raised.value)
