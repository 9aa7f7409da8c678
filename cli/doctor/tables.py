"""Judges the Iceberg tables of topics: which do not follow, why, and whether a process keeps them.

Place: one area of `headrace doctor`, if the settings name a catalog; it reads what `headrace tables list` reads.
Invariant: reads only. What needs pyiceberg is imported when it is used: without it, one line says what is missing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from headrace.cli.doctor.findings import Area, Finding
from headrace.config.listeners import TABLES
from headrace.config.settings import Settings
from headrace.config.table_configs import UPSERT
from headrace.storage.errors import HeadraceError, InvalidError
from headrace.tables.extra import require_tables

AREA = Area("tables")
ANSWER_SECONDS = 60.0
SPARK = "headrace-spark-tables, which keeps tables with a row per key"
LATE_INTERVALS = 10
"""A table is late if records have waited for so many times tables.commit.interval.ms, and for LATE_MS."""
LATE_MS = 60_000


async def examine(settings: Settings) -> list[Finding]:
    """Every finding; none if the settings name no catalog."""
    if not settings.tables_catalog_name:
        return []
    try:
        require_tables()
    except InvalidError as error:
        to_do = "install it here, or run the doctor where the role tables runs"
        return [AREA.warn("catalog", f"the tables were not looked at: {error}", to_do)]
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            found = await read(settings)
    except TimeoutError:
        return [away(settings, f"no answer in {ANSWER_SECONDS:.0f} s")]
    except HeadraceError as error:
        return [away(settings, str(error))]
    return list(judge(found, settings))


class TablesFound(NamedTuple):
    """The rows of `headrace tables list --json`, and the running processes by role."""

    rows: list[dict[str, Any]]
    role_counts: Mapping[str, int]


def judge(found: TablesFound, settings: Settings) -> Iterator[Finding]:
    """Judge the tables, and whether a process keeps them."""
    yield from judge_tables(found.rows, settings.tables_commit_interval_ms)
    needing = [row for row in found.rows if row.get("mode") != UPSERT and row.get("condition") != "detached"]
    yield from judge_role(len(needing), found.role_counts)


async def read(settings: Settings) -> TablesFound:
    """Errors as open_tables."""
    from headrace.tables.open_tables import open_tables  # here: it needs pyiceberg

    async with open_tables(settings) as tables:
        return TablesFound(
            await tables.rows(), (await tables.cluster.metastore.cluster.setting_proposals()).role_counts
        )


def away(settings: Settings, reason: str) -> Finding:
    """Make the finding of a catalog that cannot be read."""
    to_do = "check tables.catalog.* and the catalog's own settings (docs/start/TABLES.md); no table follows meanwhile"
    return AREA.bad("catalog", f"{settings.tables_catalog_name}: {reason}", to_do)


def judge_tables(rows: Sequence[Mapping[str, Any]], interval_ms: int) -> Iterator[Finding]:
    """`rows` as `headrace tables list --json`; `interval_ms`: tables.commit.interval.ms."""
    following = detached = 0
    for row in rows:
        name, condition, reason = row["table"], row["condition"], row["reason"]
        if condition == "paused":
            yield AREA.warn("paused", f"{name}: {reason}", f"headrace tables resume {name}")
        elif condition == "detached":
            detached += 1
        elif condition == "stopped" and row.get("is_topic_gone"):
            to_do = f"headrace tables detach {name} keeps it (--upkeep: with its upkeep), headrace tables drop does not"
            yield AREA.bad("stopped", f"{name}: {reason}", to_do)
        elif condition == "blocked" or (condition == "following" and row.get("is_name_taken")):
            yield AREA.bad("blocked", f"{name}: {reason}", "then the table continues by itself")
        elif condition == "stopped":
            to_do = f"headrace tables resume {name} --at rows, offsets or log (docs/start/TABLES.md says which)"
            yield AREA.bad("stopped", f"{name}: {reason}", to_do)
        elif condition == "declared":
            to_do = f"look at the log of the process with the role tables; topic {row['topic']} has table.enable=true"
            yield AREA.bad("declared", f"{name}: {reason}", to_do)
        elif condition != "following":
            yield AREA.bad("unreadable", f"{name}: {reason}", f"headrace tables show {name}")
        elif row["waited_ms"] > max(LATE_MS, LATE_INTERVALS * (row.get("commit_interval_ms") or interval_ms)):
            found = f"{name}: records have waited for {row['waited_ms'] / 1000:,.0f} s"
            keeper = SPARK if row.get("mode") == UPSERT else "the process with the role tables"
            yield AREA.warn("late", found, f"look at the log of {keeper}")
        else:
            following += 1
    if following + detached == len(rows):
        yield AREA.ok("following", f"all {following} tables follow their topics")
    if detached:
        yield AREA.ok("detached", f"{detached} tables are kept without a topic")


def judge_role(tables: int, counts: Mapping[str, int]) -> Iterator[Finding]:
    """Judge whether a process keeps the tables. `counts`: running processes by role."""
    if counts.get(TABLES):
        yield AREA.ok("role", f"{counts[TABLES]} processes have the role tables")
    elif tables:
        to_do = "run headrace compactor with tables.catalog.name, or a process with process.roles=tables"
        yield AREA.bad("role", f"no process has the role tables: {tables} tables get no records", to_do)
