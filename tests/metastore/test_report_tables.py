"""Reports declare only columns that a migrated database has."""

from __future__ import annotations

import psycopg
from sqlalchemy import TableClause

from headrace.metastore.postgres.reports import queries

COLUMNS = """
SELECT relname, attname FROM pg_class JOIN pg_attribute ON attrelid = pg_class.oid
 WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'p') AND attnum > 0 AND NOT attisdropped
"""


def test_the_database_has_every_column_that_a_report_reads(metastore_url: str) -> None:
    with psycopg.connect(metastore_url) as connection:
        there = {(str(table), str(column)) for table, column in connection.execute(COLUMNS)}
    tables = [each for each in vars(queries).values() if isinstance(each, TableClause)]
    declared = {(table.name, column.name) for table in tables for column in table.columns}
    assert len(tables) > 10, "nothing is compared"
    assert declared <= there, declared - there
