"""A private Postgres for `headrace dev`, the demo and the tests; nothing in production depends on it.

Place: started before everything else and stopped after it; the metastore only sees its address.
Layout of the directory that the caller names: `pgdata/` (or a symlink, see installation.py),
`postgres.log`, `supervisor.lock`.
Invariant: one supervisor per directory (flock), and a server never runs longer than it: a watchdog shell
holds one end of a pipe and stops Postgres (fast) once the other end closes, however this process
ended. What a killed supervisor left running is stopped before the next start. Committed rows
survive kill -9 of anything, as long as `fsync` is on.
Trust: only the user that runs this process can use the server. It listens on a Unix socket in its own 0700 directory,
and the kernel names the user at the other end (`peer`). With `tcp=True`, for proxies in tests, it also listens on
127.0.0.1, where it asks for a password that only this process knows.
"""

from __future__ import annotations

import fcntl
import logging
import os
import pwd
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import quote

import psycopg

from headrace.config.free_ports import free_ports
from headrace.metastore.postgres.installation import (
    Installation,
    find_installation,
    make_data_dir,
    reachable_installation,
    run_as,
)
from headrace.storage.errors import AlreadyExistsError, InvalidError, UnavailableError

log = logging.getLogger(__name__)

USER = "headrace"
START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 30.0
LEFTOVER_TIMEOUT_S = 10.0
_PROBE_INTERVAL_S = 0.01
_SOCKET_PATH_LIMIT = 100
"""sun_path holds 108 bytes on Linux, fewer elsewhere."""

_WATCHDOG = """
exec 3<&0
"$@" 3<&- </dev/null &
postmaster=$!
( cat <&3 >/dev/null; kill -INT $postmaster ) &
watcher=$!
trap '' INT TERM
wait $postmaster; status=$?
kill -9 $watcher 2>/dev/null
exit $status
"""
"""Runs Postgres, and stops it when our standard input ends: when the supervisor closes it or crashes."""

_SETTINGS = {
    "max_connections": "200",
    "shared_buffers": "256MB",
    "max_wal_size": "4GB",
    "checkpoint_timeout": "15min",
    "autovacuum_naptime": "10s",
    "jit": "off",
    "log_checkpoints": "off",
    "timezone": "UTC",
}
_ACCESS = {
    "pg_hba.conf": f"local all {USER} peer map={USER}\nhost all {USER} 127.0.0.1/32 scram-sha-256\n",
    "pg_ident.conf": f'{USER} "{{user}}" {USER}\n',
}
"""Files of the data directory that say who may connect; {user} is this process's."""
_THROW_AWAY = {"fsync": "off", "full_page_writes": "off", "synchronous_commit": "off"}


