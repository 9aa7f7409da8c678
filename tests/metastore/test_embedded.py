"""The embedded Postgres: found again, never left behind, never shared, for any user that starts it."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from urllib.parse import unquote

import psycopg
import pytest

from headrace.metastore.postgres import installation as places
from headrace.metastore.postgres.embedded import EmbeddedPostgres
from headrace.metastore.postgres.installation import Installation, find_installation, make_data_dir, reachable, run_as
from headrace.storage.errors import AlreadyExistsError, InvalidError
from load.postgres_servers import copy_data

ROOT = Path(__file__).resolve().parents[2]
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


@pytest.fixture(scope="module")
def initialised() -> Iterator[Path]:
    """The directory of a server that was started once and stopped, to be copied."""
    with tempfile.TemporaryDirectory(prefix="headrace-embedded-") as directory:
        Path(directory).chmod(0o755)
        with EmbeddedPostgres(Path(directory) / "data", fsync=False):
            pass
        yield Path(directory) / "data"


@pytest.fixture
def data(initialised: Path, place: Path) -> Path:
    """A directory of a stopped server: initdb takes longer than most of these tests."""
    copy_data(initialised, place / "data")
    return place / "data"


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory that any account may enter (pytest's own has mode 0700)."""
    with tempfile.TemporaryDirectory(prefix="headrace-embedded-") as directory:
        Path(directory).chmod(0o755)
        yield Path(directory)


def _execute(url: str, sql: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(sql.encode())


def _numbers(url: str) -> list[int]:
    with psycopg.connect(url) as connection:
        return [row[0] for row in connection.execute("SELECT n FROM kept ORDER BY n").fetchall()]


def _postmaster(data_dir: Path) -> int:
    return int((data_dir / "pgdata" / "postmaster.pid").read_text().splitlines()[0])


def _gone(pid: int) -> bool:
    """Ended, though perhaps not yet reaped by the process that inherited it."""
    try:
        return (Path("/proc") / str(pid) / "stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except FileNotFoundError:
        return True


def _wait_until_gone(pid: int) -> None:
    for _ in range(9_000):
        if _gone(pid):
            return
        time.sleep(0.01)
    raise AssertionError(f"still there: {pid}")


def test_a_second_start_finds_the_data_of_the_first(place: Path) -> None:
    with EmbeddedPostgres(place / "data") as url:
        _execute(url, "CREATE TABLE kept (n int)")
        _execute(url, "INSERT INTO kept VALUES (1)")
    with EmbeddedPostgres(place / "data") as url:
        assert _numbers(url) == [1]


def test_settings_are_durable_unless_the_data_is_thrown_away(data: Path) -> None:
    for fsync in (True, False):
        with EmbeddedPostgres(data, fsync=fsync) as url, psycopg.connect(url) as connection:
            values = connection.execute(
                "SELECT current_setting('fsync'), current_setting('jit'), current_setting('server_encoding')"
            ).fetchone()
            assert values == ("on" if fsync else "off", "off", "UTF8")


def test_start_and_stop_may_be_repeated(place: Path) -> None:
    server = EmbeddedPostgres(place / "data", fsync=False)
    server.stop()
    assert server.start() == server.start()
    server.stop()
    server.stop()
    with psycopg.connect(server.start()):
        pass
    server.stop()


def test_tcp_and_socket_reach_the_same_server(data: Path) -> None:
    server = EmbeddedPostgres(data, fsync=False, tcp=True)
    with server as url:
        _execute(server.tcp_url(), "CREATE TABLE kept (n int)")
        assert _numbers(url) == []
        for stranger in (f"headrace@127.0.0.1:{server.port}", f"headrace:guess@127.0.0.1:{server.port}"):
            with pytest.raises(psycopg.OperationalError, match="password"):
                psycopg.connect(f"postgresql://{stranger}/postgres")


@pytest.mark.requirement("X7")
def test_only_the_own_user_reaches_it_and_only_by_its_socket(data: Path) -> None:
    """A superuser of Postgres can run programs: no other user of the machine may be one."""
    server = EmbeddedPostgres(data, fsync=False)
    with server as url:
        with psycopg.connect(url) as connection:
            rows = connection.execute("SELECT type, auth_method FROM pg_hba_file_rules").fetchall()
            (listens,) = connection.execute("SHOW listen_addresses").fetchone() or ("?",)
        assert (rows, listens) == ([("local", "peer"), ("host", "scram-sha-256")], "")
        with socket.socket() as probe:
            assert probe.connect_ex(("127.0.0.1", server.port)) != 0
        with pytest.raises(InvalidError, match="socket only"):
            server.tcp_url()
        socket_dir = Path(unquote(url.partition("host=")[2].partition("&")[0]))
        assert socket_dir.stat().st_mode & 0o077 == 0
        if os.geteuid() == 0:
            assert "Peer authentication failed" in _as_another_user(url), "also who owns the directory of the socket"


def _as_another_user(url: str) -> str:
    """Return what Postgres answers to the account that it runs as, if this process runs as root."""
    account = run_as()
    assert account is not None
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgid(account.pw_gid)
            os.setuid(account.pw_uid)
            psycopg.connect(url).close()
            os.write(writing, b"let in")
        except BaseException as error:  # the child must end here
            os.write(writing, str(error).encode()[:4_000])
        finally:
            os._exit(0)
    os.close(writing)
    os.waitpid(child, 0)
    with os.fdopen(reading, "rb") as pipe:
        return pipe.read().decode()


def test_a_directory_has_one_supervisor(data: Path) -> None:
    with EmbeddedPostgres(data, fsync=False) as url:
        with pytest.raises(AlreadyExistsError, match=str(os.getpid())):
            EmbeddedPostgres(data).start()
        _execute(url, "SELECT 1")


def test_a_stale_process_id_file_that_names_another_process_is_replaced(data: Path) -> None:
    with EmbeddedPostgres(data, fsync=False) as url:
        _execute(url, "CREATE TABLE kept (n int)")
        stale = (data / "pgdata" / "postmaster.pid").read_text()
    with subprocess.Popen(["sleep", "60"]) as stranger:
        content = "\n".join([str(stranger.pid), *stale.splitlines()[1:]]) + "\n"
        (data / "pgdata" / "postmaster.pid").write_text(content)
        with EmbeddedPostgres(data, fsync=False) as url:
            assert _numbers(url) == []
        assert stranger.poll() is None, "another process must not be signalled"
        stranger.kill()


def test_kill_9_of_postgres_keeps_committed_rows_and_start_recovers(data: Path) -> None:
    server = EmbeddedPostgres(data)
    with server as url:
        _execute(url, "CREATE TABLE kept (n int)")
        for number in range(20):
            _execute(url, f"INSERT INTO kept VALUES ({number})")
        os.kill(_postmaster(data), signal.SIGKILL)
        assert _numbers(_start_once_noticed(server)) == list(range(20))


def _start_once_noticed(server: EmbeddedPostgres) -> str:
    assert server._process is not None
    server._process.wait(90)
    return server.start()


HOLDER = """
import sys, time
from pathlib import Path
from urllib.parse import unquote
from headrace.metastore.postgres.embedded import EmbeddedPostgres
server = EmbeddedPostgres(Path(sys.argv[1]))
print(server.start(), server._process.pid, flush=True)
time.sleep(600)
"""


def _start_in_another_process(data_dir: Path) -> tuple[subprocess.Popen[str], str, int]:
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, data_dir], stdout=subprocess.PIPE, text=True, cwd=ROOT)
    assert holder.stdout is not None
    url, watchdog = holder.stdout.readline().split()
    return holder, url, int(watchdog)


