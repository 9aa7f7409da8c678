"""The cluster: zones, agents and their states, quorum, features, alarms.

Place: the first page.
Invariant: without the metastore it shows what Kafka's protocol shows, and says what is missing.
"""

from __future__ import annotations

import dataclasses

from fastapi import FastAPI
from fastapi.responses import HTMLResponse

from headrace.cli.console.alarms import alarms
from headrace.cli.console.cluster_reads import AgentRow, read_cluster
from headrace.cli.console.metastore_link import Registrations
from headrace.cli.console.parts import ConsoleParts
from headrace.cli.doctor.findings import Finding
from headrace.metastore.api.agents import METADATA_FORMAT
from headrace.metastore.log.image import AgentImage
from headrace.storage.errors import HeadraceError


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
