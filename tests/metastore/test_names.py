"""Numbers have names in SQL: they never change, the database has Python's, and plans are those of the bare numbers."""

from __future__ import annotations

import re
from pathlib import Path

import psycopg
import pytest

from headrace.metastore.postgres import sql_files
from headrace.metastore.postgres.sql_files import function_files, named_numbers

FROZEN = Path(__file__).parents[1] / "golden" / "sql_names.txt"
"""Name, type and number of each, by name. Lines are added, and removed with the last use; none changes."""
NAMES = {name: number for name, _, number in named_numbers()}
CALL = re.compile(r"\b(\w+)\(\)")
QUESTIONS = [
    "SELECT * FROM jobs WHERE state IN (job_waiting(), job_leased()) AND kind = 'a' AND key = 'b'",
    "SELECT * FROM jobs WHERE state IN (job_done(), job_given_up()) ORDER BY ended_at LIMIT 10",
    "SELECT * FROM segment_files WHERE state IN (file_condemned(), file_deleting()) ORDER BY dead_at LIMIT 10",
    "SELECT * FROM segment_files WHERE state = file_live() AND dead_at IS NULL ORDER BY level, file_id LIMIT 10",
    "SELECT * FROM configs WHERE resource_type = topic_resource() AND resource_name = 'a'",
    "INSERT INTO jobs (kind, key, payload, priority, state, due_at, created_at)"
    " VALUES ('a', 'b', '', 0, job_waiting(), now(), now())"
    " ON CONFLICT (kind, key) WHERE state IN (job_waiting(), job_leased()) DO NOTHING",
]
"""Each needs an index with a number in its condition or key."""


def _changed() -> set[str]:
    """Lines that are not as they were frozen."""
    return set(FROZEN.read_text(encoding="utf-8").splitlines()) ^ {" ".join(map(str, row)) for row in named_numbers()}


def test_no_number_changes() -> None:
    assert _changed() == set()
    assert len(NAMES) == len(list(named_numbers())), "a name twice"


def test_a_number_that_changes_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sql_files, "SINGLE", {**sql_files.SINGLE, "marker_bytes": 79})
    assert _changed() == {"marker_bytes int 78", "marker_bytes int 79"}


def test_the_database_has_pythons_numbers(metastore_url: str) -> None:
    with psycopg.connect(metastore_url) as connection:
        for name, kind, number in named_numbers():
            row = connection.execute(f"SELECT {name}(), pg_typeof({name}())::text".encode()).fetchone()
            assert row == (number, "integer" if kind == "int" else kind), name


@pytest.mark.parametrize("question", QUESTIONS)
def test_a_named_number_is_planned_as_the_number(question: str, metastore_url: str) -> None:
    bare = CALL.sub(lambda match: str(NAMES.get(match[1], match[0])), question)
    assert bare != question
    with psycopg.connect(metastore_url) as connection:
        connection.execute("SET enable_seqscan = off")

        def plan(sql: str) -> list[tuple[str]]:
            return connection.execute(f"EXPLAIN (VERBOSE) {sql}".encode()).fetchall()

        assert plan(question) == plan(bare)
        indexed = any("Index" in line or "Arbiter" in line for (line,) in plan(question))
        assert indexed, plan(question)


def test_no_state_is_compared_with_a_bare_number() -> None:
    bare = re.compile(r"\b(state|outcome\[[^\]]*\]|resource_type) *(=|<>|:=|IN \() *-?\d")
    guilty = [
        f"{file.name}: {line.strip()}"
        for file in function_files()
        for line in file.text.splitlines()
        if bare.search(line.partition("--")[0])
    ]
    assert not guilty, guilty
