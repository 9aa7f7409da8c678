"""The address of the metastore, taken apart: what every connection is made from.

Place: before psycopg gets an address. psycopg's and libpq's errors repeat what they could not read, which may be the
password; so they are not passed on, nor kept as the cause.
Invariant: an address that this module returned names user and password in no error of libpq.
"""

from __future__ import annotations

from typing import Any

import psycopg
from psycopg import pq
from psycopg.conninfo import conninfo_to_dict

from headrace.config.metastore_url import FORM, HOW_TO_ENCODE, metastore_url_problem
from headrace.storage.errors import InvalidError


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
