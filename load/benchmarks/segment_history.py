"""What a start costs when history grows, and how the lifecycle tables grow: `python -m load segment_history`.

Starts a separate Postgres. The number of live segments stays; the number of segments that were uploaded and deleted
before grows 1, 10 and 100 times. Measured for each, the best of ROUNDS:
    start         open the metastore, load the metadata image, poll the feed, look up the first fetch of each partition
    projection    a reader of __remote_log_metadata builds its cache: every record, from offset 0
    full replay   the same from the log of all changes, as Kafka's brokers do without compaction
The two readers take the records that agents render, so rendering and decoding are part of both. Then a year at
1 TB/day is simulated: SEGMENTS_A_DAY uploads a day, deleted after RETENTION_DAYS, tombstones kept one day, the audit
trail AUDIT_DAYS. Rows are written by SQL in the shapes that the lifecycle has (two records per upload, two per
deletion); VACUUM runs every fifth day. Writes history.json, start.png, growth.png.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from headrace.config.settings import Settings
from headrace.metastore.api.read import ExtentQuery
from headrace.metastore.api.segments import METADATA_PARTITIONS
from headrace.metastore.keys import partition_key
from headrace.metastore.log.snapshot import load_image
from headrace.metastore.postgres.store import PostgresMetastore
from headrace.metastore.segment_logs.projection import Projection, StreamRecord
from headrace.metastore.segment_logs.rendering import audit_record, log_record
from headrace.storage.records.codec import Record
from load.benchmarks.commit import WORKLOADS, CommitBench, opened
from load.harness import Benchmark, BenchmarkRun
from load.machine_state import machine_state

LIVE = 2_000
HISTORY = (1, 10, 100)
ROUNDS = 3
PAGE_ROWS = 1_000
SEGMENTS_A_DAY = 1_000
RETENTION_DAYS = 7
AUDIT_DAYS = 30
TOPIC = "'01020304-0506-0708-090a-0b0c0d0e0f10'::uuid"
SEGMENTS = f"""
INSERT INTO remote_segments (topic_id, partition_index, end_offset, epoch, segment_id, file_id, partition_key,
  start_offset, leader_epoch, max_timestamp, size, state, cause, live_extents, reference, broker_id, job_id, event_ms,
  metadata_partition, log_offset)
SELECT {TOPIC}, n %% {METADATA_PARTITIONS}, n * 1000 + 999, 1, gen_random_uuid(), gen_random_uuid(),
       n %% {METADATA_PARTITIONS}, n * 1000, 1, 0, 1000000000, 1, 0, 1, 0, 1, n, n, n %% {METADATA_PARTITIONS}, %(log)s
  FROM generate_series(%(first)s, %(last)s) AS n
"""
EVENTS = f"""
INSERT INTO remote_segment_events (metadata_partition, audit_offset, log_offset, api_key, topic_id, partition_index,
  end_offset, epoch, state, cause, broker_id, event_ms, segment_id, file_id, job_id, start_offset, leader_epoch,
  max_timestamp, size)
SELECT n %% {METADATA_PARTITIONS}, %(offset)s, %(offset)s, CASE state WHEN 0 THEN 0 ELSE 1 END, {TOPIC},
       n %% {METADATA_PARTITIONS}, n * 1000 + 999, 1, state, 0, 1, n, md5(n::text)::uuid, md5(n::text)::uuid, n,
       CASE state WHEN 0 THEN n * 1000 END, CASE state WHEN 0 THEN 1 END, CASE state WHEN 0 THEN 0 END,
       CASE state WHEN 0 THEN 1000000000 END
  FROM generate_series(%(first)s, %(last)s) AS n, generate_series(%(state)s, %(state)s + 1) AS state
"""


async def grow_history(bench: CommitBench, first: int, last: int) -> None:
    """Add so many segments that were uploaded and deleted; their keys are gone, their events are not."""
    for state in (0, 2):
        offset = f"(n / {METADATA_PARTITIONS}) * 4 + state"
        await bench.execute(EVENTS % {"first": first, "last": last, "state": state, "offset": offset})


async def set_live(bench: CommitBench, history: int) -> None:
    """LIVE segments after that history, and the ends of both logs."""
    await bench.execute("DELETE FROM remote_segments")
    await bench.execute(f"DELETE FROM remote_segment_events WHERE end_offset >= {history * 1000}")
    offset = f"(n / {METADATA_PARTITIONS}) * 4"
    bounds = {"first": history, "last": history + LIVE - 1}
    await bench.execute(SEGMENTS % {**bounds, "log": f"{offset} + 1"})
    await bench.execute(EVENTS % {**bounds, "state": 0, "offset": f"{offset} + state"})
    end = (history + LIVE) // METADATA_PARTITIONS * 4 + 4
    await bench.execute(f"UPDATE remote_log_heads SET next_offset = {end}, next_audit_offset = {end}")
    await bench.execute("VACUUM ANALYZE remote_segments")
    await bench.execute("VACUUM ANALYZE remote_segment_events")


async def start(bench: CommitBench, topic_number: int) -> dict[str, Any]:
    """Start as an agent's process does, up to where its first fetch reads bytes."""
    store = await PostgresMetastore.open(bench.url, Settings(metastore_pool_size=1))
    try:
        await load_image(store.cluster)
        await store.index.poll_feed({})
        keys = [partition_key(topic_number, index) for index in range(10)]
        found = await store.index.find_extents([ExtentQuery(key, 0, 1_048_576) for key in keys])
        assert all(answer.extents for answer in found)
        return {"rows": sum(len(answer.extents) for answer in found)}
    finally:
        await store.close()


