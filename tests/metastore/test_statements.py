"""What Python sends is what the SQL files define, and what a migrated database holds."""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from headrace.metastore import postgres
from headrace.metastore.postgres.reports.reports import ReportQuery
from headrace.metastore.postgres.sql_files import Field, function_files, parse_signatures, query_files, signatures
from headrace.metastore.postgres.statement import Statement
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.storage.errors import InvalidError
from tests.nouns import postgres_nouns

PLACEHOLDER = re.compile(r"%\((\w+)\)s")
CATALOG = """
SELECT p.proname, p.proargnames, p.proargmodes,
       array(SELECT t::regtype::text FROM unnest(coalesce(p.proallargtypes, p.proargtypes::oid[])) AS t),
       p.prorettype::regtype::text
  FROM pg_proc p WHERE p.pronamespace = 'public'::regnamespace
"""


def statements() -> dict[str, Statement]:
    """Every Statement of the package by name."""
    found: dict[str, Statement] = {}
    for module in pkgutil.walk_packages(postgres.__path__, f"{postgres.__name__}."):
        for value in (*vars(importlib.import_module(module.name)).values(), *DECLARED):
            if isinstance(value, Statement):
                assert found.setdefault(value.name, value) is value, f"two statements of one name: {value.name}"
    return found


WIDTHS: dict[Statement, range] = {
    vars(operation)["statement"]: vars(operation)["widths"]
    for noun in postgres_nouns().values()
    for part in noun.__mro__
    for operation in vars(part).values()
    if "statement" in getattr(operation, "__dict__", {})
}
"""How many columns the answer of a statement may have that an operation of one line calls."""
DECLARED = tuple(WIDTHS)
STATEMENTS = statements()


def numbered(sql: str) -> str:
    """The text with `$n` placeholders, as the server gets it."""
    names = list(dict.fromkeys(PLACEHOLDER.findall(sql)))
    return PLACEHOLDER.sub(lambda match: f"${names.index(match[1]) + 1}", sql)


def test_signatures_read_from_files_are_those_of_the_database(metastore_url: str) -> None:
    assert len(signatures()) > 90
    with psycopg.connect(metastore_url) as connection:

        def canonical(spelled: str) -> str:
            row = connection.execute("SELECT %s::regtype::text", (spelled,)).fetchone()
            assert row is not None
            return str(row[0])

        catalog = {}
        for name, names, modes, *facts in connection.execute(CATALOG.encode()).fetchall():
            modes = modes or ["i"] * len(names or [])
            given = tuple(name for name, mode in zip(names or [], modes, strict=True) if mode in "ib")
            catalog[name, given] = names, modes, *facts
        written = [signature for file in function_files() for signature in file.signatures]
        assert sorted(catalog) == sorted((s.name, tuple(field.name for field in s.parameters)) for s in written)
        for signature in written:
            name = signature.name
            names, modes, types, returns = catalog[name, tuple(field.name for field in signature.parameters)]
            fields = list(zip(names or [], modes, types, strict=True))
            inputs = [(field, kind) for field, mode, kind in fields if mode in "ib"]
            outputs = [(field, kind) for field, mode, kind in fields if mode in "otb"]
            assert inputs == [(field.name, canonical(field.type)) for field in signature.parameters], name
            assert outputs == [(field.name, canonical(field.type)) for field in signature.columns], name
            if not outputs:
                assert returns == canonical(signature.returns), name


@pytest.fixture(scope="module")
def one_session(module_metastore_url: str) -> Iterator[psycopg.Connection[Any]]:
    """A session for all statements: what is only prepared changes nothing."""
    with psycopg.connect(module_metastore_url, autocommit=True) as connection:
        yield connection


