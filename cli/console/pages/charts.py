"""Charts of the last minutes: bytes produced and fetched, p99 of commits, records, lag.

Place: /charts; the part that changes is /charts/live, which the page asks for every few seconds.
Invariant: without the agents' HTTP addresses bytes and commits are unknown, and the page says so.
"""

from __future__ import annotations

from collections.abc import Callable

from fastapi import FastAPI
from fastapi.responses import HTMLResponse

from headrace.cli.console.charts import Chart, draw
from headrace.cli.console.parts import ConsoleParts, whole_number
from headrace.cli.console.samples import Point

MINUTES = (5, 15, 60)
VALUES: tuple[tuple[str, str, Callable[[Point], float | None]], ...] = (
    ("Produced", "bytes", lambda point: point.produced_bytes),
    ("Fetched", "bytes", lambda point: point.fetched_bytes),
    ("Commit, p99", "ms", lambda point: point.commit_p99_ms),
    ("Records produced", "records", lambda point: point.records),
    ("Lag of all groups", "offsets", lambda point: point.lag),
)
NEEDS_AGENTS = ("bytes", "ms")


def add_pages(app: FastAPI, console: ConsoleParts) -> None:
    """/charts and /charts/live"""

    @app.get("/charts")
    def charts(minutes: str = "") -> HTMLResponse:
        return _render("charts", minutes)

    @app.get("/charts/live")
    def charts_live(minutes: str = "") -> HTMLResponse:
        return _render("charts_live", minutes)

    def _render(template: str, minutes: str) -> HTMLResponse:
        wanted = whole_number(minutes, "minutes", 1, MINUTES[-1]) or MINUTES[0]
        end_ms = console.clock.wall_ms()
        start_ms = end_ms - wanted * 60_000
        points = console.sampler.samples.since(start_ms)
        return console.pages.render(
            template,
            charts=draw_all(points, start_ms, end_ms, console.sampler.has_agents),
            minutes=wanted,
            choices=MINUTES,
            start_ms=start_ms,
            end_ms=end_ms,
            points=len(points),
            has_agents=console.sampler.has_agents,
            problems=console.sampler.problems,
        )


def draw_all(points: list[Point], start_ms: int, end_ms: int, has_agents: bool) -> list[Chart]:
    """Those that can be known."""
    return [
        draw(
            title,
            unit,
            [(point.at_ms, value(point)) for point in points],
            start_ms,
            end_ms,
            step=1024.0 if unit == "bytes" else 10.0,
        )
        for title, unit, value in VALUES
        if has_agents or unit not in NEEDS_AGENTS
    ]
