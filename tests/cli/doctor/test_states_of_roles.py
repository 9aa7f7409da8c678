"""The doctor with a role, a database or a pooler that does not do what Headrace needs.

Fault model: settings of a role in a database, rights that were taken away, a PgBouncer in each of its modes; all of
them real, on the tests' server.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote, urlsplit

import pytest

from headrace.cli.doctor import postgres
from headrace.config.settings import Settings
from headrace.metastore.postgres.embedded import USER, EmbeddedPostgres
from headrace.storage.clock import SystemClock
from tests.cli.doctor.world import Doctor, Line, lines, on
from tests.pgbouncer import running_pgbouncer


def database_of(url: str) -> str:
    return urlsplit(url).path.lstrip("/")


async def examined(url: str) -> dict[str, Line]:
    return lines(await postgres.examine(Settings(metastore_url=url), SystemClock()))


@pytest.mark.parametrize(
    ("scope", "where"), [("ROLE {user} IN DATABASE {name}", "database user"), ("DATABASE {name}", "database")]
)
async def test_default_transaction_read_only(metastore_url: str, scope: str, where: str) -> None:
    altered = "ALTER " + scope.format(user=USER, name=database_of(metastore_url))
    on(metastore_url, f"{altered} SET default_transaction_read_only = on")
    try:
        level, told, to_do = (await examined(metastore_url))["connect"]
    finally:
        on(f"{metastore_url}&options=-c%20default_transaction_read_only%3Doff", f"{altered} RESET ALL")
    assert (level, f"default_transaction_read_only=on (read-only), set for: {where}" in told) == ("bad", True)
    assert "RESET default_transaction_read_only" in str(to_do)


@pytest.fixture
def role(metastore_url: str) -> Iterator[str]:
    """A role without rights, which sessions take by an option of their address."""
    name = f"limited_{os.getpid()}"
    on(metastore_url, f"CREATE ROLE {name}")
    yield name
    on(metastore_url, f"DROP OWNED BY {name}", f"DROP ROLE {name}")


def taking(url: str, role: str) -> str:
    return f"{url}&options={quote(f'-c role={role}')}"


async def test_a_role_that_lacks_a_right(metastore_url: str, role: str) -> None:
    tables = f"ALL TABLES IN SCHEMA public TO {role}"
    on(metastore_url, f"GRANT SELECT, INSERT, UPDATE, DELETE, TRUNCATE ON {tables}")
    on(metastore_url, f"GRANT USAGE ON ALL SEQUENCES IN SCHEMA public TO {role}")
    assert (await examined(taking(metastore_url, role)))["rights"][0] == "ok"
    on(metastore_url, f"REVOKE INSERT, DELETE ON extents FROM {role}")
    level, told, to_do = (await examined(taking(metastore_url, role)))["rights"]
    assert (level, told) == ("bad", f"the role {role} lacks: extents (INSERT, DELETE)")
    assert to_do == "headrace postgres setup"


async def test_a_role_that_only_reads(metastore_url: str, role: str) -> None:
    """As the role for the doctor and the console does: nothing is wrong with it."""
    on(metastore_url, f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {role}")
    level, told, _ = (await examined(taking(metastore_url, role)))["rights"]
    assert (level, told) == ("unknown", f"not known: the role {role} only reads, so the rights of agents are not seen")


async def test_a_role_without_rights(metastore_url: str, role: str) -> None:
    found = await examined(taking(metastore_url, role))
    level, told, _ = found["rights"]
    assert (level, " more" in told) == ("bad", True)
    assert found["schema"][0] == "bad"
    assert "permission denied" in found["schema"][1]
    assert found["schema"][2] == "headrace postgres setup"


def test_a_wrong_password(places: list[str], postgres_server: EmbeddedPostgres, doctor: Doctor) -> None:
    name = database_of(places[1])
    wrong = postgres_server.tcp_url(name).replace("@127", "x@127")
    level, told, to_do = doctor("--metastore-url", wrong, *places[2:])["postgres connect"]
    assert (level, "password authentication failed" in told) == ("bad", True)
    assert to_do == "correct the password of metastore.url"
    assert urlsplit(wrong).password not in told


@pytest.mark.parametrize(
    ("mode", "level", "part"),
    [
        ("session", "ok", "a pooler in session mode"),
        ("statement", "bad", "a pooler in statement mode is in front of Postgres: "),
        ("transaction", "bad", "a pooler in transaction mode is in front of Postgres: prepared statement"),
    ],
)
async def test_a_pooler(
    metastore_url: str, postgres_server: EmbeddedPostgres, mode: str, level: str, part: str
) -> None:
    """In transaction mode without prepared statements, as before PgBouncer 1.21 and with max_prepared_statements=0."""
    program = shutil.which("pgbouncer", path=f"{os.environ['PATH']}:/usr/sbin")
    if program is None:
        pytest.skip("needs pgbouncer")
    server = urlsplit(postgres_server.tcp_url())
    assert server.port is not None
    login = (str(server.username), str(server.password))
    with running_pgbouncer(Path(program), server.port, *login, mode=mode, prepares=False) as port:
        found = await examined(postgres_server.tcp_url(database_of(metastore_url), port))
    assert found["pooler"][0] == level
    assert part in found["pooler"][1]
    assert level == "ok" or "pool_mode=session, or PgBouncer 1.21" in str(found["pooler"][2])
    assert (level == "ok") == ("schema" in found), "nothing is judged through a pooler that loses statements"
