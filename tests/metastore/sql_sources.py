"""The text of the SQL files that define functions, for tests that plant a bug in one."""

from __future__ import annotations

from headrace.metastore.postgres.sql_files import function_files


def source_of(name: str) -> str:
    """The text of the file `name`.sql."""
    (text,) = [file.text for file in function_files() if file.name == name]
    return text