async def _projection(store: PostgresMetastore, partition: int, offset: int) -> list[Record]:
    page = await store.segment_logs.read_remote_log(partition, offset, PAGE_ROWS)
    return [log_record(row, "t") for row in page.rows]


async def _every_change(store: PostgresMetastore, partition: int, offset: int) -> list[Record]:
    return [
        audit_record(event, "t")
        for event in (await store.segment_logs.read_audit_log(partition, offset, PAGE_ROWS)).rows
    ]


async def build_cache(
    store: PostgresMetastore, read: Callable[[PostgresMetastore, int, int], Awaitable[list[Record]]]
) -> dict[str, Any]:
    """Rows and bytes of the records that a reader needs for its cache."""
    projection, rows, size = Projection(), 0, 0
    for partition in range(METADATA_PARTITIONS):
        offset = 0
        while records := await read(store, partition, offset):
            for record in records:
                projection.apply(StreamRecord(*record[:4]), is_compacted=True)
                size += len(record.key or b"") + len(record.value or b"")
            rows += len(records)
            offset = records[-1].offset + 1
    live = sum(segment.is_readable for segment in projection.segments.values())
    assert live == LIVE, live
    return {"rows": rows, "bytes": size}


async def best_of(work: Callable[[], Awaitable[dict[str, Any]]]) -> dict[str, Any]:
    """The fastest of ROUNDS."""
    found = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        answer = await work()
        found.append(answer | {"seconds": time.perf_counter() - began})
    return min(found, key=lambda answer: answer["seconds"])


async def measure_starts(bench: CommitBench) -> list[dict[str, Any]]:
    """One row per factor of HISTORY."""
    committer = (await bench.committers(WORKLOADS[0], 1))[0]
    found, grown = [], 0
    for factor in HISTORY:
        await bench.execute(f"DELETE FROM remote_segment_events WHERE end_offset >= {grown * 1000}")
        await grow_history(bench, grown, factor * LIVE - 1)
        grown = factor * LIVE
        await set_live(bench, grown)
        row = {
            "history": factor,
            "start": await best_of(lambda: start(bench, committer.topic_number)),
            "projection": await best_of(lambda: build_cache(bench.store, _projection)),
            "full_replay": await best_of(lambda: build_cache(bench.store, _every_change)),
        }
        found.append(row)
    return found


async def simulate_year(bench: CommitBench, days: int) -> list[dict[str, Any]]:
    """Rows and bytes of the tables at the end of each fifth day."""
    await bench.execute("TRUNCATE remote_segments, remote_segment_events")
    samples = []
    for day in range(days):
        first = day * SEGMENTS_A_DAY
        bounds = {"first": first, "last": first + SEGMENTS_A_DAY - 1}
        await bench.execute(SEGMENTS % {**bounds, "log": "n * 4 + 1"})
        await bench.execute(EVENTS % {**bounds, "state": 0, "offset": "n * 4 + state"})
        await _delete_day(bench, day - RETENTION_DAYS)
        await _forget_days(bench, day)
        if day % 5 == 4:
            await bench.execute("VACUUM remote_segments")
            await bench.execute("VACUUM remote_segment_events")
            samples.append({"day": day + 1, **await _sizes(bench)})
    return samples


async def _delete_day(bench: CommitBench, day: int) -> None:
    """The segments of that day expire: two records each, then a tombstone."""
    if day >= 0:
        bounds = {"first": day * SEGMENTS_A_DAY, "last": (day + 1) * SEGMENTS_A_DAY - 1}
        await bench.execute(EVENTS % {**bounds, "state": 2, "offset": "n * 4 + state"})
        where = f"end_offset BETWEEN {bounds['first'] * 1000} AND {bounds['last'] * 1000 + 999}"
        for change in ("state = 2, log_offset = log_offset + 1", "state = 3, log_offset = log_offset + 1"):
            await bench.execute(f"UPDATE remote_segments SET {change} WHERE {where}")
        await bench.execute(f"UPDATE remote_segments SET tombstoned_at = now(), live_extents = 0 WHERE {where}")


