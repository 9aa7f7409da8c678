"""The bench of compaction: a replay gets every byte, from fewer GETs after each level."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.metastore.postgres.store import PostgresMetastore
from headrace.storage.records.compression import Codec
from load.benchmarks.compaction import CompactionBench


@pytest.mark.requirement("W10")
async def test_a_replay_before_and_after(metastore: PostgresMetastore, metastore_url: str, tmp_path: Path) -> None:
    bench = CompactionBench(metastore_url, metastore, tmp_path, Codec.LZ4)
    sent = await bench.fill(files=8, records_per_batch=3, batches=2)
    before = await bench.replay()
    files, rows, live_bytes = await bench.state()
    assert (len(files), rows, live_bytes) == (8, 160, sent)
    await bench.merge(1, files)
    (merged,), rows, live_bytes = await bench.state()
    after = await bench.replay()
    assert merged not in files
    assert (rows, live_bytes) == (20, sent)
    assert before.bytes == after.bytes == sent
    assert after.gets < before.gets
    assert min(before.seconds, after.seconds) > 0
