"""Texts of libraries about addresses, well written or not, are shown without any part of a password."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.config.shown import HIDDEN, without_secrets
from headrace.scan.tables.catalog import CatalogAddress
from headrace.scan.tables.values.registry import RegistryFormat
from headrace.storage.errors import HeadraceError

SECRET = "S3CRET"
MALFORMED = (
    "{scheme}//u:S3CRET@127.0.0.1/x",
    "{scheme}:/u:S3CRET@127.0.0.1/x",
    "{scheme}://u:S3CRET@127.0.0.1:port/x",
    "{scheme}://u:S3CRET/b@127.0.0.1:1/x",
    "{scheme}://u:a/S3CRET@127.0.0.1:1/x",
    "{scheme}://u:a#S3CRET@127.0.0.1:1/x",
    "{scheme}://u:a?S3CRET@127.0.0.1:1/x",
    "{scheme}://u:S3CRET@@127.0.0.1:1",
    "{scheme}://u:[S3CRET@127.0.0.1:1",
    "{scheme}://u:%53S3CRET%ZZ@127.0.0.1:1",
    "{scheme}://:S3CRET@/x",
    "{scheme}://S3CRET@127.0.0.1:1",
    " {scheme}://u:S3CRET@127.0.0.1:1",
    "u:S3CRET@127.0.0.1:1",
    "{scheme}://127.0.0.1:1/x?password=S3CRET&sslpassword=S3CRET",
)
SCHEMES = ("http", "https", "postgresql", "postgresql+psycopg", "postgresq", "sqlite+pysqlcipher", "thrift", "ftp", "")


def _told(error: BaseException | None) -> str:
    """What a log with its traceback would have."""
    text = ""
    while error is not None:
        text += f"{type(error).__name__}: {error}\n"
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return text


@pytest.mark.requirement("X2")
@pytest.mark.parametrize("form", MALFORMED)
def test_a_mistyped_address_is_not_repeated_with_its_password(form: str) -> None:
    for scheme in SCHEMES:
        address = form.format(scheme=scheme)
        try:
            CatalogAddress("lake", "ns", {"uri": address}).open().close()
        except HeadraceError as error:
            assert SECRET not in _told(error), f"catalog {address}: {error}"
        if scheme in ("postgresql", "postgresql+psycopg", "thrift", "sqlite+pysqlcipher"):
            continue  # no registry
        try:
            registry = RegistryFormat(address)
            registry.open(b"\0\0\0\0\1")
        except HeadraceError as error:
            assert SECRET not in _told(error), f"registry {address}: {error}"


@settings(max_examples=200)
@given(st.text(st.characters(codec="ascii", exclude_categories=["Cc"]), min_size=1, max_size=12))
def test_no_part_of_a_password_is_left(password: str) -> None:
    """Libraries cut an address at its delimiters, and repeat a piece in quotes."""
    address = f"http://user:{password}@registry:8081"
    for cut in ":/?#@[]":
        for piece in password.split(cut):
            if piece:
                text = f"Port could not be cast to integer value as '{piece}'"
                left = without_secrets(text, address).removeprefix("Port could not be cast to integer value as ")
                assert piece == left.strip("'") or HIDDEN in left or not any(map(str.isalnum, piece)), left
                assert not any(map(str.isalnum, piece)) or HIDDEN in left


def test_other_words_stay() -> None:
    address = "postgresql://headrace:pass@db.example/x"
    text = 'connection to server at "db.example", port 5432 failed: FATAL: role "headrace" does not exist'
    assert without_secrets(text, address) == text
