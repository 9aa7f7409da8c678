"""A short run of the command against an agent that it starts: produced with librdkafka, read back, shown."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headrace.cli.main import main

RECORDS = 300
PUT_DELAY_MS = 10
S3_PUT_MS = 5


@pytest.mark.slow
def test_a_short_run_measures_two_agents_and_reads_back_all_records(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = tmp_path / "result.json"
    words = ["--rows", "16kib,one,read-1", "--rounds", "1", "--seconds", "2", "--records", str(RECORDS), "--quick"]
    words += ["--put-delay-ms", str(PUT_DELAY_MS), "--json", str(result)]
    assert main(["bench", "--target", "t=dev linger.ms=25 agents=2", *words]) == 0
    shown = capsys.readouterr()
    assert "1 KB values, 16 KiB batches, linger 5 ms, idempotent" in shown.out
    assert "CPU and peak memory of t: agent + postgres + compactor" in shown.out
    assert "[3/3] round 1/1 read-1 t: " in shown.err
    found = json.loads(result.read_text(encoding="utf-8"))
    assert found["failures"] == []
    assert found["targets"][0]["settings"] == {"linger.ms": "25", "agents": "2", "put-delay-ms": str(PUT_DELAY_MS)}
    assert found["targets"][0]["version"].startswith("headrace ")
    produced, one, read = found["runs"]
    assert 0 < produced["records"] <= RECORDS
    assert produced["read_back"] == produced["records"] + 12, "a record of each partition is sent before the start"
    assert one["read_back"] == one["records"] + 12
    assert PUT_DELAY_MS <= one["produce_p50_ms"] <= one["produce_p99_ms"]
    assert 0 < one["end_to_end_p50_ms"] <= one["end_to_end_p99_ms"]
    assert read["records"] > 0
    for run in (produced, one):
        assert 0 < run["flushes"] <= run["puts"] <= run["flushes"] + 3, (
            "the metastore's position is written now and then"
        )
        assert 0 < run["commits"] <= run["flushes"]
        assert run["extents"] >= 12
        assert run["duplicates"] == run["disordered"] == 0
    for run in found["runs"]:
        assert set(run["cpu_s_per_gb"]) == set(run["peak_mb"]) == {"agent", "postgres", "compactor"}
        assert all(peak > 1 for peak in run["peak_mb"].values())
    assert [summary["row"] for summary in found["summary"]] == ["16kib", "one", "read-1"]


@pytest.mark.slow
@pytest.mark.needs("s3-latency", "versitygw")
def test_a_short_run_on_an_s3_server_counts_its_cost_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = tmp_path / "result.json"
    target = f"s3=dev bucket=s3 put-ms={S3_PUT_MS} sigma=0"
    words = ["--rows", "many", "--quick", "--records", "100", "--json", str(result)]
    assert main(["bench", "--target", target, *words]) == 0
    shown = capsys.readouterr().out
    assert "rig's CPU of s3, not counted as the target's: s3 + proxy" in shown
    assert "warm-up of s3: one window" in shown
    found = json.loads(result.read_text(encoding="utf-8"))
    assert found["failures"] == []
    assert len(found["targets"][0]["warm_up"]["mb_per_s"]) == 1
    (run,) = found["runs"]
    assert run["records"] == 100
    assert run["read_back"] == 100 + 50 * 12, "each producer sends a record to each partition before the start"
    assert run["duplicates"] == run["disordered"] == 0
    assert S3_PUT_MS <= run["produce_p50_ms"] <= run["produce_p99_ms"]
    assert run["cpu_s_per_gb"].keys() == run["peak_mb"].keys() == {"agent", "postgres", "compactor"}
    assert run["rig_cpu_s_per_gb"].keys() == {"s3", "proxy"}
    assert run["cpu_seconds"].keys() == {"agent", "postgres", "compactor", "s3", "proxy"}
