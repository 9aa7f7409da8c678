"""The benchmarks of small files in Postgres run, and count what they say."""

from __future__ import annotations

import asyncio
import tempfile
from argparse import Namespace
from pathlib import Path

import pytest

from load.benchmarks import first_records, inline_hour, inline_others, inline_scale
from load.harness import BenchmarkRun, measure, parsed
from load.postgres_wal import OTHER, sums
from load.workloads.inline_agents import AgentsPlan
from load.workloads.inline_processes import create_topic, shared_out

KIB = 1_024


def _plan(url: str, bucket: Path, seconds: float, *, file_bytes: int = 256 * KIB) -> AgentsPlan:
    topic_number, topic_id = asyncio.run(create_topic(url, 8))
    return AgentsPlan(
        url=url, bucket=str(bucket), topic_number=topic_number, topic_id=topic_id, partitions=8, first=1, agents=2,
        of=2, mb_s=2, batch_bytes=16 * KIB, request_batches=2, low_latency=True, put_ms=1, seconds=seconds,
        report_seconds=seconds / 2, file_bytes=file_bytes,
    )  # fmt: skip


def test_a_minute_of_the_hour_has_its_figures(metastore_url: str, tmp_path: Path) -> None:
    run = BenchmarkRun(Namespace(folder=tmp_path, seconds=0.8, minute=0.4), tmp_path)
    samples = inline_hour.watch(
        run, metastore_url, [_plan(metastore_url, tmp_path / "bucket", 0.8)], tmp_path / "bucket"
    )
    assert [sample["minute"] for sample in samples] == [1, 2] == [int(str(row["name"])[-1]) for row in run.rows]
    last = samples[-1]
    assert last["inline_share"] == 1
    assert sum(sample["wal_per_byte"] for sample in samples) > 1
    assert last["slots"]["toast_bytes"] > samples[0]["slots"]["toast_bytes"] > 0
    assert {"extents", "segment_files", "commit_log", "commit_answers"} <= set(last["tables"])
    assert last["failures"] == 0


def test_arrivals_are_shared_out_by_agents() -> None:
    plan = AgentsPlan("", "", 1, "", 8, 1, 5, 5, 10.0, 1, 1, low_latency=True, put_ms=0, seconds=1, report_seconds=1)
    assert [(each.first, each.agents, each.mb_s) for each in shared_out(plan, 2)] == [(1, 3, 6.0), (4, 2, 4.0)]


def test_log_counts_for_the_table_that_a_record_names_first() -> None:
    dumped = "\n".join(
        [
            "rmgr: Heap len (rec/tot):     59/  8131, tx: 7, desc: INSERT, blkref #0: rel 1663/5/16 blk 0 FPW",
            "rmgr: Heap len (rec/tot): 80/    80, tx: 7, lsn: 0/2, desc: X, blkref #0: rel 1663/5/17 blk 1, blkref #1:"
            " rel 1663/5/16 blk 0",
            "rmgr: Transaction len (rec/tot):     34/    34, tx: 7, lsn: 0/3, desc: COMMIT",
            "rmgr: Heap len (rec/tot): 10/    10, tx: 7, lsn: 0/4, desc: INSERT, blkref #0: rel 1663/5/99 blk 0",
        ]
    )
    assert sums(dumped, {"16": "extents", "17": "inline_files"}) == {"extents": 8131, "inline_files": 80, OTHER: 44}


@pytest.mark.slow
def test_the_scale_run_compares_both_ways_and_draws_where_the_choice_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inline_scale, "SWEEP_MB_S", (1, 2))
    words = f"{tmp_path} --seconds 3 --wal-seconds 1 --sweep-seconds 1 --agents 4 --workers 1 --sweep-agents 2"
    args = parsed(inline_scale.BENCHMARK, f"{words} --partitions 20 --shards 8 --others 2 --mb-s 1".split())
    assert measure("inline_scale", inline_scale.BENCHMARK, args) == 0
    assert (tmp_path / "turn.png").stat().st_size


@pytest.mark.slow
def test_others_are_measured_with_each_traffic(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--seconds", "1", "--rounds", "1", "--others", "2", "--traffic", "2", "--partitions", "32"]
    assert measure("inline_others", inline_others.BENCHMARK, parsed(inline_others.BENCHMARK, words)) == 0
    assert capsys.readouterr().out.count("ms p95") == len(inline_others.KINDS)


@pytest.mark.slow
def test_the_first_records_are_sent_one_by_one() -> None:
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o711)
        taken, refused = asyncio.run(first_records.start_and_send(first_records.TARGETS["a directory"], Path(name), 5))
    assert (len(taken), refused) == (5, 0)
    assert min(taken) > 0
