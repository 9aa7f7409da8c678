"""The boundary is complete, and each of its operations is implemented in one place."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

from headrace.metastore.api.metastore import Metastore
from headrace.metastore.postgres.pass_through import PostgresNoun
from headrace.metastore.postgres.store import PostgresMetastore
from tests.nouns import NOUNS, page_of, postgres_nouns

MAKING = {"open"}
SHARED = vars(PostgresNoun).keys()


def operations(cls: type) -> set[str]:
    """The public names that a class and its bases define."""
    return {name for base in cls.__mro__ if base is not object for name in vars(base) if not name.startswith("_")}


def test_an_operation_belongs_to_one_noun() -> None:
    names = [name for noun in NOUNS for name in operations(page_of(noun)) - {"cluster_id"}]
    assert len(names) > 150
    assert len(names) == len(set(names))


@pytest.mark.parametrize("noun", NOUNS)
def test_each_operation_has_exactly_one_implementation(noun: str) -> None:
    made = postgres_nouns()[noun]
    for name in operations(page_of(noun)) - {"cluster_id"}:
        places = [base.__name__ for base in made.__mro__ if name in vars(base)]
        assert len(places) == 1, (name, places)


@pytest.mark.parametrize("noun", NOUNS)
def test_postgres_offers_nothing_beyond_the_boundary(noun: str) -> None:
    assert operations(postgres_nouns()[noun]) - operations(page_of(noun)) - SHARED == set()
    assert operations(PostgresMetastore) - operations(Metastore) == MAKING


def test_an_implementation_documents_or_inherits_its_contract() -> None:
    bare = [
        f"{page.__name__}.{name}"
        for page in (Metastore, *map(page_of, NOUNS))
        for protocol in page.__mro__
        for name, member in vars(protocol).items()
        if inspect.iscoroutinefunction(member) and not inspect.getdoc(member)
    ]
    assert not bare, bare


def test_an_operation_of_one_line_is_in_five_files() -> None:
    """What CONTRIBUTING.md says of a new one; its callers are more."""
    root, name = Path(__file__).parents[2], "tombstone_segments"
    files = [
        file
        for folder in ("metastore", "tests")
        for kind in ("py", "sql")
        for file in (root / folder).rglob(f"*.{kind}")
    ]
    found = {file for file in files if re.search(rf"\b{name}\b", file.read_text())} - {Path(__file__)}
    assert {str(file.relative_to(root)) for file in found} == {
        "metastore/postgres/segments/release_segments.sql",
        "metastore/api/segments.py",
        "metastore/postgres/segments/segments.py",
        "tests/model/segment_api.py",
        "tests/contracts/test_segments_contract.py",
    }
