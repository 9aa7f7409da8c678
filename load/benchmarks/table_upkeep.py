"""A week of an Iceberg table with and without upkeep: files, metadata, and the time of queries, drawn.

    python -m load table_upkeep --out docs/results/DATE-table-upkeep
Time is injected: a commit every --minutes of the week, one after the other, into three tables that are partitioned by
day: left alone; only snapshots expire (upkeep with tables.rewrite.min.files=0); all of upkeep, each hour. Rows, commits
and upkeep are those of the worker (tables/); the topic is left out, and the catalog is a file of SQLite. Twice a
day each table is read by DuckDB and by pyiceberg: the rows of one partition of the topic, on the last day and of all.
The best of three; the operating system has the files cached, so on S3 each file costs a request more than here.
"""

from __future__ import annotations

import argparse
import datetime
import json
import time
import uuid
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest import mock

import duckdb
import numpy as np
import pyarrow as pa
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

from headrace.tables.catalog import TableCatalog, view_of
from headrace.tables.commit.appending import Append, append
from headrace.tables.commit.committing import CommitOutcome
from headrace.tables.rows import ARROW
from headrace.tables.state import Definition, Follows, TablePosition, standing_of
from headrace.tables.upkeep.steps import TableUpkeep, UpkeepTerms
from load.harness import Benchmark, BenchmarkRun

BEGIN_MS = 1_800_000_000_000 - 1_800_000_000_000 % 86_400_000
"""Midnight of a day to come: pyiceberg refuses commits that are older than the table."""
DAY_MS, HOUR_MS = 86_400_000, 3_600_000
PARTITIONS = 6
TABLES = {
    "left alone": None,
    "snapshots expire": UpkeepTerms(files_min=0, snapshot_max_age_ms=DAY_MS),
    "upkeep": UpkeepTerms(snapshot_max_age_ms=DAY_MS),
}


class WeekTime:
    """The time that snapshots get. Milliseconds since 1970."""

    def __init__(self) -> None:
        self.now_ms = BEGIN_MS

    def time(self) -> float:
        return self.now_ms / 1_000


def rows(rng: np.random.Generator, now_ms: int, first: int, count: int) -> pa.Table:
    """Return so many rows of each partition, from this offset on."""
    total = count * PARTITIONS
    text = rng.integers(0, 1 << 62, size=(total, 4))
    columns = {
        "key": pa.array([b"customer-%d" % number for number in rng.integers(0, 10_000, total)], pa.binary()),
        "value": pa.array([json.dumps({"id": int(a), "note": f"{b:x}{c:x}{d:x}"}).encode() for a, b, c, d in text]),
        "headers": pa.nulls(total, ARROW.field("headers").type),
        "timestamp": pa.array(now_ms * 1_000 - rng.integers(0, 60_000_000, total), ARROW.field("timestamp").type),
        "partition": pa.array(np.repeat(np.arange(PARTITIONS, dtype=np.int32), count)),
        "offset": pa.array(np.tile(np.arange(first, first + count), PARTITIONS)),
    }
    return pa.Table.from_arrays([columns[name] for name in ARROW.names], schema=ARROW)


def add(table: Table, new: pa.Table, end: int) -> None:
    """One commit of the worker."""
    standing = standing_of(view_of(table))
    before = standing.progress if isinstance(standing, Follows) else None
    made = append(table, before, Append(new, {p: TablePosition(end) for p in range(PARTITIONS)}))
    assert made.outcome is CommitOutcome.COMMITTED


def measured(table: Table, name: str, now_ms: int) -> dict[str, Any]:
    """Return what the table consists of, and the seconds of queries."""
    current = table.metadata.current_snapshot()
    assert current is not None
    manifests = current.manifests(table.io)
    last_day = now_ms - now_ms % DAY_MS
    since = datetime.datetime.fromtimestamp(last_day / 1_000, datetime.UTC).isoformat()
    one, day = "partition == 1", f"timestamp >= '{since}'"
    seconds = {
        "duckdb_all": best(lambda: by_duckdb(table, "")),
        "duckdb_day": best(lambda: by_duckdb(table, f" AND timestamp >= epoch_ms({last_day})")),
        "pyiceberg_all": best(lambda: table.scan(row_filter=one, selected_fields=("offset",)).to_arrow().num_rows),
        "pyiceberg_day": best(
            lambda: table.scan(row_filter=f"{one} and {day}", selected_fields=("offset",)).to_arrow().num_rows
        ),
    }
    return {
        "table": name,
        "hours": (now_ms - BEGIN_MS) / HOUR_MS,
        "files": len(list(table.scan().plan_files())),
        "manifests": len(manifests),
        "snapshots": len(table.metadata.snapshots),
        "metadata_bytes": size_of(table.metadata_location),
        "manifest_bytes": sum(each.manifest_length for each in manifests),
        **seconds,
    }


