"""The cluster at a glance: agents, quorum, features, alarms, charts of the last minutes, segment files, jobs.

Place: the first page, /charts and /files. The part of the charts that changes is /charts/live, which the page asks
for every few seconds; the template charts_live.html draws it.
Invariant of alarms: each line says what to do; without the metastore the doctor's part is missing, and the page says
so.
Invariant of a chart: a gap in the points is a gap in the line. The picture is WIDTH by HEIGHT units and is stretched
to its box, so all words are outside of it.
Invariant: without the metastore it shows what Kafka's protocol shows, and says what is missing.
Invariant of /charts: without the agents' HTTP addresses bytes and commits are unknown, and the page says so.
Invariant of /files: reads only. Without the metastore's address the page says which flag is missing.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from fastapi import FastAPI
from fastapi.responses import HTMLResponse

from headrace.cli.console.cluster_reads import AgentRow, ClusterSummary, read_cluster
from headrace.cli.console.metastore_link import BackgroundWork, Registrations
from headrace.cli.console.parts import ConsoleParts, whole_number
from headrace.cli.console.samples import Point
from headrace.cli.doctor.findings import Area, Finding, Level
from headrace.metastore.api.agents import METADATA_FORMAT
from headrace.metastore.api.files import FileState
from headrace.metastore.api.jobs import JobState
from headrace.metastore.log.image import AgentImage
from headrace.storage.errors import HeadraceError

AREA = Area("cluster")
NAMED_MAX = 10


def alarms(view: ClusterSummary, findings: Sequence[Finding], problems: Sequence[str]) -> list[Finding]:
    """Return the alarms of the cluster as seen, of the doctor, and of samples that could not be taken. Only what is
    not ok.
    """
    doctors = {finding.check for finding in findings}
    own = [finding for finding in _of_view(view) if finding.check not in doctors]
    sampling = [AREA.warn("samples", problem, "charts and lags are incomplete meanwhile") for problem in problems]
    wrong = [finding for finding in (*findings, *own, *sampling) if finding.level is not Level.OK]
    return sorted(wrong, key=lambda finding: (Level.BAD, Level.WARN, Level.UNKNOWN).index(finding.level))


def _of_view(view: ClusterSummary) -> Iterator[Finding]:
    fenced = [str(agent.node_id) for agent in view.agents if agent.state == "fenced"]
    live = [agent for agent in view.agents if agent.state == "live"]
    if fenced:
        to_do = "headrace cluster unregister -i ID, for those that will not return"
        yield AREA.warn("agents", f"{len(live)} are live; fenced: {', '.join(fenced)}", to_do)
    elif len(live) < 2:
        yield AREA.warn("agents", f"{len(live)} is live", "run at least two, in two zones")
    if view.quorum is not None and view.quorum.leader < 0:
        yield AREA.bad("controller", "no process is the active controller", "start an agent with the role controller")
    if view.without_leader:
        names = ", ".join(view.without_leader[:NAMED_MAX])
        found = f"{len(view.without_leader)} partitions have no leader: {names}"
        yield AREA.bad("partitions", found, "start agents: each serves every partition")


WIDTH, HEIGHT = 600.0, 120.0
GAP_SECONDS = 30.0
"""Neighbours with more time between them are not joined."""


class Chart(NamedTuple):
    """`line` and `area` are SVG path data; `top` is the value at the upper edge, `now` and `most` of the points."""

    title: str
    unit: str
    line: str
    area: str
    top: float
    now: float | None
    most: float | None


def draw(
    title: str, unit: str, points: Sequence[tuple[int, float | None]], start_ms: int, end_ms: int, *, step: float = 10.0
) -> Chart:
    """Draw points of (time in ms, value) from start to end. `step` 10: the upper edge is 1, 2 or 5 times a power of
    10.
    """
    known = [(at, value) for at, value in points if value is not None and start_ms <= at <= end_ms]
    top = _nice(max((value for _, value in known), default=0.0), step)
    line, area = [], []
    for run in _runs(known):
        places = [
            ((at - start_ms) / max(end_ms - start_ms, 1) * WIDTH, HEIGHT - value / top * HEIGHT) for at, value in run
        ]
        path = " L".join(f"{x:.1f} {y:.1f}" for x, y in places)
        line.append(f"M{path}")
        area.append(f"M{places[0][0]:.1f} {HEIGHT:.1f} L{path} L{places[-1][0]:.1f} {HEIGHT:.1f} Z")
    values = [value for _, value in known]
    return Chart(
        title, unit, " ".join(line), " ".join(area), top, values[-1] if values else None, max(values, default=None)
    )


def _runs(known: Sequence[tuple[int, float]]) -> list[list[tuple[int, float]]]:
    runs: list[list[tuple[int, float]]] = []
    for at, value in known:
        if runs and at - runs[-1][-1][0] <= GAP_SECONDS * 1000:
            runs[-1].append((at, value))
        else:
            runs.append([(at, value)])
    return runs


def _nice(value: float, step: float) -> float:
    """The smallest of 1, 2, 5 times a power of `step` that is not below the value; at least 1. For bytes `step` is
    1024, and the multiples are powers of 2."""
    if value <= 1:
        return 1.0
    power = step ** math.floor(math.log(value, step))
    multiples = (1, 2, 5, 10) if step == 10.0 else tuple(2**n for n in range(11))
    return next((m * power for m in multiples if m * power >= value), step * power)


def add_pages(app: FastAPI, console: ConsoleParts) -> None:
    """/"""

    @app.get("/")
    def overview() -> HTMLResponse:
        with console.link.opened() as cluster:
            view = read_cluster(cluster)
        agents, findings, metastore_error = view.agents, list[Finding](), ""
        if console.metastore is not None:
            try:
                agents = agent_rows(console.metastore.registrations(), console.clock.wall_ms())
                findings = [*console.metastore.findings(), *console.tables.findings()]
            except HeadraceError as error:
                metastore_error = str(error)
        zones: dict[str, list[AgentRow]] = {}
        for agent in agents:
            zones.setdefault(agent.zone, []).append(agent)
        last = console.sampler.samples.points[-1] if console.sampler.samples.points else None
        return console.pages.render(
            "overview",
            view=view,
            agents=agents,
            zones=dict(sorted(zones.items())),
            alarms=alarms(view, findings, console.sampler.problems),
            metastore_error=metastore_error,
            last=last,
        )


def agent_rows(found: Registrations, now_ms: int) -> list[AgentRow]:
    """Every registered agent, with what the metastore knows of it."""
    leases = {lease.node_id: lease for lease in found.leases}
    rows = []
    for agent in sorted(found.image.agents.values(), key=lambda agent: agent.node_id):
        supported = agent.features.get(METADATA_FORMAT)
        row = AgentRow(
            agent.node_id,
            agent.endpoint(None).host,
            agent.endpoint(None).port,
            agent.rack or "",
            _state(agent),
            "" if supported is None else f"{supported.min_level} to {supported.max_level}",
        )
        if lease := leases.get(agent.node_id):
            lag, silent = found.image.offset - lease.metadata_offset, now_ms - lease.last_contact_ms
            row = dataclasses.replace(row, lag=max(lag, 0), silent_ms=max(silent, 0))
        rows.append(row)
    return rows


def _state(agent: AgentImage) -> str:
    if agent.fenced:
        return "fenced"
    if agent.leaving:
        return "leaving"
    return "hidden" if agent.hidden else "live"


MINUTES = (5, 15, 60)
VALUES: tuple[tuple[str, str, Callable[[Point], float | None]], ...] = (
    ("Produced", "bytes", lambda point: point.produced_bytes),
    ("Fetched", "bytes", lambda point: point.fetched_bytes),
    ("Commit, p99", "ms", lambda point: point.commit_p99_ms),
    ("Records produced", "records", lambda point: point.records),
    ("Lag of all groups", "offsets", lambda point: point.lag),
)
NEEDS_AGENTS = ("bytes", "ms")


def add_charts(app: FastAPI, console: ConsoleParts) -> None:
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


class LevelRow(NamedTuple):
    """Live files of one level."""

    level: int
    files: int
    bytes: int
    live_bytes: int

    @property
    def dead_bytes(self) -> int:
        """Bytes that are dead in files that still have live bytes, or wait for deletion."""
        return self.bytes - self.live_bytes


def add_files(app: FastAPI, console: ConsoleParts) -> None:
    """/files"""

    @app.get("/files")
    def files() -> HTMLResponse:
        if console.metastore is None:
            return console.pages.render("files", work=None)
        work = console.metastore.background_work()
        levels = level_rows(work)
        return console.pages.render(
            "files",
            work=work,
            levels=levels,
            others=[row for row in work.levels if row.state is not FileState.LIVE],
            total=LevelRow(-1, *(sum(numbers) for numbers in zip(*(row[1:] for row in levels), strict=True)))
            if levels
            else LevelRow(-1, 0, 0, 0),
            running=[job for job in work.jobs if job.state is JobState.LEASED],
            waiting=[job for job in work.jobs if job.state is JobState.WAITING],
            ended=[job for job in work.jobs if job.state in (JobState.DONE, JobState.GIVEN_UP)],
            now_ms=console.clock.wall_ms(),
        )


def level_rows(work: BackgroundWork) -> list[LevelRow]:
    """Live files, by level."""
    return [
        LevelRow(row.level, row.files, row.bytes, row.live_bytes) for row in work.levels if row.state is FileState.LIVE
    ]
