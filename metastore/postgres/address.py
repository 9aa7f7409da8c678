"""Makes what connections to the metastore are opened with, from the settings that name it.

Place: before psycopg gets an address. psycopg's and libpq's errors repeat what they could not read, which may be the
password; so they are not passed on, nor kept as the cause. A command may print the password: tokens of a cloud's IAM
are valid for minutes.
Invariant: an address that this module returned names user and password in no error of libpq.
Invariant of passwords: a password is kept in memory for KEPT_SECONDS, and is in no log and no error; neither is what
the command writes to its error output. Without metastore.password.command nothing is run.
"""

from __future__ import annotations

import asyncio
import shlex
import subprocess
from typing import Any

import psycopg
from psycopg import pq
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from headrace.config.metastore_url import FORM, HOW_TO_ENCODE, metastore_url_problem
from headrace.config.settings import Settings
from headrace.storage.clock import Clock
from headrace.storage.errors import InvalidError, UnavailableError


def parsed(url: str) -> dict[str, Any]:
    """libpq's parameters. InvalidError says which part is wrong."""
    problem = metastore_url_problem(url)
    if problem is None:
        try:
            return conninfo_to_dict(url)
        except psycopg.ProgrammingError:
            problem = f"{_what_libpq_refuses(url)} (expected: {FORM}; {HOW_TO_ENCODE})"
    raise InvalidError(f"metastore.url: {problem}") from None


def _what_libpq_refuses(url: str) -> str:
    if "://" not in url:
        return "it is neither a postgresql:// address nor a list of name=value"
    known = {option.keyword.decode() for option in pq.Conninfo.get_defaults()} | {"ssl"}
    _, _, parameters = url.partition("?")
    for number, each in enumerate(parameters.split("&"), 1):
        if each.partition("=")[0] not in known:
            return f"parameter number {number} after the ? is none of libpq's"
    return "libpq cannot read it"


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
