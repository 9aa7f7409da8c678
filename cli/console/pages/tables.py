"""Iceberg tables of topics: how far each is and why not further, and the lines that read it.

Place: /tables and /table; needs metastore, bucket and catalog.
Invariant: reads only. If a setting or pyiceberg is missing, the page says which.
"""

from __future__ import annotations

from fastapi import FastAPI
from fastapi.responses import HTMLResponse

from headrace.cli.console.parts import ConsoleParts
from headrace.config.listeners import TABLES


def add_pages(app: FastAPI, console: ConsoleParts) -> None:
    """/tables, /table"""

    @app.get("/tables")
    def tables() -> HTMLResponse:
        if missing := console.tables.missing:
            return console.pages.render("tables", missing=missing)
        found = console.tables.tables()
        return console.pages.render("tables", missing="", rows=found.rows, processes=found.role_counts.get(TABLES, 0))

    @app.get("/table")
    def table(name: str) -> HTMLResponse:
        if missing := console.tables.missing:
            return console.pages.render("tables", missing=missing)
        return console.pages.render("table", name=name, **{"table": console.tables.describe(name)})
