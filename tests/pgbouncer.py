"""A PgBouncer on loopback, in transaction mode unless a test wants another one, in front of a Postgres of the tests.

Fault model: none. Each statement may run on another server connection than the one before.
"""

from __future__ import annotations

import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from headrace.config.free_ports import free_ports
from headrace.metastore.postgres.installation import run_as

SERVER_CONNECTIONS = 3
"""Fewer than the clients, so that statements of a client move between them."""
_CONFIG = """
[databases]
* = host=127.0.0.1 port={postgres_port}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = trust
auth_file = {directory}/users
pool_mode = {mode}
{prepared}
ignore_startup_parameters = options,extra_float_digits
default_pool_size = {connections}
logfile = {directory}/log
"""


@contextmanager
def running_pgbouncer(
    program: Path, postgres_port: int, user: str, password: str, *, mode: str = "transaction", prepares: bool = True
) -> Iterator[int]:
    """The port that it listens on. Databases have the server's names. `prepares`: it keeps prepared statements for its
    clients, which the oldest versions cannot.
    """
    prepared = "max_prepared_statements = 200" if prepares else ""
    if not prepares and b"max_prepared_statements" in program.read_bytes():
        prepared = "max_prepared_statements = 0"
    account = run_as()  # like Postgres, it does not run as root
    with tempfile.TemporaryDirectory(prefix="headrace-pgbouncer-") as name:
        directory = Path(name)
        (port,) = free_ports(1)
        (directory / "users").write_text(f'"{user}" "{password}"\n')
        (directory / "ini").write_text(
            _CONFIG.format(
                postgres_port=postgres_port,
                port=port,
                directory=directory,
                connections=SERVER_CONNECTIONS,
                mode=mode,
                prepared=prepared,
            )
        )
        copy = shutil.copy(program, directory / "pgbouncer")  # where that account can reach it
        if account is not None:
            for path in (directory, *directory.iterdir()):
                shutil.chown(path, account.pw_uid, account.pw_gid)
        process = subprocess.Popen(
            [copy, "--quiet", str(directory / "ini")],
            cwd="/",
            user=account.pw_uid if account else None,
            group=account.pw_gid if account else None,
            extra_groups=[] if account else None,
        )
        try:
            _wait_for(port, process)
            yield port
        finally:
            process.terminate()
            process.wait(timeout=300)


def _wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    for _ in range(1_200):
        assert process.poll() is None, f"pgbouncer ended with status {process.returncode}"
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise AssertionError("pgbouncer does not listen")
