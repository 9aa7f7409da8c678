"""Passwords for the tools: from a file, from standard input, or typed at the terminal.

Place: under `headrace users` and `headrace cluster apply`.
Invariant: no password comes from an argument or is printed: all users of the machine see the arguments of a command.
"""

from __future__ import annotations

import argparse
import getpass
import sys
from pathlib import Path

from headrace.storage.errors import InvalidError

STDIN = "-"


def add_password_file(parser: argparse.ArgumentParser) -> None:
    """Add the option --password-file."""
    parser.add_argument(
        "--password-file",
        metavar="PATH",
        help="file with the password in its first line; - is standard input. Default: ask at the terminal, twice",
    )


def password_of(args: argparse.Namespace, user: str) -> str:
    """Return the password that the flags name. InvalidError if there is none, or it is empty."""
    if args.password_file is None:
        return _typed(user)
    if args.password_file == STDIN:
        return checked(sys.stdin.readline().rstrip("\r\n"), "standard input")
    return password_in(Path(args.password_file))


def password_in(path: Path) -> str:
    """Return the first line of a file. InvalidError if it cannot be read, has more lines, or is empty."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise InvalidError(f"cannot read the password: {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InvalidError(f"the password is not UTF-8 text: {path}") from error
    if len(lines) > 1:
        raise InvalidError(f"a password is one line: {path}")
    return checked(lines[0] if lines else "", str(path))


def checked(password: str, where: str) -> str:
    """Return the password. InvalidError if it is empty."""
    if not password:
        raise InvalidError(f"empty password: {where}")
    return password


def _typed(user: str) -> str:
    if not sys.stdin.isatty():
        raise InvalidError("no terminal to ask for the password on: set --password-file")
    first = checked(getpass.getpass(f"password of {user}: "), "terminal")
    if getpass.getpass("the same again: ") != first:
        raise InvalidError("the two passwords differ: nothing was done")
    return first
