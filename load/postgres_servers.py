"""Postgres servers that follow, lose and replace each other: real standbys, promotions, backups, copies of a volume.

Place: under the torture run (tests/torture/drills.py) and the tests of the metastore's life.
Invariant: every server that was started here is stopped when the context is left. `Servers.url` is the metastore's
address on one of them. Nothing here crashes a machine: without fsync (the default) no row is lost that the operating
system has.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit

import psycopg

from headrace.metastore.postgres.embedded import USER, EmbeddedPostgres
from headrace.metastore.postgres.installation import (
    find_installation,
    reachable_installation,
    remove_data_dir,
    run_as,
)
from headrace.metastore.postgres.migrate import migrate
from headrace.storage.errors import UnavailableError

DATABASE = "headrace"
PATIENCE_SECONDS = 120.0


class Servers:
    """One primary with a migrated metastore, and servers made from it. Use it in a `with`.

    `home`: an empty directory that keeps them; None for one that goes with the context. `tcp`: they also listen on
    127.0.0.1, all with one password. `fsync`: as the embedded Postgres has it. `prepared`: what make_primary made; the
    primary is a copy of it, which takes a tenth of the time.
    """

    def __init__(
        self, home: Path | None = None, *, fsync: bool = False, tcp: bool = False, prepared: Path | None = None
    ) -> None:
        self._made = home is None
        self._prepared = prepared
        self._home = home or Path(tempfile.mkdtemp(prefix="headrace-servers-"))
        self._home.chmod(0o711)
        self._fsync = fsync
        self._password = secrets.token_urlsafe(24) if tcp else None
        self._account = run_as()
        self._running: dict[str, EmbeddedPostgres] = {}

    def __enter__(self) -> Servers:
        try:
            if self._prepared is None:
                run(self.start("primary").url(), f"CREATE DATABASE {DATABASE}")
                migrate(self.url("primary"))
            else:
                copy_data(self._prepared, self._home / "primary")
                self.start("primary")
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for server in self._running.values():
            server.stop()
        if self._made:
            shutil.rmtree(self._home, ignore_errors=True)

    def start(self, name: str) -> EmbeddedPostgres:
        """Start a server on the directory of that name."""
        server = EmbeddedPostgres(self._home / name, fsync=self._fsync, password=self._password)
        server.start()
        hba = self._home / name / "pgdata" / "pg_hba.conf"  # the tools run as the server's account
        remote = "host all all 127.0.0.1/32 scram-sha-256\n" if self._password else ""
        hba.resolve().write_text(f"local all all trust\nlocal replication all trust\n{remote}")
        run(server.url(), "SELECT pg_reload_conf()")
        self._running[name] = server
        return server

    def stop(self, name: str) -> None:
        """Stop it; its directory stays."""
        self._running.pop(name).stop()

    def revive(self, name: str) -> None:
        """Return when it accepts connections; started again if it stopped by itself."""
        give_up_at = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                self._running[name].start()
                ask(self._running[name].url(), "SELECT true")
                return
            except (psycopg.OperationalError, UnavailableError):  # it recovers, or just stops
                assert time.monotonic() < give_up_at, name
                time.sleep(0.1)

    def remove(self, name: str) -> None:
        """Stop it if it runs, and delete its directory."""
        if name in self._running:
            self.stop(name)
        remove_data_dir(self._home / name)
        shutil.rmtree(self._home / name)

    def is_running(self, name: str) -> bool:
        """Return whether it was started, and neither stopped nor killed here."""
        return name in self._running

    def port(self, name: str) -> int:
        """Return the port on 127.0.0.1."""
        return self._running[name].port

    def tcp_url(self, name: str, port: int) -> str:
        """Return the URL of the metastore's database by way of a proxy that listens on `port`."""
        return self._running[name].tcp_url(DATABASE, port)

    def url(self, *names: str) -> str:
        """Return the URL of the metastore's database there; of several servers, connections go to the first that
        takes writes.
        """
        places = [parse_qs(urlsplit(self._running[name].url()).query) for name in names]
        hosts, ports = (",".join(place[part][0] for place in places) for part in ("host", "port"))
        return f"postgresql://{USER}@/{DATABASE}?host={quote(hosts, safe='')}&port={quote(ports, safe='')}"

    def crash(self, name: str) -> None:
        """Immediate shutdown: no checkpoint, nothing more is sent to standbys."""
        pid = int((self._home / name / "pgdata" / "postmaster.pid").read_text().split()[0])
        os.kill(pid, signal.SIGQUIT)
        self.stop(name)

    def kill(self, name: str) -> None:
        """SIGKILL to each of its processes. It is not running any more; its directory stays."""
        postmaster = int((self._home / name / "pgdata" / "postmaster.pid").read_text().split()[0])
        children = Path(f"/proc/{postmaster}/task/{postmaster}/children").read_text().split()
        for pid in (postmaster, *map(int, children)):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.stop(name)

    def replicate_synchronously(self, name: str = "primary") -> None:
        """Let the server acknowledge only what its standby has flushed."""
        run(self.url(name), "ALTER SYSTEM SET synchronous_standby_names = '*'")
        run(self.url(name), f"ALTER ROLE {USER} SET synchronous_commit = on")  # without fsync, the server's is off
        run(self.url(name), "SELECT pg_reload_conf()")
        self._until(name, "SELECT EXISTS (SELECT FROM pg_stat_replication WHERE sync_state = 'sync')")

    def add_standby(self, name: str, *, of: str = "primary") -> None:
        """A streaming standby that has everything of `of`, running."""
        self.back_up(of, name, "-R")
        self.start(name)
        self.wait_until_streamed(name, of=of)

    def back_up(self, of: str, name: str, *flags: str) -> None:
        """pg_basebackup of a running server into the directory of another name."""
        source = urlsplit(self._running[of].url())
        place = {key: values[0] for key, values in parse_qs(source.query).items()}
        address = f"host={place['host']} port={place['port']} user={USER} application_name={name}"
        directory = self._home / name
        directory.mkdir()
        self.give(directory)
        to = str(directory / "pgdata")
        self.run_program("pg_basebackup", "-d", address, "-D", to, *flags, "-X", "stream", "-c", "fast", "--no-sync")

    def configure(self, name: str, lines: str) -> None:
        """Append lines to postgresql.conf and start the server again."""
        with (self._home / name / "pgdata" / "postgresql.conf").resolve().open("a") as settings:
            settings.write(lines)
        self.stop(name)
        self.start(name)

    def data_of(self, name: str) -> Path:
        """Return the place of the data directory of a new server, for a restore; `start_restored` starts it."""
        (self._home / name).mkdir()
        return self._home / name / "pgdata"

    def start_restored(self, name: str) -> None:
        """Start on a restored directory, and return when the recovery has ended."""
        self.give(self._home / name)
        self.start(name)
        self._until(name, "SELECT NOT pg_is_in_recovery()")

    def start_from_backup(self, name: str) -> None:
        """Start on a directory of back_up, as a restore from an archive that has nothing newer: on a new timeline."""
        data = (self._home / name / "pgdata").resolve()
        with (data / "postgresql.auto.conf").open("a") as settings:
            settings.write("restore_command = 'false'\n")
        (data / "recovery.signal").touch()
        self.start_restored(name)

    def wait_until_streamed(self, name: str, *, of: str = "primary") -> None:
        """Return when the standby has replayed what the primary has now."""
        (target,) = ask(self._running[of].url(), "SELECT pg_current_wal_lsn()::text")
        self._until(name, f"SELECT coalesce(pg_last_wal_replay_lsn() >= '{target}', false)")

    def cut(self, name: str) -> None:
        """The standby receives nothing more; it does not know."""
        run(self._running[name].url(), "ALTER SYSTEM SET primary_conninfo = ''")
        run(self._running[name].url(), "SELECT pg_reload_conf()")
        self._until(name, "SELECT NOT EXISTS (SELECT FROM pg_stat_wal_receiver)")

    def promote(self, name: str) -> None:
        """Make the standby a primary."""
        run(self._running[name].url(), f"SELECT pg_promote(true, {int(PATIENCE_SECONDS)})")
        self._until(name, "SELECT NOT pg_is_in_recovery()")

    def copy_volume(self, name: str, to: str) -> None:
        """The directory of a stopped server, as a volume snapshot has it."""
        source = (self._home / name / "pgdata").resolve()
        (self._home / to).mkdir()
        shutil.copytree(source, self._home / to / "pgdata", ignore=shutil.ignore_patterns(".s.PGSQL.*"))  # no sockets
        (self._home / to / "pgdata").chmod(0o700)
        self.give(self._home / to)

    def dump(self, name: str) -> bytes:
        """pg_dump of the metastore."""
        return self.run_program("pg_dump", "-Fc", "-d", self.url(name))

    def restore(self, data: bytes, name: str) -> None:
        """Replace the metastore's database there by the dump."""
        run(self._running[name].url(), f"DROP DATABASE IF EXISTS {DATABASE} WITH (FORCE)")
        run(self._running[name].url(), f"CREATE DATABASE {DATABASE}")
        self.run_program("pg_restore", "-d", self.url(name), stdin=data)

    def run_program(self, program: str, *arguments: str, stdin: bytes = b"") -> bytes:
        """A program of Postgres, as the account of the servers; its output."""
        installation = find_installation()
        if self._account is not None:
            installation = reachable_installation(installation, self._account)
        who: dict[str, Any] = {} if self._account is None else {"user": self._account.pw_uid, "extra_groups": []}
        done: subprocess.CompletedProcess[bytes] = subprocess.run(
            [str(installation.bin_dir / program), *arguments],
            input=stdin,
            capture_output=True,
            check=False,
            cwd="/",
            **who,
        )
        assert done.returncode == 0, done.stderr.decode()
        return done.stdout

    def give(self, directory: Path) -> None:
        """Let the server write there."""
        if self._account is not None:
            for path in (directory, *directory.rglob("*")):
                shutil.chown(path, self._account.pw_uid, self._account.pw_gid)

    def _until(self, name: str, question: str) -> None:
        give_up_at = time.monotonic() + PATIENCE_SECONDS
        while ask(self._running[name].url(), question) != (True,):
            assert time.monotonic() < give_up_at, question
            time.sleep(0.02)


def make_primary(home: Path) -> Path:
    """Make a primary with a migrated metastore below an empty directory, and stop it; its directory.

    All copies of it have one system identifier and cluster id, as copies of a volume have.
    """
    with Servers(home):
        pass
    return home / "primary"


def copy_data(made: Path, to: Path) -> None:
    """Copy the directory of a stopped EmbeddedPostgres, with owners and modes; `to` must not exist."""
    subprocess.run(["cp", "-a", str(made.resolve()), str(to)], check=True)


def run(url: str, sql: str) -> None:
    """One statement."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(sql.encode())


def ask(url: str, sql: str) -> tuple[Any, ...]:
    """The only row of a query."""
    with psycopg.connect(url, autocommit=True) as connection:
        row = connection.execute(sql.encode()).fetchone()
        assert row is not None
        return row
