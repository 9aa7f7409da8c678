"""What planners of upkeep ask in clusters with many partitions, and what it costs: `python -m load upkeep`.

Starts a separate Postgres with topics of 100,000 partitions in all, each with EXTENTS extents, made by SQL. Then it
asks what the planners of cleaning and of merges ask, in the pieces in which they do, for the first of 1,000, 10,000 and
100,000 partitions. The time per piece has to be bounded, and their sum grows as the number of partitions. The functions
that planners of the release before call with all partitions at once are timed next to it, under the limit on
a statement. `headrace segments migrate` works on streams of keyed segments in memory.
"""

from __future__ import annotations

import argparse
import time
import uuid
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import psycopg

from headrace.compactor.cleaning.planner import PARTITIONS_PER_LOOK, UNFINISHED_MAX
from headrace.compactor.cleaning.policy import JOB_PARTITIONS
from headrace.config.settings import Settings
from headrace.metastore.api.cleaning import CleaningQuery
from headrace.metastore.api.segment_states import RemoteLogSegmentState
from headrace.metastore.segment_logs.migration import rekey, replay
from headrace.metastore.segment_logs.projection import StreamRecord, update_of
from headrace.metastore.segment_logs.records import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadataRecord,
    SegmentLeaderEpoch,
    TopicIdPartition,
    encode,
    key_of,
)
from load.benchmarks.commit import CommitBench, opened
from load.harness import Benchmark, BenchmarkRun

EXTENTS = 10
"""Extents of a partition, of 10 records each; the last one is active."""
CLEANED = 5
"""The extents below the cleaned offset."""
FILES = 4_000
FLUSHED = 8
"""One file of so many is of level 0."""
MERGE_FILES = 32
"""Inputs of an unfinished merge, of which there are UNFINISHED_MAX."""
TOPIC_PARTITIONS = 10_000
SEGMENTS = (5_000, 10_000, 20_000, 40_000)

FILL_FILES = f"""
INSERT INTO segment_files (file_id, state, level, size, body_bytes, live_bytes, committed_at)
SELECT md5(n::text)::uuid, 0, CASE n % {FLUSHED} WHEN 0 THEN 0 ELSE 2 END, 1, 1, 1, now()
  FROM generate_series(0, {FILES} - 1) AS n
"""
FILL_EXTENTS = f"""
INSERT INTO extents (partition_key, base_offset, last_offset, file_id, position, length, leader_epoch, max_timestamp)
SELECT p.partition_key, e * 10, e * 10 + 9, md5(((p.partition_index * 7 + e * 31) % {FILES})::text)::uuid, 0, 1, 0, 0
  FROM partitions p CROSS JOIN generate_series(0, {EXTENTS} - 1) AS e
 WHERE p.partition_key >> 24 = {{topic}}
"""
FILL_HEADS = f"UPDATE partition_heads SET high_watermark = {EXTENTS * 10} WHERE partition_key >> 24 = {{topic}}"
FILL_CLEANED = f"""
INSERT INTO cleaned_partitions (partition_key, roll_offset, cleaned_offset, dirty_since)
SELECT partition_key, {EXTENTS * 10 - 10}, {CLEANED * 10}, now() FROM partitions WHERE partition_key >> 24 = {{topic}}
"""


async def make_rows(bench: CommitBench, partitions: int) -> list[int]:
    """The keys of so many partitions, with their extents."""
    async with await psycopg.AsyncConnection.connect(bench.url, autocommit=True) as raw:  # without a limit
        await raw.execute(FILL_FILES.encode())
        for _ in range(0, partitions, TOPIC_PARTITIONS):
            topic = await bench.topic(TOPIC_PARTITIONS)
            for fill in (FILL_EXTENTS, FILL_HEADS, FILL_CLEANED):
                await raw.execute(fill.format(topic=topic).encode())
        for table in ("extents", "segment_files", "partitions", "partition_heads", "cleaned_partitions"):
            await raw.execute(f"VACUUM ANALYZE {table}".encode())
    rows = await bench.query("SELECT partition_key FROM partitions ORDER BY partition_key")
    return [key for (key,) in rows[:partitions]]


