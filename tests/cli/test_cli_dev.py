"""`headrace dev` on a first day: in another's Postgres, in another's directory, stopped at once, with a full disk."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from headrace.cli import dev
from headrace.metastore.postgres.embedded import EmbeddedPostgres
from headrace.metastore.postgres.formatted import formatted_cluster_id
from headrace.storage.errors import InvalidError

HEADRACE = [sys.executable, "-m", "headrace.cli.main"]
PORTS = ["--port", "0", "--http-port", "0", "--log-level", "warning"]
SECONDS_MAX = 300


@pytest.fixture
def empty_database(postgres_server: EmbeddedPostgres) -> Iterator[str]:
    """The address of a database without tables."""
    name = "first_day"
    with psycopg.connect(postgres_server.url(), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
        yield postgres_server.url(name)
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


def test_with_a_metastore_that_others_run_one_line_is_enough(empty_database: str, tmp_path: Path) -> None:
    """No Postgres is started, what to try next is printed, and a database of another directory is refused."""
    bucket = (tmp_path / "named").as_uri()
    words = [*HEADRACE, "dev", "--metastore-url", empty_database, "--data-dir", str(tmp_path / "mine"), *PORTS]
    with subprocess.Popen([*words, "--bucket", bucket], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        shown = []
        for line in process.stdout:
            shown.append(line)
            if "Ctrl-C" in line:
                break
        process.send_signal(signal.SIGINT)
        assert process.wait(SECONDS_MAX) == 0
    ready = next(line for line in shown if line.startswith("ready "))
    address = ready.split()[1].removeprefix("bootstrap=")
    assert any(f"headrace console -b {address}" in line for line in shown)
    assert any(f"headrace topics create hello -b {address}" in line for line in shown)
    assert not (tmp_path / "mine" / "postgres").exists()
    assert ready.endswith(f" bucket={bucket}\n")
    assert list((tmp_path / "named").iterdir()), "it has the cluster's files"
    places = [tmp_path / "mine", tmp_path / "mine" / "bucket", *(tmp_path / "named").rglob("*")]
    assert [path for path in places if path.stat().st_mode & 0o066] == [], "no other user reads them"
    cluster_id = formatted_cluster_id(empty_database)
    assert cluster_id is not None
    ended = subprocess.run(
        [*HEADRACE, "dev", "--metastore-url", empty_database, "--data-dir", str(tmp_path / "other"), *PORTS],
        capture_output=True,
        text=True,
        check=False,
        timeout=SECONDS_MAX,
    )
    assert ended.returncode == 1
    assert ended.stderr.startswith("error: the database has a cluster that keeps its files elsewhere: ")
    assert cluster_id in ended.stderr


def test_a_directory_of_another_user_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As this process sees a directory that it may not write to."""
    owner = tmp_path.owner()
    (tmp_path / "postgres").mkdir()
    monkeypatch.setattr(os, "access", lambda path, mode: path != tmp_path / "postgres")
    with pytest.raises(InvalidError, match=rf"belongs to another user: {tmp_path}/postgres user={owner}; .*--data-dir"):
        dev._make(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(InvalidError, match="cannot create the data directory"):
        dev._make(tmp_path / "file")


def test_the_bucket_of_the_first_run_is_that_of_all_runs(tmp_path: Path) -> None:
    own, other = (tmp_path / "bucket").as_uri(), "s3://other/prefix"
    assert dev._bucket("", tmp_path) == dev._bucket(own, tmp_path) == own
    assert dev._bucket(other, tmp_path) == other, "nothing is there yet"
    (tmp_path / "postgres").mkdir()
    with pytest.raises(InvalidError, match=f"the files of this cluster are in {own}; .* --data-dir for bucket {other}"):
        dev._bucket(other, tmp_path)
    (tmp_path / dev.REMEMBERED).write_text(f"{other}\n")
    assert dev._bucket("", tmp_path) == dev._bucket(other, tmp_path) == other
    with pytest.raises(InvalidError, match=f"are in {other}"):
        dev._bucket(own, tmp_path)


@pytest.mark.parametrize("words", [["version"], ["--help"], ["topics", "--help"]])
def test_a_full_disk_behind_the_output_is_one_line(words: list[str]) -> None:
    with open("/dev/full", "wb") as full:
        ended = subprocess.run(
            [*HEADRACE, *words], stdout=full, stderr=subprocess.PIPE, text=True, check=False, timeout=SECONDS_MAX
        )
    assert (ended.returncode, ended.stderr) == (1, "error: cannot write the output: No space left on device\n")


def test_dev_with_a_full_or_closed_output_stops_what_it_started(empty_database: str, tmp_path: Path) -> None:
    words = [*HEADRACE, "dev", "--metastore-url", empty_database, "--data-dir", str(tmp_path), *PORTS]
    with open("/dev/full", "wb") as full:
        ended = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, text=True, check=False, timeout=SECONDS_MAX)
    assert ended.returncode == 1
    assert ended.stderr.splitlines()[-1] == "error: cannot write the output: No space left on device"
    assert "Traceback" not in ended.stderr


IMPORTS = """\
import builtins, os, signal, sys
seen, wanted, real = 0, int(sys.argv.pop(1)), builtins.__import__
def counting(*words, **more):
    global seen
    seen += 1
    if seen == wanted:
        os.kill(os.getpid(), signal.SIGINT)
    return real(*words, **more)
from headrace.cli.main import main
builtins.__import__ = counting
sys.exit(main())
"""


@pytest.mark.parametrize("number", [1, 40, 1200])
def test_ctrl_c_in_the_middle_of_the_imports_is_quiet(number: int, tmp_path: Path) -> None:
    """The first 0.3 s of a process are imports: the signal comes at a numbered one, and not after a time."""
    words = ["dev", "--data-dir", str(tmp_path / "data"), *PORTS]
    ended = subprocess.run(
        [sys.executable, "-c", IMPORTS, str(number), *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=SECONDS_MAX,
        start_new_session=True,
    )
    assert (ended.returncode, ended.stderr, ended.stdout) == (130, "", "")


def test_the_entry_point_imports_little_before_it_can_be_interrupted() -> None:
    code = "import sys; before = set(sys.modules); import headrace.cli.main; print(*set(sys.modules) - before)"
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=SECONDS_MAX
    )
    assert set(ended.stdout.split()) == {"__future__", "headrace", "headrace.cli", "headrace.cli.main"}
