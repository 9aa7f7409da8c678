"""An applied migration never changes: each file has the checksum recorded when it landed.

A database records the checksum of every migration that it applied, and refuses another text under the same
name (test_migrate.py). So an edited file would stop every upgrade. A change of the schema is a new file, with
a new line in tests/golden/migrations.sha256 (`sha256sum migrations/*.sql`); existing lines stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.metastore.postgres.migrate import MIGRATIONS
from headrace.metastore.postgres.sql_files import SqlFile, sql_files

RECORDED = Path(__file__).parents[1] / "golden" / "migrations.sha256"
FIRST_FROZEN = 10
"""Number of files that were frozen when this test was added."""


def recorded() -> dict[str, str]:
    """File name -> checksum, in the order of the list."""
    lines = RECORDED.read_text(encoding="utf-8").splitlines()
    return {name.removesuffix(".sql"): checksum for checksum, name in (line.split() for line in lines)}


def changed(files: list[SqlFile], known: dict[str, str]) -> list[str]:
    """Names of files that are gone, new without a line, or different from their line."""
    found = {file.name: file.checksum for file in files}
    return sorted(name for name in found.keys() | known.keys() if found.get(name) != known.get(name))


def test_no_migration_differs_from_its_recorded_checksum() -> None:
    known = recorded()

    assert changed(sql_files(MIGRATIONS), known) == [], "a migration never changes: add a new file instead"
    assert list(known) == sorted(known)
    assert len(known) >= FIRST_FROZEN


@pytest.mark.parametrize(
    "edit",
    [
        lambda files: [SqlFile(files[0].name, files[0].text + "-- one more comment\n"), *files[1:]],
        lambda files: files[1:],
        lambda files: [*files, SqlFile("9999_without_a_line", "SELECT 1;")],
    ],
    ids=["changed", "removed", "not recorded"],
)
def test_an_edited_set_of_migrations_is_noticed(edit: Callable[[list[SqlFile]], list[SqlFile]]) -> None:
    files = sql_files(MIGRATIONS)

    assert len(changed(edit(files), recorded())) == 1
