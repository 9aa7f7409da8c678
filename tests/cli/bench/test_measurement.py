"""Medians over the rounds, ratios within them, and how figures are shown."""

from __future__ import annotations

import math

import pytest
from rich.console import Console

from headrace.cli.bench.command import line
from headrace.cli.bench.measurement import Measurement, summarise
from headrace.cli.bench.orders import percentile
from headrace.cli.bench.report import COLUMNS, cells, legend, make_table, number
from headrace.cli.bench.rows import pick
from headrace.cli.bench.target_bench import Bounds, TargetBench
from headrace.cli.bench.targets import MeasuredTarget
from headrace.cli.bench.window import Window
from headrace.config.errors import ConfigError
from tests.manual_clock import ManualClock


def a_run(target: str, round_number: int, rate: float, row: str = "10k", **figures: object) -> Measurement:
    return Measurement(
        row=row,
        target=target,
        round=round_number,
        records=1000,
        seconds=1.0,
        mb_per_s=rate,
        records_per_s=rate * 100,
        **figures,  # type: ignore[arg-type]
    )


def test_percentiles_are_values_that_were_seen() -> None:
    values = [float(number) for number in range(1, 101)]
    assert [percentile(values, percent) for percent in (1, 50, 99, 100)] == [1, 50, 99, 100]
    assert percentile([7.0], 99) == 7
    assert math.isnan(percentile([], 50))


def test_ratios_compare_runs_of_one_round_and_medians_are_over_all_rounds() -> None:
    runs = [
        *(a_run("dev", 1, 10, puts=4), a_run("kafka", 1, 40)),
        *(a_run("dev", 2, 20, puts=8), a_run("kafka", 2, 40)),
        *(a_run("dev", 3, 40, puts=6), a_run("kafka", 3, 40)),
    ]
    dev, kafka = summarise(runs)
    assert (dev.target, dev.rounds, dev.ratio, dev.figures["mb_per_s"], dev.figures["puts"]) == ("dev", 3, 1, 20, 6)
    assert (kafka.ratio, kafka.figures["mb_per_s"], kafka.figures["puts"]) == (2, 40, None)


def test_a_round_that_failed_on_the_first_target_has_no_ratio() -> None:
    first, other = summarise([a_run("dev", 1, 10), a_run("kafka", 1, 30), a_run("kafka", 2, 90)])
    assert (first.rounds, other.rounds, other.ratio) == (1, 2, 3)
    (alone,) = summarise([a_run("kafka", 1, 30)])
    assert alone.ratio == 1
    assert summarise([]) == []


def test_the_cost_of_each_process_has_its_own_median() -> None:
    runs = [a_run("dev", n, 10, cpu_s_per_gb={"agent": cpu, "postgres": 1.0}) for n, cpu in enumerate((3.0, 5.0, 4.0))]
    (summary,) = summarise(runs)
    assert summary.cpu_s_per_gb == {"agent": 4.0, "postgres": 1.0}
    assert legend([summary]) == ["CPU and peak memory of dev: agent + postgres"]


def test_the_rigs_cost_is_shown_apart() -> None:
    rig = {"s3": 2.0, "proxy": 0.5}
    runs = [a_run("s3", 1, 10, cpu_s_per_gb={"agent": 3.0}, rig_cpu_s_per_gb=rig), a_run("dev", 1, 10)]
    console = Console(width=400, record=True, file=open("/dev/null", "w", encoding="utf-8"))  # noqa: SIM115
    console.print(make_table(summarise(runs), pick("10k")))
    _, header, s3, dev = [text.rstrip() for text in console.export_text().splitlines() if text.strip()]
    assert header.endswith("rig's CPU s/GB")
    assert s3.endswith(" 2 + 0.5")
    assert dev.endswith(" -")
    assert cells(summarise(runs)[0])[COLUMNS.index("CPU s/GB")] == "3"
    assert legend(summarise(runs)) == [
        "CPU and peak memory of s3: agent",
        "rig's CPU of s3, not counted as the target's: s3 + proxy",
    ]


def test_a_run_counts_the_rig_apart_from_the_target() -> None:
    target = MeasuredTarget("s3", "a:1", "", roots={"agent": (1, 2)}, rig_roots={"proxy": (3,)})
    bench = TargetBench(target, Bounds(1.0, 1, 1), ManualClock(), None)
    window = Window(cpu_seconds={"agent": 2.0, "proxy": 1.0})
    (row,) = pick("10k")
    measured = bench.measurement(row, window, 1_000, 1_000_000, 1.0)
    assert measured.cpu_s_per_gb == {"agent": 2.0}
    assert measured.rig_cpu_s_per_gb == {"proxy": 1.0}


def test_the_table_shows_every_figure_and_a_dash_for_what_a_target_cannot_give() -> None:
    runs = [
        a_run(
            "dev", 1, 141.2, produce_p50_ms=8.31, produce_p99_ms=120.0, puts=12, cpu_s_per_gb={"agent": 4.1, "pg": 0.5}
        ),
        a_run("kafka", 1, 282.4),
    ]
    console = Console(width=400, record=True, file=open("/dev/null", "w", encoding="utf-8"))  # noqa: SIM115
    console.print(make_table(summarise(runs), pick("10k")))
    _, _, dev, kafka = [text.split() for text in console.export_text().splitlines() if text.strip()]
    assert (
        dev[-15:]
        == ["141", "1.00", "14,120", "8.31", "/", "120", "-", "4.1", "+", "0.5", "-", "12", "-", "-", "-", "-"][-15:]
    )
    assert kafka == ["kafka", "282", "2.00", "28,240", *["-"] * 9]


@pytest.mark.parametrize(
    ("value", "shown"),
    [(None, "-"), (0.0, "0"), (0.0123456, "0.0123"), (8.0, "8"), (8.46, "8.46"), (99.96, "100"), (12345.6, "12,346")],
)
def test_numbers_have_three_digits(value: float | None, shown: str) -> None:
    assert number(value) == shown


def test_a_line_of_progress_names_what_was_measured() -> None:
    shown = line(a_run("dev", 1, 10, end_to_end_p50_ms=4.0, end_to_end_p99_ms=9.0, cpu_s_per_gb={"agent": 2.0}))
    assert shown == "10 MB/s, 1,000 records/s, end to end 4 / 9 ms, agent 2 s/GB"


def test_rows_are_picked_by_name() -> None:
    assert [row.name for row in pick("one, 10k")] == ["10k", "one"]
    with pytest.raises(ConfigError, match="unknown rows: 10m"):
        pick("10k,10m")