def test_postgres_ends_with_its_supervisor(data: Path) -> None:
    holder, url, _ = _start_in_another_process(data)
    _execute(url, "CREATE TABLE kept (n int)")
    postmaster = _postmaster(data)

    holder.kill()
    holder.communicate()
    _wait_until_gone(postmaster)

    with EmbeddedPostgres(data) as again:
        assert _numbers(again) == []


def test_a_server_with_killed_supervisor_and_watchdog_is_stopped_by_the_next_start(data: Path) -> None:
    holder, url, watchdog = _start_in_another_process(data)
    _execute(url, "CREATE TABLE kept (n int)")
    postmaster = _postmaster(data)
    for pid in _session_but_postgres(watchdog):
        os.kill(pid, signal.SIGKILL)
    holder.kill()
    holder.communicate()
    _execute(url, "INSERT INTO kept VALUES (7)")  # nothing supervises it, and it keeps running

    with EmbeddedPostgres(data) as again:
        assert _gone(postmaster)
        assert _numbers(again) == [7]


def _session_but_postgres(session: int) -> list[int]:
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            name, fields = (entry / "stat").read_text().split("(", 1)[1].rsplit(")", 1)
        except FileNotFoundError:
            continue
        if int(fields.split()[3]) == session and name != "postgres":
            found.append(int(entry.name))
    return found


def test_a_data_directory_of_another_version_or_kind_is_refused(place: Path) -> None:
    with EmbeddedPostgres(place / "data", fsync=False):
        pass
    (place / "data" / "pgdata" / "PG_VERSION").write_text("9\n")
    with pytest.raises(InvalidError, match="made_by=9"):
        EmbeddedPostgres(place / "data").start()
    (place / "other" / "pgdata").mkdir(parents=True)
    (place / "other" / "pgdata" / "diary").write_text("mine")
    with pytest.raises(InvalidError, match="not a postgres data directory"):
        EmbeddedPostgres(place / "other").start()
    assert (place / "other" / "pgdata" / "diary").read_text() == "mine"


def test_an_initdb_that_was_interrupted_is_done_again(place: Path) -> None:
    (place / "data" / "pgdata.new" / "base").mkdir(parents=True)
    with EmbeddedPostgres(place / "data", fsync=False) as url:
        _execute(url, "SELECT 1")
    assert not (place / "data" / "pgdata.new").exists()


