"""The harness of the benchmarks: what is printed, what JSON has, and how a run ends."""

from __future__ import annotations

import json
from argparse import ArgumentParser
from pathlib import Path

import pytest

from headrace.compactor.planner import PolicyLimits
from load.__main__ import BENCH, NAMES, main
from load.benchmarks.compaction_simulation import Arrivals, simulate
from load.harness import Benchmark, BenchmarkRun, measure, parsed, shown


def test_a_benchmark_prints_its_rows_and_adds_a_line_of_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "rows.json"
    for _ in range(2):
        assert main(["compaction_simulation", "--hours", "0.05", "--json", str(file)]) == 0
    printed = capsys.readouterr().out
    first, second = map(json.loads, file.read_text().splitlines())
    assert first["rows"] == second["rows"]
    assert first["arguments"] == {"hours": 0.05}
    assert first["before"].startswith("machine: ")
    for row in first["rows"]:
        assert printed.count(f"  {row['name']:44}  {row['figures']['files without']:,} files without  ") == 2
    quiet = first["rows"][-1]["figures"]
    assert quiet["PUTs"] == simulate(Arrivals(180, 1, 2_000, 20), PolicyLimits()).puts


def test_a_promise_that_does_not_hold_fails_the_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async def judged(run: BenchmarkRun) -> None:
        assert run.place.is_dir()
        run.note("two sizes")
        run.row("small", {"ms": 4.0}, {"ms": 8.0})
        run.judge("small is fast", holds=True)
        run.judge("large is fast", holds=run.args.fast)

    def add_arguments(parser: ArgumentParser) -> None:
        parser.add_argument("--fast", action="store_true")

    benchmark = Benchmark("two sizes", judged, add_arguments)
    file = tmp_path / "rows.json"
    assert measure("sizes", benchmark, parsed(benchmark, ["--fast"])) == 0
    assert measure("sizes", benchmark, parsed(benchmark, ["--json", str(file)])) == 1
    printed = capsys.readouterr().out
    assert "4.00 ms (goal 8.00, 0.50 of it)" in printed
    assert "MISSED: large is fast" in printed
    kept = json.loads(file.read_text())
    assert kept["missed"] == ["large is fast"]
    assert kept["rows"] == [{"name": "small", "figures": {"ms": 4.0}, "goals": {"ms": 8.0}, "under": "two sizes"}]


def test_figures_have_three_digits_and_whole_numbers_all() -> None:
    assert [shown(figure) for figure in (7, 123_456, 0.01234, 1.239, 123.44, 4_567.8, "lock 9 %")] == [
        "7", "123,456", "0.0123", "1.24", "123.4", "4,568", "lock 9 %",
    ]  # fmt: skip


def test_names_are_those_of_the_folder(capsys: pytest.CaptureFixture[str]) -> None:
    assert set(BENCH) <= set(NAMES)
    assert main(["codec", "life", "nothing"]) == 2
    assert main(["nothing"]) == 2
    assert "no benchmark is called nothing" in capsys.readouterr().err
