"""Configs with their sources: of a topic, the cluster, an agent or a group.

Place: /configs.
Invariant: a secret is never shown: the cluster does not send it.
"""

from __future__ import annotations

from fastapi import FastAPI
from fastapi.responses import HTMLResponse

from headrace.cli.configs import BROKER, GROUP, TOPIC, describe_configs, shown
from headrace.cli.console.parts import ConsoleParts
from headrace.storage.errors import InvalidError

KINDS = {"cluster": BROKER, "agent": BROKER, "topic": TOPIC, "group": GROUP}
NAMES_MAX = 1_000
"""Most names in a list to choose from."""


def add_pages(app: FastAPI, console: ConsoleParts) -> None:
    """/configs"""

    @app.get("/configs")
    def configs(kind: str = "cluster", name: str = "", q: str = "", own: str = "") -> HTMLResponse:
        if kind not in KINDS:
            raise InvalidError(f"kind: not one of {', '.join(KINDS)}: {kind[:40]}")
        if kind == "agent" and name and not name.isdecimal():
            raise InvalidError(f"name: not a node id: {name[:40]}")
        with console.link.opened() as cluster:
            nodes = [str(node) for node in cluster.nodes()]
            topics = [str(topic.name) for topic in cluster.metadata()][:NAMES_MAX]
            asked = name or (nodes[0] if kind == "agent" and nodes else "")
            if kind == "cluster":
                asked = ""
            rows = []
            if asked or kind == "cluster":
                found = describe_configs(cluster, (KINDS[kind], asked))
                rows = shown(found, KINDS[kind] if own else None)
        return console.pages.render(
            "configs",
            kind=kind,
            name=asked,
            kinds=list(KINDS),
            q=q,
            own=bool(own),
            rows=[row for row in rows if q.lower() in row["config"].lower()],
            nodes=nodes,
            topics=topics,
        )
