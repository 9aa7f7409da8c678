"""The text of the SQL files that define functions, for tests that plant a bug in one."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager

import psycopg

from headrace.config.settings import Settings
from headrace.metastore.postgres.embedded import EmbeddedPostgres
from headrace.metastore.postgres.sql_files import function_files
from headrace.metastore.postgres.store import PostgresMetastore
from tests.kept_databases import Database, KeptDatabases, close, continued
from tests.planted import Trial

Texts = Sequence[Sequence[str]]
"""(right, wrong) of a planted bug."""
FUNCTION = re.compile(r"^CREATE OR REPLACE FUNCTION ", re.MULTILINE)
"""In the definition of a function; other statements may change what cannot be put back."""


def source_of(name: str) -> str:
    """The text of the file `name`.sql."""
    (text,) = [file.text for file in function_files() if file.name == name]
    return text


def plant(url: str, function: str, right: str, wrong: str) -> None:
    """Install a function with every occurrence of one text replaced."""
    plant_all(url, function, [(right, wrong)])


def plant_all(url: str, function: str, texts: Texts) -> None:
    """Install a function with some texts replaced."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(broken(function, texts).encode())


def broken(function: str, texts: Texts) -> str:
    """The source of a function with a planted bug."""
    source = source_of(function)
    for right, wrong in texts:
        assert right != wrong, f"the bug patches nothing: {right}"
        assert right in source, f"the bug has to be planted elsewhere: {right}"
        source = source.replace(right, wrong)
    return source


class Throwaway:
    """Databases of one history each, with a bug planted: what a history left would be part of the next one."""

    def __init__(self, server: EmbeddedPostgres, template: str, kept: KeptDatabases | None = None) -> None:
        self._server, self._template, self._kept = server, template, kept

    @contextmanager
    def database(self, *statements: str) -> Iterator[str]:
        """The address of a migrated database in which the statements were run."""
        with psycopg.connect(self._server.url(), autocommit=True) as admin:
            admin.execute(f"CREATE DATABASE planted TEMPLATE {self._template} STRATEGY FILE_COPY".encode())
            try:
                url = self._server.url("planted")
                with psycopg.connect(url, autocommit=True) as connection:
                    for statement in statements:
                        connection.execute(statement.encode())
                yield url
            finally:
                admin.execute(b"DROP DATABASE planted WITH (FORCE)")

    @contextmanager
    def kept(self, *functions: str) -> Iterator[Database]:
        """A database that an earlier history left, as it was, with these functions instead of those of their names."""
        assert self._kept is not None
        with self._kept.one() as database:
            with psycopg.connect(database.url, autocommit=True) as connection:
                for function in functions:
                    connection.execute(function.encode())
            yield database

    @asynccontextmanager
    async def store(self, *statements: str, sessions: int = 4) -> AsyncIterator[tuple[str, PostgresMetastore]]:
        """The same, with a metastore on it."""
        if self._kept is not None and all(FUNCTION.search(statement) for statement in statements):
            with self.kept(*statements) as database:
                with continued(database):
                    store = await PostgresMetastore.open(database.url, Settings(metastore_pool_size=sessions))
                try:
                    yield database.url, store
                finally:
                    await close(store, database)
            return
        with self.database(*statements) as url:
            store = await PostgresMetastore.open(url, Settings(metastore_pool_size=sessions))
            try:
                yield url, store
            finally:
                await store.close()

    async def look_for(
        self,
        trial: Trial,
        function: str,
        texts: Texts,
        history: Callable[[str, PostgresMetastore, int], Awaitable[object]],
        *errors: type[BaseException],
        statements: Sequence[str] = (),
        sessions: int = 4,
    ) -> None:
        """Run a history in a new database for each seed, until one fails with such an error by the bug in SQL.

        `statements` are run before the bug is planted.
        """
        for seed in trial.seeds():
            async with self.store(*statements, broken(function, texts), sessions=sessions) as (url, store):
                with trial.shown_by(*errors):
                    await history(url, store, seed)
