"""--plots writes a PNG file for each figure that some target has."""

from __future__ import annotations

from pathlib import Path

from headrace.cli.bench.measurement import summarise
from tests.cli.bench.test_measurement import a_run

PNG = b"\x89PNG\r\n\x1a\n"


def test_only_what_was_measured_is_drawn(tmp_path: Path) -> None:
    from headrace.cli.bench.plots import draw_plots  # matplotlib: half a second in each worker that collects this

    runs = [
        a_run("dev", 1, 2, produce_p50_ms=8.0, cpu_s_per_gb={"agent": 4.0, "postgres": 0.0}),
        a_run("kafka", 1, 2),
        a_run("kafka", 1, 2, row="read-1", peak_mb={"kafka": 400.0}),
    ]
    drawn = draw_plots(summarise(runs), tmp_path / "new" / "plots")
    assert [path.name for path in drawn] == ["throughput.png", "produce_p50.png", "cpu.png", "memory.png"]
    assert all(path.read_bytes().startswith(PNG) for path in drawn)
