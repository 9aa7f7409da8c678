"""Texts of libraries about addresses, well written or not, are shown without any part of a password."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.config.addresses import HIDDEN, without_secrets
from headrace.config.errors import ConfigError
from headrace.config.load import load
from headrace.config.security_settings import SECRETS
from headrace.storage.errors import HeadraceError
from headrace.tables.catalog import CatalogAddress
from headrace.tables.values.registry import RegistryFormat
from tests.seeds import examples

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
NO_REGISTRY = ("postgresql", "postgresql+psycopg", "thrift", "sqlite+pysqlcipher")
SCHEMES = ("http", "https", "postgresql", "postgresql+psycopg", "pgsql", "sqlite+pysqlcipher", "thrift", "ftp", "")


def _told(call: Callable[[], object]) -> str:
    """Return what a log with its traceback would have of the error of a call; nothing if there is none."""
    error: BaseException | None = None
    try:
        call()
    except HeadraceError as raised:
        error = raised
    text = ""
    while error is not None:
        text += f"{type(error).__name__}: {error}\n"
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return text


def _ask_registry(address: str) -> object:
    return RegistryFormat(address).open(b"\0\0\0\0\1")


@pytest.mark.requirement("X2")
@pytest.mark.parametrize("form", MALFORMED)
def test_a_mistyped_address_is_not_repeated_with_its_password(form: str) -> None:
    for scheme in SCHEMES:
        address = form.format(scheme=scheme)
        catalog = CatalogAddress("lake", "ns", {"uri": address})
        assert SECRET not in (told := _told(catalog.open)), f"catalog {address}: {told}"
        if scheme not in NO_REGISTRY:
            assert SECRET not in (told := _told(partial(_ask_registry, address))), f"registry {address}: {told}"


@pytest.mark.requirement("X2")
@pytest.mark.parametrize(
    "name", sorted({*SECRETS, "metastore.url", "tables.catalog.uri", "tables.schema.registry.url"})
)
def test_no_setting_with_a_secret_is_repeated_by_its_error(name: str) -> None:
    """It may be written as another setting would be, or refer to nothing."""
    for scheme in SCHEMES:
        for form in (*MALFORMED, "S3CRET", "${file:/nowhere/S3CRET", "${env:S3CRET", "${S3CRET}", "a,S3CRET,,"):
            value = form.format(scheme=scheme) if "{scheme}" in form else form
            told = ""
            try:
                load(flags={name: value})
            except ConfigError as error:
                told = str(error)
            assert SECRET not in told, f"{name}={value}: {told}"


@settings(max_examples=examples(200))
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
