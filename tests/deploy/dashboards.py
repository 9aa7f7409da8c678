"""Writes Grafana's JSON from deploy/grafana/dashboards.yaml.

    python -m tests.deploy.dashboards        (`make docs` runs it)

Place: the JSON files are in the folder of the chart, which compose.yaml mounts too. A link to it would be left out of
the sdist.
Invariant: every query is in the description, so that test_dashboards.py can check each with promtool and a live scrape.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml

DEPLOY = Path(__file__).parents[2] / "deploy"
DESCRIPTION = DEPLOY / "grafana" / "dashboards.yaml"
FOLDER = DEPLOY / "helm" / "headrace" / "files" / "dashboards"
PANELS_PER_ROW = 3
WIDTH, HEIGHT = 24 // PANELS_PER_ROW, 8


class Query(NamedTuple):
    """`legend` has labels in {{}}."""

    expr: str
    legend: str


class Panel(NamedTuple):
    """A graph over time. `unit` as Grafana names it; `about`: what a healthy graph looks like."""

    title: str
    unit: str
    about: str
    queries: tuple[Query, ...]


def boards() -> dict[str, tuple[Panel, ...]]:
    """Return the boards by name, as the file describes them."""
    described = yaml.safe_load(DESCRIPTION.read_text(encoding="utf-8"))
    return {
        name: tuple(Panel(p["title"], p["unit"], p["about"], _queries(p["queries"])) for p in panels)
        for name, panels in described.items()
    }


def _queries(by_legend: dict[str, str]) -> tuple[Query, ...]:
    return tuple(Query(expr, legend) for legend, expr in by_legend.items())


def board(name: str, panels: Sequence[Panel]) -> dict[str, Any]:
    """Grafana's JSON."""
    return {
        "uid": f"headrace-{name}",
        "title": f"Headrace: {name}",
        "tags": ["headrace"],
        "schemaVersion": 39,
        "editable": True,
        "time": {"from": "now-3h", "to": "now"},
        "refresh": "30s",
        "links": [{"type": "dashboards", "title": "Headrace", "tags": ["headrace"], "asDropdown": True}],
        "templating": {
            "list": [{"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus"}]
        },
        "panels": [_panel(number, panel) for number, panel in enumerate(panels)],
    }


def _panel(number: int, panel: Panel) -> dict[str, Any]:
    source = {"type": "prometheus", "uid": "${datasource}"}
    row, column = divmod(number, PANELS_PER_ROW)
    return {
        "id": number + 1,
        "type": "timeseries",
        "title": panel.title,
        "description": panel.about,
        "datasource": source,
        "gridPos": {"x": column * WIDTH, "y": row * HEIGHT, "w": WIDTH, "h": HEIGHT},
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}},
        "targets": [
            {"refId": chr(ord("A") + place), "datasource": source, "expr": query.expr, "legendFormat": query.legend}
            for place, query in enumerate(panel.queries)
        ],
    }


def texts() -> dict[str, str]:
    """The files by name."""
    return {f"{name}.json": json.dumps(board(name, panels), indent=1) + "\n" for name, panels in boards().items()}


def main() -> None:
    """Write all files."""
    FOLDER.mkdir(exist_ok=True)
    for name, text in texts().items():
        (FOLDER / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
