"""Thousands of deleted topics leave no records: rows written by SQL, ended by the real functions on real Postgres."""

from __future__ import annotations

import time

import pytest

from headrace.compactor.segments import ROWS_PER_CALL
from headrace.config.settings import Settings
from headrace.storage.file_id import new_file_id, object_key
from tests.compactor.segment_world import DAY, SegmentWorld
from tests.metastore.sessions import session

TOPICS_OF_A_FILE = 100
LAST_OFFSET = 99
TABLES = ("remote_segments", "remote_partitions", "deleted_partitions", "extents", "segment_files")
MAKE = (
    """CREATE TEMP TABLE made AS
       SELECT n, gen_random_uuid() AS topic_id, (1000 + n) << 24 AS key, %(files)s::uuid[] AS files
         FROM generate_series(0, %(topics)s::bigint - 1) AS n""",
    """CREATE TEMP TABLE gone AS
       SELECT topic_id, key, files[1 + n / %(per_file)s] AS file_id, metadata_partition(topic_id, 0) AS part,
              (row_number() OVER (PARTITION BY metadata_partition(topic_id, 0)) - 1)::bigint AS nth
         FROM made""",
    """INSERT INTO segment_files (file_id, state, level, size, body_bytes, live_bytes, committed_at, segments)
       SELECT file_id, 0, 1, 10 * count(*), 10 * count(*), 10 * count(*), wall_time(), count(*) FROM gone GROUP BY 1""",
    """INSERT INTO remote_segments (topic_id, partition_index, end_offset, epoch, segment_id, file_id, partition_key,
              start_offset, leader_epoch, max_timestamp, size, state, cause, live_extents, reference, broker_id, job_id,
              event_ms, metadata_partition, log_offset)
       SELECT topic_id, 0, %(last)s, 1, gen_random_uuid(), file_id, key, 0, 0, 0, 10, 1, 0, 1, 0, -1, 1,
              to_ms(wall_time()), part, 2 * nth + 1
         FROM gone""",
    """INSERT INTO remote_segment_events (metadata_partition, audit_offset, log_offset, api_key, topic_id,
              partition_index, end_offset, epoch, state, cause, broker_id, event_ms, segment_id, file_id, job_id,
              start_offset, leader_epoch, max_timestamp, size)
       SELECT metadata_partition, log_offset - 1 + state.number, log_offset - 1 + state.number, state.number, topic_id,
              0, end_offset, 1, state.number, 0, -1, event_ms, segment_id, file_id, 1, 0, 0, 0, 10
         FROM remote_segments, generate_series(0, 1) AS state (number)""",
    """INSERT INTO extents (partition_key, base_offset, last_offset, file_id, position, length, leader_epoch,
              max_timestamp, segment_end, segment_epoch)
       SELECT key, 0, %(last)s, file_id, 0, 10, 0, 0, %(last)s, 1 FROM gone""",
    """INSERT INTO deleted_partitions (partition_key, deleted_at, topic_id, partition_index, end_offset)
       SELECT key, wall_time(), topic_id, 0, 1 + %(last)s FROM gone""",
    """UPDATE remote_log_heads h SET next_offset = 2 * g.segments, next_audit_offset = 2 * g.segments
         FROM (SELECT part, count(*) AS segments FROM gone GROUP BY 1) AS g WHERE h.metadata_partition = g.part""",
)


@pytest.mark.requirement("R13")
@pytest.mark.parametrize(
    "topics",
    [
        ROWS_PER_CALL + 1,
        pytest.param(10_000, marks=pytest.mark.slow),
    ],
)
async def test_deleted_topics_leave_no_records(topics: int, world: SegmentWorld) -> None:
    born_ms = (await world.postgres.compaction.live_extents([])).wall_ms
    files = [new_file_id(born_ms, world.rng, 1) for _ in range(-(-topics // TOPICS_OF_A_FILE))]
    for file_id in files:
        await world.store.put(object_key(file_id), b"x" * 100)
    given = {"files": files, "topics": topics, "per_file": TOPICS_OF_A_FILE, "last": LAST_OFFSET}
    async with session(world.url) as raw:
        for statement in MAKE:
            await raw.execute(statement, {name: value for name, value in given.items() if f"%({name})s" in statement})
    await world.check_references()
    assert (await counts(world))["remote_segments"] == topics

    began = time.perf_counter()
    await world.settle()
    print(f"topics={topics} seconds={time.perf_counter() - began:.1f}")
    assert await counts(world) == dict.fromkeys(TABLES, 0)
    assert await world.objects() == set()
    ((events,),) = await world.ask("SELECT count(*) FROM remote_segment_events")
    assert events == 6 * topics, "two of the upload, two of the deletion, two of the partition"
    await world.check_offsets()
    await world.advance(Settings().segments_audit_retention_ms / 1000 + DAY)
    await world.clean_up()
    assert await world.ask("SELECT FROM remote_segment_events") == []


async def counts(world: SegmentWorld) -> dict[str, int]:
    """Rows of each table."""
    return {table: (await world.ask(f"SELECT count(*) FROM {table}"))[0][0] for table in TABLES}
