"""The benchmark of the audit trail runs, and what its rows take keeps the promise of 2 GiB."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.metastore.api.segments import METADATA_PARTITIONS
from headrace.metastore.audit_trail import BLOCK_RECORDS
from load.benchmarks import audit as bench_audit
from load.benchmarks.commit import opened

SHARE = 0.004
PROMISE_BYTES = 2 << 30


@pytest.mark.slow
async def test_ninety_days_at_one_gigabyte_per_second_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A small share of the rows, and no blocks that wait: bytes per row by table, times all rows."""
    monkeypatch.setattr(bench_audit, "SIMULATED_SECONDS", 120)
    monkeypatch.setattr(bench_audit, "WAITING_RECORDS", 0)
    per_day = bench_audit.records_per_day()
    assert per_day > 1_000_000_000
    place = tmp_path / "postgres"
    place.mkdir()
    async with opened(place, 1) as bench:
        await bench_audit.make_rows(bench, round(per_day * SHARE))
        sizes = [await bench_audit.size_of(bench, table) for table in ("archived_audit", "remote_segment_events")]
    (objects, object_bytes), (events, event_bytes) = sizes
    waiting = METADATA_PARTITIONS * BLOCK_RECORDS
    total = object_bytes / SHARE + event_bytes / SHARE + event_bytes / events * waiting
    assert objects > 1_000
    assert total < PROMISE_BYTES / 2, "with room for rows that VACUUM has not removed yet"
