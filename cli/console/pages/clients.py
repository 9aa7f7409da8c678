"""Clients: which users and client ids send and get most, and the quotas that are set.

Place: /clients; pages/changes.py has the form for a quota, and sets it after a confirmation.
Invariant: rates need the agents' HTTP addresses, and the page says so. A cluster that does not let this console see
quotas still shows the clients.
"""

from __future__ import annotations

from fastapi import FastAPI
from fastapi.responses import HTMLResponse

from headrace.cli.client.quotas import CLIENT_ID, IP, USER, list_quotas
from headrace.cli.console.client_counters import OTHERS, heaviest_first, shown_pair
from headrace.cli.console.parts import ConsoleParts, PageOfRows
from headrace.storage.errors import HeadraceError

CLIENTS_PER_PAGE = 50
QUOTAS_MAX = 200
DEFAULT = "<default>"


def add_pages(app: FastAPI, console: ConsoleParts) -> None:
    """/clients"""

    @app.get("/clients")
    def clients(q: str = "", page: str = "") -> HTMLResponse:
        found = [
            {"user": user, "client_id": client_id, "use": use, "is_others": pair == OTHERS}
            for pair, use in heaviest_first(console.sampler.samples.clients)
            for user, client_id in (shown_pair(pair),)
            if q.lower() in user.lower() or q.lower() in client_id.lower()
        ]
        pages = PageOfRows.of(page, CLIENTS_PER_PAGE, len(found))
        quotas, problem = _quotas(console)
        return console.pages.render(
            "clients",
            rows=found[pages.rows],
            q=q,
            pages=pages,
            quotas=quotas[:QUOTAS_MAX],
            quota_count=len(quotas),
            problem=problem,
            has_agents=console.sampler.has_agents,
            problems=console.sampler.problems,
        )


def _quotas(console: ConsoleParts) -> tuple[list[dict[str, object]], str]:
    """One row per limit, and why there are none if the cluster refuses to say."""
    try:
        with console.link.opened() as cluster:
            found = list_quotas(cluster)
    except HeadraceError as error:
        return [], str(error)
    rows: list[dict[str, object]] = []
    for entity, limits in found.items():
        names = {kind: DEFAULT if name is None else name for kind, name in entity}
        for key, value in sorted(limits.items()):
            whom = {"user": names.get(USER), "client_id": names.get(CLIENT_ID), "ip": names.get(IP)}
            rows.append(whom | {"key": key, "value": value})
    return rows, ""
