"""Decide which tables the statements of a migration lock, and how.

Place: migrate.py takes these locks before it changes anything; migration_plan.py shows them.
Invariant: it names a lock for every statement of a migration; a statement that it does not know is an error.
"""

from __future__ import annotations

import re

from headrace.metastore.postgres.sql_files import SqlFile
from headrace.storage.errors import InvalidError

ACCESS_EXCLUSIVE, SHARE, ROW_EXCLUSIVE, NONE = "ACCESS EXCLUSIVE", "SHARE", "ROW EXCLUSIVE", "none"
_KINDS = (
    (re.compile(r"(ALTER TABLE)(?: IF EXISTS)?(?: ONLY)? (\w+)", re.I), ACCESS_EXCLUSIVE),
    (re.compile(r"(DROP TABLE)(?: IF EXISTS)? (\w+)", re.I), ACCESS_EXCLUSIVE),
    (re.compile(r"(LOCK TABLE) (\w+)", re.I), ACCESS_EXCLUSIVE),
    (re.compile(r"(TRUNCATE)(?: TABLE)? (\w+)", re.I), ACCESS_EXCLUSIVE),
    (re.compile(r"(DROP INDEX)(?: IF EXISTS)? (\w+)", re.I), ACCESS_EXCLUSIVE),
    (re.compile(r"(ALTER INDEX) (\w+)", re.I), ACCESS_EXCLUSIVE),
    (re.compile(r"(CREATE (?:UNIQUE )?INDEX)(?: IF NOT EXISTS)? \w+ ON (\w+)", re.I), SHARE),
    (re.compile(r"(UPDATE) (\w+)", re.I), ROW_EXCLUSIVE),
    (re.compile(r"(INSERT INTO) (\w+)", re.I), ROW_EXCLUSIVE),
    (re.compile(r"(DELETE FROM) (\w+)", re.I), ROW_EXCLUSIVE),
    (re.compile(r"(WITH) (\w+)", re.I), ROW_EXCLUSIVE),
    (re.compile(r"(CREATE (?:UNLOGGED )?TABLE)(?: IF NOT EXISTS)? (\w+)", re.I), NONE),
    (re.compile(r"(CREATE SEQUENCE)(?: IF NOT EXISTS)? (\w+)", re.I), NONE),
    (re.compile(r"(CREATE TYPE) (\w+)", re.I), NONE),
    (re.compile(r"(DROP TYPE)(?: IF EXISTS)? (\w+)", re.I), NONE),
    (re.compile(r"(CREATE (?:OR REPLACE )?(?:FUNCTION|VIEW)) (\w+)", re.I), NONE),
    (re.compile(r"(DROP (?:FUNCTION|VIEW))(?: IF EXISTS)? (\w+)", re.I), NONE),
    (re.compile(r"(COMMENT ON \w+) (\w+)", re.I), NONE),
    (re.compile(r"(SELECT) (\w+)", re.I), ROW_EXCLUSIVE),
    (re.compile(r"(DO) (\$\w*\$)", re.I), ROW_EXCLUSIVE),
)
_TEXT = re.compile(r"--[^\n]*|(\$\w*\$).*?\1|'(?:[^']|'')*'|;", re.S)


def locks(file: SqlFile) -> list[tuple[str, str, str]]:
    """(statement, table, lock) for each statement of a migration. InvalidError for a statement that is not known."""
    return [_lock(file.name, statement) for statement in _statements(file.text)]


def _statements(text: str) -> list[str]:
    """Return the statements without comments; what is quoted may contain semicolons."""
    found, start, kept = [], 0, list[str]()
    for match in _TEXT.finditer(text):
        kept.append(text[start : match.start()])
        start = match.end()
        if match[0] == ";":
            found.append("".join(kept))
            kept = []
        elif not match[0].startswith("--"):
            kept.append(match[0])
    found.append("".join(kept) + text[start:])
    return [" ".join(statement.split()) for statement in found if statement.strip()]


def _lock(migration: str, statement: str) -> tuple[str, str, str]:
    for pattern, lock in _KINDS:
        if match := pattern.match(statement):
            return match[1].upper(), match[2], lock
    raise InvalidError(f"no lock is known for a statement: migration={migration} statement={statement[:60]!r}")
