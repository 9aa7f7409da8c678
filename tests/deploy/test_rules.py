"""The alert rules: valid for Prometheus, only about metrics that exist, and the same for compose and the chart."""

from __future__ import annotations

import re
import shutil
import subprocess

import pytest
import yaml

from tests.deploy.rendering import REPOSITORY, needs, objects, one

FILE = REPOSITORY / "deploy" / "prometheus" / "rules.yaml"
GROUPS = yaml.safe_load(FILE.read_text(encoding="utf-8"))["groups"]
RULES = [rule for group in GROUPS for rule in group["rules"]]
DECLARED = re.compile(r'(?:Counter|Gauge|Histogram|Summary|GaugeMetricFamily|CounterMetricFamily)\(\s*"(headrace_\w+)"')
PACKAGES = ("agent", "cli", "compactor", "metastore", "storage")


def exported_names() -> set[str]:
    """What a process can show: a counter ends with _total, a histogram has three series."""
    names = set()
    for package in PACKAGES:
        for path in (REPOSITORY / "src" / "headrace" / package).rglob("*.py"):
            names |= set(DECLARED.findall(path.read_text(encoding="utf-8")))
    return {name + ending for name in names for ending in ("", "_total", "_sum", "_count", "_bucket")}


@needs("promtool")
def test_promtool_accepts_them() -> None:
    promtool = shutil.which("promtool")
    done = subprocess.run([str(promtool), "check", "rules", str(FILE)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_they_use_only_metrics_that_exist() -> None:
    recorded = {rule["record"] for rule in RULES if "record" in rule}
    known = exported_names() | recorded
    assert len(known) > 100
    for rule in RULES:
        used = set(re.findall(r"\bheadrace_\w+", rule["expr"]))
        assert used, rule
        assert used <= known, rule


@pytest.mark.parametrize("rule", [rule for rule in RULES if "alert" in rule], ids=lambda rule: str(rule["alert"]))
def test_an_alert_says_what_happens_and_what_to_do(rule: dict[str, dict[str, str]]) -> None:
    assert rule["labels"]["severity"] in ("critical", "warning")
    assert rule["annotations"].keys() >= {"summary", "description"}


@needs("helm")
def test_the_chart_installs_these_rules() -> None:
    assert one(objects("full"), "PrometheusRule")["spec"] == {"groups": GROUPS}
