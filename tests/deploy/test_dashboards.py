"""The dashboards: written from their description, valid PromQL, and only about metrics that a process shows."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from tests.deploy.dashboards import FOLDER, boards, texts
from tests.deploy.live_scrape import Scrape
from tests.deploy.metrics_page import declared_metrics
from tests.deploy.rendering import NEWEST, objects, one
from tests.deploy.test_metrics import OF_TABLES
from tests.deploy.test_rules import GROUPS, RULES, promtool

BOARDS = boards()
QUERIES = [query.expr for panels in BOARDS.values() for panel in panels for query in panel.queries]
METRIC = re.compile(r"\b(?:headrace|process)_\w+")
LABELS = re.compile(r"by \(([\w, ]+)\)|\{(\w+)(?:=|!)")


def test_the_files_are_up_to_date() -> None:
    assert {path.name: path.read_text(encoding="utf-8") for path in FOLDER.glob("*.json")} == texts(), "run `make docs`"
    assert set(BOARDS) == {"overview", "produce", "fetch", "groups", "metastore", "background"}


@pytest.mark.parametrize("name", BOARDS)
def test_panels_have_separate_titles_and_say_what_is_healthy(name: str) -> None:
    panels = BOARDS[name]
    assert len({panel.title for panel in panels}) == len(panels)
    assert all(panel.about and panel.queries for panel in panels)


@pytest.mark.needs("promtool")
def test_each_query_is_valid(tmp_path: Path) -> None:
    """Wrapped in a rule each, with a value for Grafana's variable."""
    rules = [
        {"record": f"query_{number}", "expr": query.replace("$__rate_interval", "1m")}
        for number, query in enumerate(QUERIES)
    ]
    (tmp_path / "queries.yaml").write_text(yaml.safe_dump({"groups": [{"name": "dashboards", "rules": rules}]}))
    said = promtool("check", "rules", str(tmp_path / "queries.yaml"))
    assert f"{len(QUERIES)} rules found" in said


@pytest.mark.slow
def test_each_metric_of_a_dashboard_or_rule_is_shown_by_a_process(scrape: Scrape) -> None:
    shown = {sample.name for family in scrape.families.values() for sample in family.samples}
    declared = [each for each in declared_metrics() if each.name in scrape.families or each.name.startswith(OF_TABLES)]
    shown |= {series for metric in declared for series in metric.series}
    recorded = {rule["record"] for rule in RULES if "record" in rule}
    used = {name for expr in [*QUERIES, *(rule["expr"] for rule in RULES)] for name in METRIC.findall(expr)}
    assert len(used) > 60
    assert used - recorded - shown == set()


def test_the_labels_of_queries_exist() -> None:
    known = {label for metric in declared_metrics() for label in metric.labels}
    known |= {"instance", "job", "le"}
    for query in QUERIES:
        for groups in LABELS.findall(query):
            assert {label.strip() for label in ",".join(filter(None, groups)).split(",")} <= known, query


@pytest.mark.needs("helm")
def test_the_chart_installs_them_and_the_rules_with_an_address() -> None:
    found = objects("full", NEWEST, "monitoring.dashboards.enabled=true")
    boards_map = one(found, "ConfigMap", "-dashboards")
    assert boards_map["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert boards_map["data"] == texts()
    expected = {
        "groups": yaml.safe_load(
            yaml.safe_dump(GROUPS).replace("runbook_url: ", "runbook_url: https://example.com/headrace/blob/main/")
        )
    }
    assert one(found, "PrometheusRule")["spec"] == expected
