"""What a start reads of remote segments: live ones only, after any history; on a real Postgres, small."""

from __future__ import annotations

from pathlib import Path

import pytest

from load.benchmarks import segment_history as bench_segment_history
from load.benchmarks.commit import opened


@pytest.mark.requirement("R7")
async def test_a_start_reads_live_segments_and_a_replay_all_history(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"LIVE": 100, "HISTORY": (1, 5, 20), "ROUNDS": 1, "SEGMENTS_A_DAY": 200}.items():
        monkeypatch.setattr(bench_segment_history, name, value)
    place = tmp_path / "postgres"
    place.mkdir()
    async with opened(place, 1) as bench:
        rows = await bench_segment_history.measure_starts(bench)
        year = await bench_segment_history.simulate_year(bench, 15)
    assert [row["projection"]["rows"] for row in rows] == [100] * 3
    assert len({row["start"]["rows"] for row in rows}) == 1
    assert [row["full_replay"]["rows"] for row in rows] == [600, 2_200, 8_200]
    smallest, largest = (row["projection"]["bytes"] for row in (rows[0], rows[-1]))
    assert largest < smallest * 1.1
    assert rows[-1]["full_replay"]["bytes"] > 10 * rows[0]["full_replay"]["bytes"]
    assert [sample["segment_rows"] for sample in year] == [1_000, 1_600, 1_600]
    assert [sample["event_rows"] for sample in year] == [2_000, 5_200, 9_200]
