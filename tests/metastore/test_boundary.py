"""The boundary is complete, and each of its operations is implemented in one place."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING

from headrace.metastore.api.metastore import Metastore
from headrace.metastore.postgres.store import PostgresMetastore

if TYPE_CHECKING:
    _: type[Metastore] = PostgresMetastore  # mypy compares the signatures

FACTS = {"cluster_id", "incarnation_id", "commit_shards"}
MAKING = {"open"}


def operations(cls: type) -> set[str]:
    """The public names that a class and its bases define."""
    return {name for base in cls.__mro__ if base is not object for name in vars(base) if not name.startswith("_")}


def test_each_operation_has_exactly_one_implementation() -> None:
    wanted = operations(Metastore) - FACTS
    assert len(wanted) > 60
    for name in wanted:
        places = [base.__name__ for base in PostgresMetastore.__mro__ if name in vars(base)]
        assert len(places) == 1, (name, places)


def test_postgres_offers_nothing_beyond_the_boundary() -> None:
    assert operations(PostgresMetastore) - operations(Metastore) == MAKING


def test_an_implementation_documents_or_inherits_its_contract() -> None:
    bare = [
        f"{protocol.__name__}.{name}"
        for protocol in Metastore.__mro__
        for name, member in vars(protocol).items()
        if inspect.iscoroutinefunction(member) and not inspect.getdoc(member)
    ]
    assert not bare, bare