def test_a_long_path_gets_a_short_socket(place: Path) -> None:
    deep = place / ("d" * 60) / ("e" * 60)
    server = EmbeddedPostgres(deep, fsync=False)
    with server as url:
        _execute(url, "SELECT 1")
        socket_dir = server._socket_dir
    assert not socket_dir.exists()


def test_without_the_wheel_a_system_postgres_serves_and_without_both_the_error_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(places, "_wheel", list)
    system = [path for path in places._system() if places._look_at(path)]
    if system:
        assert find_installation().major >= places.OLDEST_MAJOR
    monkeypatch.setattr(places, "_system", list)
    with pytest.raises(InvalidError, match=r"the extra `embedded` \(pip install "):
        find_installation()


def _hide(installation: Installation, home: Path) -> Installation:
    """A copy below `home`, with the directories around it."""
    package = installation.bin_dir.parents[1]
    for part in (package / installation.bin_dir.parent.name, package.with_name(f"{package.name}.libs")):
        if part.exists():
            shutil.copytree(part, home / part.relative_to(package.parent), ignore=shutil.ignore_patterns("include"))
    return Installation(home / installation.bin_dir.relative_to(package.parent), installation.version)


@needs_root
def test_what_the_account_cannot_reach_is_placed_where_it_can_and_no_mode_is_changed(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = place / "home"
    home.mkdir(mode=0o700)
    hidden = _hide(find_installation(), home)
    monkeypatch.setattr(places, "SHARED_DATA", place / "lib")
    monkeypatch.setattr(places, "SHARED_BINARIES", place / "cache")

    for numbers in ([], [1]):  # the second start finds the data of the first, and the copied binaries
        with EmbeddedPostgres(home / "data", fsync=False, installation=hidden) as url:
            _execute(url, "CREATE TABLE IF NOT EXISTS kept (n int)")
            assert _numbers(url) == numbers
            _execute(url, "INSERT INTO kept VALUES (1)")
    assert (home / "data" / "pgdata").resolve().parent == place / "lib"
    assert home.stat().st_mode & 0o777 == 0o700
    assert list((place / "cache").glob(f"postgres-{hidden.version}/*/*/bin/postgres"))

    shutil.rmtree(home / "data")  # after the directory that they named is removed, a start begins from nothing
    with EmbeddedPostgres(home / "data", fsync=False, installation=hidden) as url, psycopg.connect(url) as connection:
        assert connection.execute("SELECT to_regclass('kept')").fetchone() == (None,)


@needs_root
def test_copied_binaries_that_others_may_change_are_refused(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = place / "home"
    home.mkdir(mode=0o700)
    monkeypatch.setattr(places, "SHARED_BINARIES", place / "cache")
    hidden = Installation(home / "package" / "pg" / "bin", "18.4")
    hidden.bin_dir.mkdir(parents=True)
    (place / "cache" / "postgres-18.4").mkdir(parents=True)
    (place / "cache" / "postgres-18.4").chmod(0o777)
    account = run_as()
    assert account is not None
    with pytest.raises(InvalidError, match="others may change"):
        places.reachable_installation(hidden, account)


@needs_root
def test_reachability_follows_the_account(place: Path) -> None:
    nobody = pwd.getpwnam("nobody")
    inner = make_data_dir(place / "inner", nobody)
    assert inner.stat().st_uid == nobody.pw_uid
    assert inner.stat().st_mode & 0o777 == 0o700
    assert reachable(inner / "below", nobody)
    assert not reachable(inner / "below", pwd.getpwnam("daemon"))


@needs_root
def test_an_ordinary_user_may_start_it_too(place: Path) -> None:
    nobody = pwd.getpwnam("nobody")
    os.chown(place, nobody.pw_uid, nobody.pw_gid)
    code = (
        "import sys, psycopg; from pathlib import Path\n"
        "from headrace.metastore.postgres.embedded import EmbeddedPostgres\n"
        "with EmbeddedPostgres(Path(sys.argv[1]), fsync=False) as url:\n"
        "    print(psycopg.connect(url).execute('SELECT 40 + 2').fetchone()[0])"
    )
    answer = _run_as(nobody, _interpreter_for(nobody), code, str(place / "data"))
    assert answer.stdout.strip() == "42", answer.stderr


def _interpreter_for(account: pwd.struct_passwd) -> str:
    for candidate in (sys.executable, "/usr/bin/python3"):
        with suppress(PermissionError):
            if _run_as(account, candidate, "import psycopg, headrace.metastore.postgres.embedded").returncode == 0:
                return candidate
    pytest.skip("needs another account")


def _run_as(
    account: pwd.struct_passwd, interpreter: str, code: str, *arguments: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [interpreter, "-c", code, *arguments],
        user=account.pw_uid,
        group=account.pw_gid,
        extra_groups=[],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), *sys.path])},
    )
