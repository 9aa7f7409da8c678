"""The steps that `headrace postgres standby` prints, run on real servers: they make a standby, and can be repeated."""

from __future__ import annotations

import shlex
from urllib.parse import parse_qs, urlsplit

import pytest

from headrace.cli.main import main
from load.postgres_servers import Servers, ask
from tests.metastore.life.test_standby_recipe import is_synchronous, until


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> list[str]:
    """Return the four steps."""
    assert main(["postgres", "standby", *words]) == 0
    return capsys.readouterr().out.strip().split("\n\n")


def run_sql(servers: Servers, script: str) -> str:
    words = ("-X", "-v", "ON_ERROR_STOP=1", "-At", "-d", servers.url("primary"), "-f", "-")
    return servers.run_program("psql", *words, stdin=script.encode()).decode()


@pytest.mark.slow
def test_the_printed_steps_make_a_synchronous_standby(servers: Servers, capsys: pytest.CaptureFixture[str]) -> None:
    place = {key: values[0] for key, values in parse_qs(urlsplit(servers.url("primary")).query).items()}
    data = servers.data_of("standby_a")
    servers.give(data.parent)
    words = ("--primary", place["host"], "--port", place["port"], "--name", "standby_a", "--data", str(data))
    role, copy, settings, look = printed(capsys, *words)
    assert "PASSWORD" not in role.upper().replace("\\PASSWORD", "").replace("ITS PASSWORD", "")
    run_sql(servers, role)
    assert run_sql(servers, role).strip() == "", "the second time nothing is to be done"
    (line,) = [line for line in copy.splitlines() if not line.startswith("#")]
    program, *flags = shlex.split(line)
    servers.run_program(program, *flags)
    servers.start("standby_a")
    servers.wait_until_streamed("standby_a")
    run_sql(servers, settings)
    until(lambda: is_synchronous(servers), "synchronous")
    assert "standby_a|streaming|quorum" in run_sql(servers, look)
    assert ask(servers.url("primary"), "SHOW max_slot_wal_keep_size") == ("64GB",)


def test_several_standbys_and_hard_values_are_quoted(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--primary", "a b'c", "--name", "a", "--name", "b", "--role", "re'pl\"", "--data", "/x y")
    role, copy, settings, _ = printed(capsys, *words)
    assert 'CREATE ROLE "re\'\'pl"""' in role
    assert role.count("pg_create_physical_replication_slot") == 2
    lines = [shlex.split(line) for line in copy.splitlines() if not line.startswith("#")]
    assert [words[2] for words in lines] == [
        f"host='a b\\'c' port=5432 user='re\\'pl\"' application_name={name}" for name in "ab"
    ]
    assert all("/x y" in words for words in lines)
    assert "'ANY 1 (a, b)'" in settings
