"""The alert rules: valid, unit-tested with Prometheus' own tool, each with a paragraph that says what to do."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.deploy.metrics_page import declared_metrics
from tests.deploy.rendering import REPOSITORY
from tests.tools.deploy import PROMTOOL

FILE = REPOSITORY / "deploy" / "prometheus" / "rules.yaml"
UNIT_TESTS = Path(__file__).parent / "rules_test.yaml"
GROUPS = yaml.safe_load(FILE.read_text(encoding="utf-8"))["groups"]
RULES = [rule for group in GROUPS for rule in group["rules"]]
ALERTS = [rule for rule in RULES if "alert" in rule]


def promtool(*arguments: str, directory: Path | None = None) -> str:
    """Its output; fails if it does."""
    done = subprocess.run([PROMTOOL, *arguments], cwd=directory, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.needs("promtool")
def test_promtool_accepts_them() -> None:
    assert "SUCCESS" in promtool("check", "rules", str(FILE))


@pytest.mark.needs("promtool")
def test_they_fire_when_they_should_and_only_then(tmp_path: Path) -> None:
    for file in (FILE, UNIT_TESTS):
        shutil.copy(file, tmp_path / file.name)
    assert "SUCCESS" in promtool("test", "rules", UNIT_TESTS.name, directory=tmp_path)


@pytest.mark.needs("promtool")
def test_the_unit_tests_notice_a_wrong_limit(tmp_path: Path) -> None:
    """A planted mistake: the alert on lag looks at none of the groups."""
    shutil.copy(UNIT_TESTS, tmp_path)
    (tmp_path / FILE.name).write_text(FILE.read_text(encoding="utf-8").replace("> 100000", "> 1000000"))
    with pytest.raises(AssertionError, match="HeadraceConsumerLagGrows"):
        promtool("test", "rules", UNIT_TESTS.name, directory=tmp_path)


def test_they_use_only_metrics_that_exist() -> None:
    known = {rule["record"] for rule in RULES if "record" in rule}
    known |= {series for metric in declared_metrics() for series in metric.series}
    for rule in RULES:
        used = set(re.findall(r"\bheadrace_\w+", rule["expr"]))
        assert used, rule
        assert used <= known, rule


@pytest.mark.parametrize("rule", ALERTS, ids=lambda rule: str(rule["alert"]))
def test_an_alert_links_the_paragraph_that_says_what_to_do(rule: dict[str, dict[str, str]]) -> None:
    assert rule["labels"]["severity"] in ("critical", "warning")
    assert rule["annotations"].keys() == {"summary", "description", "runbook_url"}
    page, _, anchor = rule["annotations"]["runbook_url"].partition("#")
    text = (REPOSITORY / page).read_text(encoding="utf-8")
    paragraph = re.search(rf"^## {rule['alert']}\n\n(.+)$", text, re.MULTILINE)
    assert paragraph is not None, "ALERTS.md has no paragraph for it"
    assert len(paragraph[1]) > 80
    assert anchor == str(rule["alert"]).lower()


def test_every_paragraph_is_of_an_alert() -> None:
    text = (REPOSITORY / "docs" / "operate" / "ALERTS.md").read_text(encoding="utf-8")
    assert re.findall(r"^## (Headrace\w+)$", text, re.MULTILINE) == [rule["alert"] for rule in ALERTS]


def test_counters_of_alerts_begin_with_zero() -> None:
    """Else increase() misses the first error: the values of `reason` in the alerts are there before it."""
    from prometheus_client import CollectorRegistry, generate_latest

    from headrace.agent.fetch.metrics import FetchMetrics
    from headrace.agent.fetch.zone_cache.shared import ZoneCacheMetrics

    registry = CollectorRegistry()
    FetchMetrics(registry)
    ZoneCacheMetrics(registry)
    page = generate_latest(registry).decode()
    assert 'headrace_zone_cache_fallbacks_total{reason="wrong"} 0.0' in page
    assert 'headrace_fetch_storage_errors_total{reason="missing"} 0.0' in page