def size_of(location: str) -> int:
    return Path(location.removeprefix("file://")).stat().st_size


def best(query: Callable[[], Any]) -> float:
    """The shortest of three, in seconds."""
    found = []
    for _ in range(3):
        began = time.perf_counter()
        query()
        found.append(time.perf_counter() - began)
    return min(found)


def by_duckdb(table: Table, more: str) -> Any:
    """Count the rows of a partition; the extensions come from their packages."""
    connection = duckdb.connect()
    try:
        for name in ("avro", "iceberg"):
            folder = Path(str(import_module(f"duckdb_extension_{name}").__file__)).parent
            (extension,) = folder.rglob(f"{name}.duckdb_extension")
            connection.execute(f"LOAD '{extension}'")
        place = table.metadata_location.removeprefix("file://")
        query = f"SELECT count(*), max(\"offset\") FROM iceberg_scan('{place}') WHERE partition = 1{more}"
        return connection.execute(query).fetchall()
    finally:
        connection.close()


def week(run: BenchmarkRun, place: Path, days: int, minutes: int, count: int) -> list[dict[str, Any]]:
    """Let it pass; the samples."""
    clock, rng = WeekTime(), np.random.default_rng(1)
    catalog = TableCatalog(
        SqlCatalog("week", uri=f"sqlite:///{place}/catalog.db", warehouse=(place / "lake").as_uri()), "headrace"
    )
    names = {name: name.replace(" ", "_") for name in TABLES}
    samples: list[dict[str, Any]] = []
    with mock.patch("pyiceberg.table.snapshots.time", clock):
        for name in names.values():
            catalog.create(name, Definition("week", "orders", uuid.UUID(int=1), "earliest", ""), ["day"], {})
        for commit in range(days * 24 * 60 // minutes):
            clock.now_ms = BEGIN_MS + (commit + 1) * minutes * 60_000
            new = rows(rng, clock.now_ms, commit * count, count)
            for name in names.values():
                add(catalog.load(name), new, (commit + 1) * count)
            passed_ms = clock.now_ms - BEGIN_MS
            if passed_ms % HOUR_MS == 0:
                for title, terms in TABLES.items():
                    if terms is not None:
                        TableUpkeep(catalog, terms).keep(names[title], clock.now_ms)
            if passed_ms % (12 * HOUR_MS) == 0:
                samples += [measured(catalog.load(names[title]), title, clock.now_ms) for title in TABLES]
                for each in samples[-len(TABLES) :]:
                    figures = {name: value for name, value in each.items() if name not in ("table", "hours")}
                    run.row(f"hour {each['hours']:.0f}, {each['table']}", figures)
    catalog.close()
    return samples


def draw(samples: list[dict[str, Any]], path: Path) -> None:
    """Files, metadata and seconds over the week."""
    from matplotlib.figure import Figure  # takes half a second, and only a drawing needs it

    figure = Figure(figsize=(11, 7), layout="constrained")
    panels: dict[str, Callable[[dict[str, Any]], float]] = {
        "data files": lambda each: each["files"],
        "MiB of metadata and manifests": lambda each: (each["metadata_bytes"] + each["manifest_bytes"]) / 2**20,
        "seconds: one partition of all days, DuckDB": lambda each: each["duckdb_all"],
        "seconds: one partition of all days, pyiceberg": lambda each: each["pyiceberg_all"],
    }
    for axes, (what, value) in zip(figure.subplots(2, 2).flat, panels.items(), strict=True):
        for title in TABLES:
            mine = [each for each in samples if each["table"] == title]
            axes.plot([each["hours"] / 24 for each in mine], [value(each) for each in mine], marker=".", label=title)
        axes.set_yscale("log")
        axes.set_xlabel("days")
        axes.set_ylabel(what)
        axes.grid(visible=True, alpha=0.3)
        axes.legend(fontsize="small")
    figure.savefig(path, dpi=110)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("--days", type=int, default=7)
    parser.add_argument("--minutes", type=int, default=5, help="between two commits")
    parser.add_argument("--rows", type=int, default=50, help="of each partition in a commit")
    parser.add_argument("--out", type=Path, help="folder for week.json and week.png")


def benchmark(run: BenchmarkRun) -> None:
    args = run.args
    samples = week(run, run.folder("week"), args.days, args.minutes, args.rows)
    if args.out is not None:
        args.out.mkdir(parents=True, exist_ok=True)
        (args.out / "week.json").write_text(json.dumps(samples, indent=1) + "\n", encoding="utf-8")
        draw(samples, args.out / "week.png")


BENCHMARK = Benchmark("a simulated week of an Iceberg table with and without upkeep", benchmark, add_arguments)
