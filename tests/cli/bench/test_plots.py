"""--plots writes a PNG file for each figure that some target has."""

from __future__ import annotations

from pathlib import Path

from headrace.cli.bench.measurement import Measurement, summarise

PNG = b"\x89PNG\r\n\x1a\n"


def _run(row: str, target: str, **figures: object) -> Measurement:
    return Measurement(
        row=row,
        target=target,
        round=1,
        records=1,
        seconds=1,
        mb_per_s=2,
        records_per_s=1,
        **figures,  # type: ignore[arg-type]
    )


def test_only_what_was_measured_is_drawn(tmp_path: Path) -> None:
    from headrace.cli.bench.plots import draw_plots  # matplotlib: half a second in each worker that collects this

    runs = [
        _run("10k", "dev", produce_p50_ms=8.0, cpu_s_per_gb={"agent": 4.0, "postgres": 0.0}),
        _run("10k", "kafka"),
        _run("read-1", "kafka", peak_mb={"kafka": 400.0}),
    ]
    drawn = draw_plots(summarise(runs), tmp_path / "new" / "plots")
    assert [path.name for path in drawn] == ["throughput.png", "produce_p50.png", "cpu.png", "memory.png"]
    assert all(path.read_bytes().startswith(PNG) for path in drawn)