@pytest.mark.parametrize("name", STATEMENTS)
def test_the_server_takes_every_statement(name: str, one_session: psycopg.Connection[Any]) -> None:
    one_session.execute(f"PREPARE asked AS {numbered(STATEMENTS[name].sql.decode())}".encode())
    row = one_session.execute(
        "SELECT cardinality(parameter_types) FROM pg_prepared_statements WHERE name = 'asked'"
    ).fetchone()
    columns = one_session.pgconn.describe_prepared(b"asked").nfields
    one_session.execute("DEALLOCATE asked")
    assert columns in WIDTHS.get(STATEMENTS[name], [columns])
    assert row == (len(STATEMENTS[name].parameters) + STATEMENTS[name].names_life,)


def test_every_sql_file_is_used() -> None:
    assert query_files().keys() - STATEMENTS.keys() == set(), "queries that nothing sends"
    assert query_files().keys() & signatures().keys() == set(), "a name of both a function and a query"
    texts = [file.text for file in (*function_files(), *query_files().values())]
    texts += [statement.sql.decode() for statement in STATEMENTS.values() if isinstance(statement, ReportQuery)]
    code = "\n".join(line.partition("--")[0] for text in texts for line in text.splitlines())
    calls = set(re.findall(r"(?<!CREATE OR REPLACE FUNCTION )\b(\w+)\(", code))
    prefixes = ("segment_", "partition_delete_", "cause_", "reference_", "file_reserved")
    names = {name for name in signatures() if name.startswith(prefixes)}  # of remote segments: test_names.py
    kept = {
        "claim_job",
        "find_cleanable_extents",
        "find_live_extents",
        "flushed_files",
        "files_of_partitions",
        "partitions_in_files",
        "prepare_life",
        "mark_unreadable",
    }
    # workers of the previous release call them
    assert signatures().keys() - STATEMENTS.keys() - calls - names == kept, "functions that nothing calls"


async def test_a_missing_or_unknown_parameter_is_refused_by_name(metastore: PostgresMetastore) -> None:
    claim = Statement("claim_job", writes=True)
    with pytest.raises(InvalidError, match="claim_job refused: missing=kinds,worker unknown=workers"):
        await claim.rows(metastore.pool, workers="a", lease_ms=1)
    with pytest.raises(InvalidError, match=r"neither a SQL function nor a query.*name=claim_jobs"):
        await Statement("claim_jobs", writes=True).rows(metastore.pool)


async def test_intervals_are_given_in_milliseconds(metastore: PostgresMetastore) -> None:
    (signature,) = parse_signatures(
        "-- a comment (with parentheses, and a comma)\n"
        "CREATE OR REPLACE FUNCTION spans(\n    p_span interval,  -- (one)\n    p_spans interval[]\n)"
        " RETURNS SETOF double precision\nLANGUAGE sql AS $$\n"
        "    SELECT extract(epoch FROM s)::double precision FROM unnest(p_span || p_spans) AS s\n$$;"
    )
    assert signature.parameters == (Field("p_span", "interval"), Field("p_spans", "interval[]"))
    assert (signature.columns, signature.returns) == ((), "double precision")
    async with metastore.pool.connection() as connection:
        await connection.execute(
            "CREATE FUNCTION spans(p_span interval, p_spans interval[]) RETURNS SETOF double precision"
            " LANGUAGE sql AS 'SELECT extract(epoch FROM s)::double precision FROM unnest(p_span || p_spans) AS s'"
        )
        given: dict[str, Any] = {"span_ms": 86_400_001, "spans_ms": [7, None, 2]}
        cursor = await connection.execute(signature.call.encode(), given)
        assert await cursor.fetchall() == [(86400.001,), (0.007,), (None,), (0.002,)]


def test_a_form_that_is_not_known_is_refused() -> None:
    with pytest.raises(InvalidError, match="cannot be read: defined=1 read=none"):
        parse_signatures("CREATE FUNCTION strange(p_amount numeric(10, 2)) RETURNS int LANGUAGE sql RETURN 1;")
    (signature,) = parse_signatures("CREATE OR REPLACE FUNCTION f(amount int) RETURNS int LANGUAGE sql RETURN 1;")
    with pytest.raises(InvalidError, match="parameter=amount"):
        _ = signature.call
