"""Passwords for Postgres that a command prints: tokens of a cloud's IAM, which are valid for minutes.

Place: under the connections of each process, and under the tools that migrate.
Invariant: a password is kept in memory for KEPT_SECONDS, and is in no log and no error; neither is what the command
writes to its error output. Without metastore.password.command nothing is run.
"""

from __future__ import annotations

import asyncio
import shlex
import subprocess

from psycopg.conninfo import make_conninfo

from headrace.config.settings import Settings
from headrace.metastore.postgres.address import parsed
from headrace.storage.clock import Clock
from headrace.storage.errors import InvalidError, UnavailableError

KEPT_SECONDS = 60.0
"""Connections that are made in this time share a password. Tokens of AWS are valid for 15 minutes."""
TIMEOUT_SECONDS = 10.0


class PasswordCommand:
    """Command of one process that prints the password."""

    def __init__(self, command: str, clock: Clock) -> None:
        """`command`: a program and its arguments, as in a shell, which does not take part."""
        self._arguments = _arguments(command)
        self._clock = clock
        self._password = ""
        self._kept_until = float("-inf")
        self._running = asyncio.Lock()

    async def password(self) -> str:
        """A recent one. UnavailableError if the command fails."""
        async with self._running:
            if self._clock.monotonic() >= self._kept_until:
                self._password = await asyncio.to_thread(_run, self._arguments)
                self._kept_until = self._clock.monotonic() + KEPT_SECONDS
        return self._password


def url_with_password(settings: Settings) -> str:
    """metastore.url for tools that connect once; with the password that the command prints, if there is one.

    InvalidError for a malformed one.
    """
    parsed(settings.metastore_url)
    if not settings.metastore_password_command:
        return settings.metastore_url
    return make_conninfo(settings.metastore_url, password=_run(_arguments(settings.metastore_password_command)))


def _arguments(command: str) -> list[str]:
    try:
        return shlex.split(command)
    except ValueError as error:
        raise InvalidError(f"metastore.password.command: {error}") from error


def _run(arguments: list[str]) -> str:
    name = "metastore.password.command"
    try:
        done = subprocess.run(
            arguments,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=TIMEOUT_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise UnavailableError(f"{name} did not end in {TIMEOUT_SECONDS:.0f} s: program={arguments[0]}") from None
    except OSError as error:
        raise InvalidError(f"{name} cannot be run: program={arguments[0]} {error.strerror}") from error
    password = done.stdout.decode(errors="replace").strip("\r\n")
    if done.returncode or not password:
        raise UnavailableError(f"{name} gave no password: program={arguments[0]} status={done.returncode}")
    return password
