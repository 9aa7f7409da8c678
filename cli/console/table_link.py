"""The Iceberg tables of topics for pages: what `headrace tables list` and `show` read.

Place: under pages/topics.py, and the overview's alarms. It opens metastore, bucket and catalog for each answer.
Invariant: reads only. What needs pyiceberg is imported when a page asks, so the console works without it: `missing`
says then what it lacks.
"""

from __future__ import annotations

from typing import Any

from headrace.cli.console.metastore_link import KeptAnswers
from headrace.cli.doctor import tables as doctor_tables
from headrace.cli.doctor.findings import Finding
from headrace.cli.doctor.tables import TablesFound
from headrace.config.settings import Settings
from headrace.storage.client_text import shown
from headrace.storage.clock import Clock
from headrace.storage.errors import HeadraceError, InvalidError, NotFoundError
from headrace.tables.extra import require_tables

KEPT_SECONDS = 10.0


class TableLink:
    """Asks the catalog at the first question."""

    def __init__(self, settings: Settings, clock: Clock) -> None:
        self._settings = settings
        self._answers = KeptAnswers("catalog of tables", clock)

    @property
    def missing(self) -> str:
        """What keeps the console from reading tables, for people; empty: nothing."""
        needed = {
            "--metastore-url": self._settings.metastore_url,
            "--bucket": self._settings.bucket,
            "--tables-catalog-name": self._settings.tables_catalog_name,
        }
        if lacking := [flag for flag, value in needed.items() if not value]:
            return f"start the console with {', '.join(lacking)}, or with --config and these settings"
        try:
            require_tables()
        except InvalidError as error:
            return f"on the console's machine {error}"
        return ""

    def tables(self) -> TablesFound:
        """Every table. UnavailableError if catalog, metastore or bucket do not answer; other errors of open_tables."""
        return self._answers.ask("tables", KEPT_SECONDS, doctor_tables.read(self._settings))

    def describe(self, name: str) -> dict[str, Any]:
        """Everything about a table. Errors as `tables`; NotFoundError, TableError. The catalog is opened only for a
        name that it had at most KEPT_SECONDS ago.
        """
        if name not in {row["table"] for row in self.tables().rows}:
            raise NotFoundError(f"no topic has a table of this name: {shown(name)}")
        return self._answers.ask(f"table {name}", KEPT_SECONDS, _described(self._settings, name))

    def findings(self) -> list[Finding]:
        """Return what `headrace doctor` says of tables; nothing if the settings name no catalog."""
        if not self._settings.tables_catalog_name or self.missing:
            return []
        try:
            return list(doctor_tables.judge(self.tables(), self._settings))
        except HeadraceError as error:
            return [doctor_tables.away(self._settings, str(error))]

    def close(self) -> None:
        """End the thread."""
        self._answers.close()


async def _described(settings: Settings, name: str) -> dict[str, Any]:
    from headrace.tables.open_tables import open_tables  # here: it needs pyiceberg

    async with open_tables(settings) as tables:
        return await tables.describe(name)