class EmbeddedPostgres:
    """Supervisor of one Postgres on one directory. Synchronous; call it from any one thread at a time.

    `fsync=False` is for servers with data that may be lost. `tcp`: see tcp_url; `password` is then the one to use,
    as a standby has its primary's.
    """

    def __init__(
        self,
        data_dir: Path,
        *,
        fsync: bool = True,
        tcp: bool = False,
        password: str | None = None,
        installation: Installation | None = None,
        max_connections: int | None = None,
    ) -> None:
        """`max_connections` None: 200."""
        self._max_connections = max_connections
        self.data_dir = data_dir.absolute()
        self.fsync = fsync
        self._password = password or (secrets.token_urlsafe(24) if tcp else None)
        self._wanted_installation = installation
        self._account = run_as()
        self._lock_fd = -1
        self._process: subprocess.Popen[bytes] | None = None
        self._socket_dir = Path()
        self._port = 0

    def start(self) -> str:
        """Start, making the database cluster when there is none; returns `url()`.

        AlreadyExistsError when another process supervises this directory; InvalidError when the
        directory or the installation cannot be used; UnavailableError when Postgres does not come up.
        """
        if self._process is not None and self._process.poll() is None:
            return self.url()
        self.stop()  # it crashed: clean up after it
        self.data_dir.mkdir(parents=True, exist_ok=True)
        self._lock_fd = _lock(self.data_dir / "supervisor.lock")
        try:
            installation = self._installation()
            pgdata = self._prepare(installation)
            _stop_leftovers(pgdata)
            self._write_access(pgdata)
            self._launch(installation, pgdata)
            self._wait_until_ready()
            self._set_password()
        except BaseException:
            self.stop()
            raise
        log.info("postgres started: version=%s port=%d data_dir=%s", installation.version, self._port, pgdata)
        return self.url()

    def url(self, database: str = "postgres") -> str:
        """Address by way of the Unix socket, as the server's superuser. For processes of this user only."""
        return f"postgresql://{USER}@/{database}?host={quote(str(self._socket_dir), safe='')}&port={self._port}"

    def tcp_url(self, database: str = "postgres", port: int | None = None) -> str:
        """Address by way of 127.0.0.1, with the password; `port` of a proxy in front of the server. The object must
        have been made with `tcp=True`."""
        if self._password is None:
            raise InvalidError("the embedded Postgres listens on its socket only")
        return f"postgresql://{USER}:{self._password}@127.0.0.1:{port or self._port}/{database}"

    @property
    def port(self) -> int:
        """The port on 127.0.0.1, if it listens there."""
        return self._port

    def stop(self) -> None:
        """Stop (fast: open transactions are rolled back) and wait for it. Does nothing when not running."""
        process, self._process = self._process, None
        if process is not None:
            assert process.stdin is not None
            process.stdin.close()
            try:
                process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                _stop_leftovers(self._pgdata.resolve())
                process.wait(STOP_TIMEOUT_S)
        if self._socket_dir.name.startswith("headrace-socket-"):
            shutil.rmtree(self._socket_dir, ignore_errors=True)
        if self._lock_fd >= 0:
            os.close(self._lock_fd)
            self._lock_fd = -1

    def __enter__(self) -> str:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def _pgdata(self) -> Path:
        return self.data_dir / "pgdata"

    @property
    def _identity(self) -> dict[str, Any]:
        """The arguments that let subprocess run as the account."""
        if self._account is None:
            return {}
        return {"user": self._account.pw_uid, "group": self._account.pw_gid, "extra_groups": []}

    def _installation(self) -> Installation:
        installation = self._wanted_installation or find_installation()
        return installation if self._account is None else reachable_installation(installation, self._account)

    def _prepare(self, installation: Installation) -> Path:
        """The resolved data directory, with a database cluster of the installation's version in it."""
        if not self._pgdata.exists():
            self._initialise(installation)
        pgdata = self._pgdata.resolve()
        try:
            made_by = (pgdata / "PG_VERSION").read_text().strip()
        except FileNotFoundError as error:
            raise InvalidError(f"not a postgres data directory: {pgdata}") from error
        if made_by != str(installation.major):
            raise InvalidError(
                f"data directory belongs to another Postgres: made_by={made_by} found={installation.version} "
                f"data_dir={pgdata}"
            )
        return pgdata

    def _initialise(self, installation: Installation) -> None:
        """Make `pgdata` whole or not at all: initdb works under another name."""
        half = self.data_dir / "pgdata.new"
        if half.exists():
            shutil.rmtree(half.resolve())
        half.unlink(missing_ok=True)
        pgdata = make_data_dir(half, self._account)
        command = [
            str(installation.bin_dir / "initdb"),
            "-D",
            str(pgdata),
            "-U",
            USER,
            "--auth=peer",
            "--no-instructions",
        ]
        command += ["--encoding=UTF8", "--locale=C", *([] if self.fsync else ["--no-sync"])]
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd="/", **self._identity)
        if done.returncode != 0:
            raise UnavailableError(f"initdb failed: data_dir={pgdata} {done.stderr.strip()}")
        self._pgdata.unlink(missing_ok=True)  # a symlink to a place that is gone
        half.rename(self._pgdata)

    def _write_access(self, pgdata: Path) -> None:
        """Write under the account that owns the directory: nothing in it could lead root astray."""
        for name, text in _ACCESS.items():
            subprocess.run(
                ["/bin/sh", "-c", 'umask 077; cat > "$1"', "sh", str(pgdata / name)],
                input=text.format(user=pwd.getpwuid(os.geteuid()).pw_name).encode(),
                check=True,
                cwd="/",
                **self._identity,
            )

    def _set_password(self) -> None:
        if self._password is None:
            return
        with psycopg.connect(self.url(), autocommit=True) as connection:
            (follows,) = connection.execute("SELECT pg_is_in_recovery()").fetchone() or (False,)
            if not follows:
                connection.execute(f"ALTER ROLE {USER} PASSWORD '{self._password}'")

    def _launch(self, installation: Installation, pgdata: Path) -> None:
        (self._port,) = free_ports(1)
        self._socket_dir = self._make_socket_dir(pgdata)
        addresses = "127.0.0.1" if self._password else ""
        settings = dict(
            _SETTINGS,
            listen_addresses=addresses,
            port=str(self._port),
            unix_socket_directories=str(self._socket_dir),
        )
        if not self.fsync:
            settings.update(_THROW_AWAY)
        if self._max_connections is not None:
            settings["max_connections"] = str(self._max_connections)
        postgres = [str(installation.bin_dir / "postgres"), "-D", str(pgdata)]
        for name, value in settings.items():
            postgres += ["-c", f"{name}={value}"]
        with (self.data_dir / "postgres.log").open("ab") as log_file:
            # a separate session: a terminal's Ctrl-C is for us, and we stop Postgres when we are done
            self._process = subprocess.Popen(
                ["/bin/sh", "-c", _WATCHDOG, "postgres-watchdog", *postgres],
                stdin=subprocess.PIPE,
                stdout=log_file,
                stderr=log_file,
                start_new_session=True,
                cwd="/",
                **self._identity,
            )

    def _make_socket_dir(self, pgdata: Path) -> Path:
        if len(str(pgdata)) + len("/.s.PGSQL.65535") <= _SOCKET_PATH_LIMIT:
            return pgdata
        directory = Path(tempfile.mkdtemp(prefix="headrace-socket-", dir="/tmp"))
        if self._account is not None:
            os.chown(directory, self._account.pw_uid, self._account.pw_gid)
        return directory

    def _wait_until_ready(self) -> None:
        assert self._process is not None
        for _ in _attempts(START_TIMEOUT_S):
            try:
                psycopg.connect(self.url(), connect_timeout=5).close()
                return
            except psycopg.OperationalError as error:
                refusal = str(error).strip()
            if self._process.poll() is not None:
                raise UnavailableError(f"postgres exited while starting: {self._last_lines()}")
        raise UnavailableError(f"postgres did not start: timeout_s={START_TIMEOUT_S:.0f} {refusal}")

    def _last_lines(self) -> str:
        lines = (self.data_dir / "postgres.log").read_text(errors="replace").splitlines()
        return " | ".join(lines[-5:])


