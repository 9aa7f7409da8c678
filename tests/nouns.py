"""A metastore in one object, as models and fakes are: each of its nouns is served by the same one."""

from __future__ import annotations

import types
import uuid
from collections.abc import Mapping
from typing import Any, cast, get_type_hints

from headrace.config.settings import Settings
from headrace.metastore.api.metastore import Metastore
from headrace.metastore.postgres.pass_through import Connected
from headrace.metastore.postgres.store import PostgresMetastore

FACTS = {"cluster_id", "incarnation_id", "commit_shards"}
NOUNS = sorted(name for name, member in vars(Metastore).items() if isinstance(member, property) and name not in FACTS)


class _Nouns:
    def __init__(self, server: Any) -> None:
        self._server = server

    def __getattr__(self, name: str) -> Any:
        return self._server if name in NOUNS else getattr(self._server, name)


def page_of(noun: str) -> type:
    """Return the Protocol of a noun."""
    getter = vars(Metastore)[noun].fget
    page: type = get_type_hints(getter)["return"]
    return page


def nouns(server: Any) -> Metastore:
    """Return the metastore of which `server` has all operations that are called; it may be one already."""
    return server if isinstance(server, PostgresMetastore) else cast(Metastore, _Nouns(server))


def postgres_nouns() -> Mapping[str, type]:
    """Return the class of each noun in Postgres."""
    pool: Any = types.SimpleNamespace()
    made = PostgresMetastore(Connected(pool, pool, Settings(), "", uuid.UUID(int=0), 1))
    return {noun: type(getattr(made, noun)) for noun in NOUNS}


class _Flat:
    def __init__(self, metastore: Any) -> None:
        self._metastore = metastore

    def __getattr__(self, name: str) -> Any:
        noun = next((noun for noun in NOUNS if hasattr(getattr(self._metastore, noun), name)), None)
        return getattr(self._metastore if noun is None else getattr(self._metastore, noun), name)


def flat(metastore: Any) -> Any:
    """Return one object with the operations of all nouns: for what is put before its calls."""
    return _Flat(metastore)
