"""A batch of a bulk write is in the topics once and whole, although drivers are killed, paused and run again.

Planted bugs are caught.
"""

from __future__ import annotations

import pytest

from headrace.metastore.postgres.store import PostgresMetastore
from tests.metastore.commit_scenes import open_scene
from tests.metastore.sessions import session
from tests.metastore.sql_sources import Throwaway
from tests.planted import PlantedBugs, Trial
from tests.properties.bulk_history import BulkHistory
from tests.seeds import seeds

BUGS = {
    "a rerun is decided again": (
        "decide_bulk_write",
        "v_found.batch_id >= p_batch_id",
        "v_found.batch_id > p_batch_id",
    ),
    "an older batch is decided again": (
        *("decide_bulk_write", "v_found.batch_id >= p_batch_id"),
        "v_found.batch_id = p_batch_id",
    ),
    "the next batch forgets an unfinished one": (
        *("decide_bulk_write", "v_found.next_chunk < v_found.chunks"),
        "false",
    ),
    "files are not claimed when the write is decided": (
        *("decide_bulk_write", "GET DIAGNOSTICS v_claimed = ROW_COUNT;"),
        "v_claimed := v_files; DELETE FROM segment_files WHERE state = file_staged();",
    ),
    "a write is decided although a file is condemned": (
        *("decide_bulk_write", "IF v_claimed < v_files THEN"),
        "IF false THEN",
    ),
    "no file can be claimed": ("decide_bulk_write", "BETWEEN created - 600000 AND until", "> until"),
    "a chunk is committed whenever asked": ("commit_bulk_chunk", "v_write.next_chunk <> p_chunk OR", ""),
    "a committed chunk is not counted": ("commit_bulk_chunk", "SET next_chunk = p_chunk + 1,", "SET"),
    "a file stays staged": ("commit_bulk_chunk", "SET state = file_live(), ", "SET "),
    "live bytes are not counted": ("commit_bulk_chunk", "live_bytes = b.bytes", "live_bytes = 0"),
    "the high watermark stays": ("commit_bulk_chunk", "SET high_watermark = r.last + 1,", "SET"),
    "runs of a partition get the same offsets": (
        *("commit_bulk_chunk", "ROWS UNBOUNDED PRECEDING"),
        "ROWS CURRENT ROW",
    ),
    "what a killed driver left is not finished": ("finish_bulk_writes", "interval '1 minute'", "interval '10 years'"),
    "staged chunks are not forgotten": ("finish_bulk_writes", "interval '1 day'", "interval '10 years'"),
}
"""What is wrong -> (function, right text, wrong text)."""
STEPS = 60


async def run_history(url: str, store: PostgresMetastore, seed: int) -> None:
    """One history."""
    async with session(url) as connection:
        history = BulkHistory(await open_scene(store, 3), connection, seed)
        try:
            await history.run(STEPS)
        finally:
            for attempt in history.attempts:
                if attempt.task is not None:
                    attempt.task.cancel()


@pytest.mark.requirement("X6.3")
@pytest.mark.parametrize("seed", seeds(range(4), range(4, 60)))
async def test_a_batch_is_written_once_and_whole(seed: int, metastore_url: str, metastore: PostgresMetastore) -> None:
    await run_history(metastore_url, metastore, seed)


PLANTED = PlantedBugs("bulk writes", most=200)


@PLANTED.cases(BUGS)
async def test_the_histories_catch(bug: str, trial: Trial, throwaway: Throwaway) -> None:
    """Each history has its own database."""
    function, *texts = BUGS[bug]
    await throwaway.look_for(trial, function, [texts], run_history, Exception)