def _attempts(timeout_s: float) -> Iterator[None]:
    """One turn per probe interval until the time is over."""
    for _ in range(int(timeout_s / _PROBE_INTERVAL_S)):
        yield
        time.sleep(_PROBE_INTERVAL_S)


def _lock(path: Path) -> int:
    """An exclusive lock that the kernel drops when this process ends; AlreadyExistsError when it is taken."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        holder = os.pread(fd, 20, 0).decode() or "unknown"
        os.close(fd)
        raise AlreadyExistsError(f"postgres is supervised by another process: pid={holder} lock={path}") from error
    os.ftruncate(fd, 0)
    os.pwrite(fd, str(os.getpid()).encode(), 0)
    return fd


def _stop_leftovers(pgdata: Path) -> None:
    """End the server that a killed supervisor left on this directory, and its orphans.

    Every process of a server works in its data directory: that distinguishes ours from another process that got
    the process id in a stale postmaster.pid. Caller holds the supervisor lock. Without /proc
    nothing is found, and Postgres itself refuses a directory that is in use.
    """
    steps = (None, 0.5), (signal.SIGINT, LEFTOVER_TIMEOUT_S), (signal.SIGQUIT, LEFTOVER_TIMEOUT_S)
    for signal_number, patience_s in steps:  # first, its watchdog may be about to stop it
        found = _servers_in(pgdata)
        if not found:
            break
        log.warning("postgres left over: pids=%s signal=%s data_dir=%s", found, signal_number, pgdata)
        if signal_number is not None:
            _send(found, signal_number, _postmaster_id(pgdata))
        _wait_for_none(pgdata, patience_s)
    if stubborn := _servers_in(pgdata):
        raise UnavailableError(f"postgres left over does not stop: pids={stubborn} data_dir={pgdata}")
    (pgdata / "postmaster.pid").unlink(missing_ok=True)


def _send(found: list[int], signal_number: signal.Signals, postmaster: int) -> None:
    """Tell the postmaster, who tells its children; or the orphans, when it is dead."""
    for pid in [postmaster] if postmaster in found else found:
        with suppress(ProcessLookupError):
            os.kill(pid, signal_number)


def _postmaster_id(pgdata: Path) -> int:
    try:
        return int((pgdata / "postmaster.pid").read_text().split("\n", 1)[0])
    except FileNotFoundError:  # it is just ending
        return 0


def _wait_for_none(pgdata: Path, patience_s: float) -> None:
    for _ in _attempts(patience_s):
        if not _servers_in(pgdata):
            return


def _servers_in(directory: Path) -> list[int]:
    """Ids of the Postgres processes that work in `directory`."""
    pids = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if (entry / "comm").read_text() == "postgres\n" and (entry / "cwd").readlink() == directory:
                pids.append(int(entry.name))
        except OSError:  # gone meanwhile, or not ours to look at
            continue
    return pids
