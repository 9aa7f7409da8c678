"""What is wrong with the address of the metastore, said without any of its text. Pure.

Place: asked by load.py for metastore.url, and by metastore/postgres/address.py for every address before libpq sees it.
Invariant: no message has a part of the address, because a password with an unexpected character can be in any of them:
libpq reads `postgresql://u:a/b@host` as host `u`, port `a` and database `b@host`, and names them in its errors.
An address that libpq takes as it was meant is not refused, unless its database has an @ that is not encoded.
Source: PostgreSQL 17, 32.1.1 Connection Strings.
"""

from __future__ import annotations

import re

FORM = "postgresql://user:password@host:5432/database?sslmode=verify-full"
HOW_TO_ENCODE = (
    "percent-encode special characters of user and password: % is %25, @ is %40, / is %2F, : is %3A, a space is %20"
)
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_BAD_CODE = re.compile(r"%(?![0-9A-Fa-f]{2})|%00")
_NOT_PRINTED = re.compile(r"[\s\x00-\x1f\x7f]")
_HOST = re.compile(r"(?:\[[0-9A-Fa-f:.]+(?:%25?\w+)?\]|[^\[\]:@]*)(?::(\d{0,5}))?")
_PORT_MAX = 65_535


def metastore_url_problem(url: str) -> str | None:
    """Return which part is wrong and how to write it; None for an address that can be used."""
    said = _problem(url)
    return None if said is None else f"{said} (expected: {FORM}; {HOW_TO_ENCODE})"


def _problem(url: str) -> str | None:
    scheme = _SCHEME.match(url)
    if scheme is None:
        return None if not url or _is_list_of_words(url) else "it does not begin with postgresql://"
    if scheme[0] not in ("postgresql://", "postgres://"):
        return "the scheme before :// is not postgresql"
    rest = url[scheme.end() :]
    head, _, tail = rest.partition("/")
    login, has_login, hosts = head.partition("@")
    if not has_login:
        login, hosts = "", head
    hosts, _, early_parameters = hosts.partition("?")
    database, _, parameters = tail.partition("?")
    if early_parameters:
        database, parameters = "", early_parameters
    if "@" in hosts or (has_login and "@" in database):
        return "an @ in user, password or database is not encoded"
    if "@" in database:
        return "a / in user or password is not encoded"
    user, _, password = login.partition(":")
    parts = {"user": user, "password": password, "host": hosts, "database": database, "parameters": parameters}
    for name, text in parts.items():
        if _NOT_PRINTED.search(text):
            return f"the {name} has a space or a control character"
        if _BAD_CODE.search(text):
            return f"the {name} has a % that is not the beginning of a code"
    return _problem_of_hosts(hosts) or _problem_of_parameters(parameters)


def _is_list_of_words(text: str) -> bool:
    """`host=... user=...`, which libpq takes, too."""
    return re.match(r"\s*[a-z_]+\s*=", text) is not None


def _problem_of_hosts(hosts: str) -> str | None:
    for host in hosts.split(","):
        match = _HOST.fullmatch(host)
        if match is None:
            return "host and port are not host:number (a user and password before them end with @)"
        if match[1] and not 0 < int(match[1]) <= _PORT_MAX:
            return "the port is not between 1 and 65535"
    return None


def _problem_of_parameters(parameters: str) -> str | None:
    for number, each in enumerate(parameters.split("&") if parameters else [], 1):
        if each.count("=") != 1 or each.startswith("="):
            return f"parameter number {number} after the ? is not name=value"
    return None
