"""Addresses in messages and logs: without user, password and parameters. Pure.

Place: wherever a value that may be an address is named: errors of settings, of stores, of key sets.
"""

from __future__ import annotations

import re
from urllib.parse import urlsplit

_LOGIN_OF_VALUE = re.compile(r"(?<=://).*@", re.S)
_LOGIN_IN_TEXT = re.compile(r"(?<=://)[^\s/\"'<>]*@")
HIDDEN = "(not shown)"


def shown_address(value: str) -> str:
    """One value, of which all up to the last @ may be a password that was written wrongly."""
    without_login = _LOGIN_OF_VALUE.sub(f"{HIDDEN}@", value)
    place, has_parameters, _ = without_login.partition("?")
    return f"{place}?{HIDDEN}" if has_parameters and "://" in place else without_login


def endpoint_problem(value: str) -> str | None:
    """Return what is wrong with s3.endpoint; None for one that can be used."""
    if "@" in value:
        return "it has a user or password: credentials come from the AWS environment (AWS_ACCESS_KEY_ID, ...)"
    try:
        parts = urlsplit(value)
        is_good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_good = False
    return None if is_good else f"{shown_address(value)!r} is not http://host:port or https://host"


def without_logins(text: str) -> str:
    """A text of others, for example an error of a library, in which addresses may be."""
    return _LOGIN_IN_TEXT.sub(f"{HIDDEN}@", text)