async def _forget_days(bench: CommitBench, day: int) -> None:
    """Tombstones that are a day old, and what the audit trail keeps no longer."""
    gone = (day - RETENTION_DAYS) * SEGMENTS_A_DAY * 1000
    await bench.execute(f"DELETE FROM remote_segments WHERE tombstoned_at IS NOT NULL AND end_offset < {gone}")
    expired = (day - AUDIT_DAYS) * SEGMENTS_A_DAY
    await bench.execute(f"DELETE FROM remote_segment_events WHERE event_ms < {expired} AND state < 2")
    expired -= RETENTION_DAYS * SEGMENTS_A_DAY
    await bench.execute(f"DELETE FROM remote_segment_events WHERE event_ms < {expired}")


async def _sizes(bench: CommitBench) -> dict[str, int]:
    ((live, segment_bytes, events, event_bytes),) = await bench.query(
        "SELECT (SELECT count(*) FROM remote_segments), pg_total_relation_size('remote_segments'),"
        " (SELECT count(*) FROM remote_segment_events), pg_total_relation_size('remote_segment_events')"
    )
    return {
        "segment_rows": live,
        "segment_bytes": segment_bytes,
        "event_rows": events,
        "event_bytes": event_bytes,
    }


def draw_starts(rows: list[dict[str, Any]], path: Path) -> None:
    """Seconds and bytes over the length of history."""
    from matplotlib.figure import Figure  # takes half a second, and only a drawing needs it

    figure = Figure(figsize=(10, 4.5), layout="constrained")
    times, sizes = figure.subplots(1, 2)
    history = [row["history"] for row in rows]
    labels = {"start": "start to first look-up", "projection": "projection", "full_replay": "full replay"}
    for color, (name, label) in zip(("C0", "C1", "C2"), labels.items(), strict=True):
        times.plot(history, [row[name]["seconds"] for row in rows], marker="o", label=label, color=color)
        if name != "start":
            sizes.plot(history, [row[name]["bytes"] / 2**20 for row in rows], marker="o", label=label, color=color)
    for axes, what in ((times, "seconds"), (sizes, "MiB of records read")):
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlabel(f"history: deleted segments per live one ({LIVE:,} live)")
        axes.set_ylabel(what)
        axes.grid(visible=True, alpha=0.3)
        axes.legend(fontsize="small")
    figure.savefig(path, dpi=110)


def draw_growth(samples: list[dict[str, Any]], path: Path) -> None:
    """Both tables over a year, and a log that keeps everything."""
    from matplotlib.figure import Figure  # takes half a second, and only a drawing needs it

    figure = Figure(figsize=(9, 4.5), layout="constrained")
    axes = figure.subplots()
    days = [sample["day"] for sample in samples]
    axes.plot(days, [sample["segment_rows"] for sample in samples], label="remote_segments (projection)")
    axes.plot(days, [sample["event_rows"] for sample in samples], label=f"remote_segment_events ({AUDIT_DAYS} days)")
    every = [SEGMENTS_A_DAY * (2 * day + 2 * max(0, day - RETENTION_DAYS)) for day in days]
    axes.plot(days, every, linestyle="--", label="a log that keeps every record")
    axes.set_yscale("log")
    axes.set_xlabel(f"days at 1 TB/day, kept {RETENTION_DAYS} days")
    axes.set_ylabel("rows")
    axes.grid(visible=True, alpha=0.3)
    axes.legend(fontsize="small")
    figure.savefig(path, dpi=110)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("--part", choices=("starts", "year", "both"), default="both")
    parser.add_argument("--days", type=int, default=365, help="of the simulated year (365)")
    parser.add_argument("--out", type=Path, default=Path("segment-history"), help="directory for the files")


async def benchmark(run: BenchmarkRun) -> None:
    args, state = run.args, machine_state()
    async with opened(run.folder("postgres"), 1) as bench:
        facts: dict[str, Any] = {}
        if args.part != "year":
            facts["starts"] = await measure_starts(bench)
            for row in facts["starts"]:
                for what in ("start", "projection", "full_replay"):
                    run.row(f"{what}, history {row['history']}", row[what])
        if args.part != "starts":
            facts["year"] = await simulate_year(bench, args.days)
            last = facts["year"][-1]
            run.row(f"day {last['day']}", {name: value for name, value in last.items() if name != "day"})
    args.out.mkdir(parents=True, exist_ok=True)
    file = args.out / "history.json"
    whole = (json.loads(file.read_text()) if file.exists() else {}) | {"machine": state, "live": LIVE} | facts
    file.write_text(json.dumps(whole) + "\n")
    if "starts" in facts:
        draw_starts(facts["starts"], args.out / "start.png")
    if "year" in facts:
        draw_growth(facts["year"], args.out / "growth.png")


BENCHMARK = Benchmark(
    "what a start reads of remote segments, and how far their tables grow in a year", benchmark, add_arguments
)