async def in_pieces(
    run: BenchmarkRun, name: str, keys: Sequence[int], size: int, ask: Callable[[Sequence[int]], Awaitable[Any]]
) -> None:
    """Ask for all of them, and tell the time of a piece and of all."""
    times = []
    for at in range(0, len(keys), size):
        began = time.perf_counter()
        await ask(keys[at : at + size])
        times.append(time.perf_counter() - began)
    times.sort()
    figures = {"pieces": len(times), "ms median": times[len(times) // 2] * 1e3, "ms longest": times[-1] * 1e3}
    run.row(name, figures | {"s in all": sum(times)})


async def at_once(run: BenchmarkRun, bench: CommitBench, name: str, call: str) -> None:
    """A function of the release before with all partitions; how long, or that it reached the limit."""
    began = time.perf_counter()
    try:
        ((count,),) = await bench.query(f"SELECT count(*) FROM {call}")
        found: dict[str, float | str] = {"rows": count}
    except psycopg.Error as error:
        found = {"(refused)": type(error).__name__}
    run.row(name, {"s in one call": time.perf_counter() - began} | found)


async def look(run: BenchmarkRun, bench: CommitBench, keys: Sequence[int]) -> None:
    """Ask what planners ask for these partitions."""
    store, end = bench.store, EXTENTS * 10 - 10
    merged = [uuid.UUID(row[0]) for row in await bench.query(
        f"SELECT md5(n::text) FROM generate_series(0, {min(FILES, UNFINISHED_MAX * MERGE_FILES) - 1}) AS n"
    )]  # fmt: skip
    piece = PARTITIONS_PER_LOOK

    def ends(some: Sequence[int]) -> list[tuple[int, int]]:
        return [(key, end) for key in some]

    run.note(f"{len(keys):,} partitions")
    await in_pieces(
        run,
        "describe_cleaning",
        keys,
        piece,
        lambda k: store.cleaning.describe_cleaning([CleaningQuery(key, 0) for key in k]),
    )
    await in_pieces(run, "flushed_files", keys, piece, lambda k: store.cleaning.flushed_files(ends(k)))
    await in_pieces(run, "parts_in_files", keys, piece, lambda k: store.cleaning.parts_in_files(ends(k), merged))
    in_jobs = keys[: UNFINISHED_MAX * JOB_PARTITIONS]
    await in_pieces(
        run,
        f"files_of_parts, of {UNFINISHED_MAX} full jobs",
        in_jobs,
        len(in_jobs),
        lambda k: store.cleaning.files_of_parts(ends(k)),
    )
    numbers = f"(SELECT array_agg(partition_key) FROM partitions WHERE partition_key <= {keys[-1]})"
    files = f"(SELECT array_agg(md5(n::text)::uuid) FROM generate_series(0, {len(merged) - 1}) AS n)"
    wanted = f"array_fill({end}::bigint, ARRAY[{len(keys)}])"
    await at_once(run, bench, "before: flushed_files", f"flushed_files({numbers}, {wanted})")
    await at_once(run, bench, "before: partitions_in_files", f"partitions_in_files({numbers}, {files})")
    await at_once(run, bench, "before: files_of_partitions", f"files_of_partitions({numbers})")


def keyed_stream(segments: int) -> list[StreamRecord]:
    """The records of so many keyed segments in one partition: started, finished."""
    owner = TopicIdPartition(name="orders", id=uuid.UUID(int=77), partition=3)
    records: list[StreamRecord] = []
    for number in range(segments):
        full = RemoteLogSegmentMetadataRecord(
            remote_log_segment_id=RemoteLogSegmentId(topic_id_partition=owner, id=uuid.UUID(int=number)),
            start_offset=100 * number,
            end_offset=100 * number + 99,
            broker_id=1,
            max_timestamp_ms=5,
            event_timestamp_ms=number,
            segment_leader_epochs=(SegmentLeaderEpoch(leader_epoch=1, offset=100 * number),),
            segment_size_in_bytes=10,
            remote_log_segment_state=RemoteLogSegmentState.COPY_SEGMENT_STARTED,
            broker_leader_epoch=1,
        )
        key = str(key_of(full)).encode()
        finished = update_of(full, RemoteLogSegmentState.COPY_SEGMENT_FINISHED)
        for value in (full, finished):
            records.append(StreamRecord(len(records), number, key, encode(value)))
    return records


def migrate_segments(run: BenchmarkRun, segments: int) -> None:
    """Replay a stream and plan what has to be written; tells the CPU time per 1,000 segments."""
    stream = keyed_stream(segments)
    began = time.process_time()
    rekey(replay(stream))
    seconds = time.process_time() - began
    each = seconds / segments * 1_000
    run.row(f"segments migrate: {segments:,} keyed segments", {"s of CPU": seconds, "ms per 1,000": each * 1e3})


async def measure(run: BenchmarkRun, sizes: Sequence[int]) -> None:
    """Ask for so many partitions, one number after the other, on a new Postgres."""
    for segments in SEGMENTS:
        migrate_segments(run, segments)
    async with opened(run.folder("postgres"), 1) as bench:
        keys = await make_rows(bench, max(sizes))
        ((rows, size),) = await bench.query("SELECT count(*), pg_total_relation_size('extents') FROM extents")
        limit_s = Settings().metastore_statement_timeout_ms / 1_000
        run.note(f"{rows:,} extents, {size / 2**20:,.0f} MiB; limit on a statement {limit_s:.0f} s")
        for count in sizes:
            await look(run, bench, keys[:count])


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("--partitions", type=int, nargs="+", default=[1_000, 10_000, 100_000], help="how many")


async def benchmark(run: BenchmarkRun) -> None:
    await measure(run, run.args.partitions)


BENCHMARK = Benchmark("statements of the planners at 100,000 partitions", benchmark, add_arguments)
