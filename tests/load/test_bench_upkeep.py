"""The benchmark of upkeep runs, and asks in the planners' pieces."""

from __future__ import annotations

import re
from argparse import Namespace
from pathlib import Path

import pytest

from headrace.compactor.cleaning.planner import PARTITIONS_PER_LOOK
from load.benchmarks import upkeep as bench_upkeep
from load.harness import BenchmarkRun


@pytest.mark.slow
async def test_planners_questions_are_asked_in_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    partitions = PARTITIONS_PER_LOOK + 1
    monkeypatch.setattr(bench_upkeep, "TOPIC_PARTITIONS", partitions)
    monkeypatch.setattr(bench_upkeep, "SEGMENTS", (10,))
    await bench_upkeep.measure(BenchmarkRun(Namespace(), tmp_path), [partitions])
    shown = capsys.readouterr().out
    pieces = dict(re.findall(r"^  (\w+).* (\d+) pieces", shown, re.MULTILINE))
    assert pieces == {"describe_cleaning": "2", "flushed_files": "2", "parts_in_files": "2", "files_of_parts": "1"}
    assert shown.count("in one call") == 3
    assert "Canceled" not in shown
