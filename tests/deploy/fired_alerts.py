"""Says by Prometheus' own engine whether an alert fires, from pages of /metrics that real processes showed.

Place: test_real_alerts.py makes the conditions. Each page is repeated as some minutes of scrapes, so that the rule's
`for` passes without waiting for it.
Invariant: the rules are those that operators deploy. An alert must not fire on the page before the condition.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import yaml
from prometheus_client.parser import text_string_to_metric_families

from tests.deploy.test_rules import FILE, promtool

CALM_MINUTES, CONDITION_MINUTES = 20, 20
FIRES_MINUTES = 7
"""Longer than any critical rule's `for`, shorter than the range of its increase()."""
STEPS_PER_MINUTE = 2
Page = str | None
"""The text of /metrics of one process; None if it does not answer."""


def assert_fires(alert: str, calm: Sequence[Page], condition: Sequence[Page], folder: Path) -> None:
    """`calm` and `condition`: one page for each process, in the same order. Fails unless the alert is silent first,
    and fires afterwards.
    """
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(FILE, folder)
    firing = f'count(ALERTS{{alertname="{alert}",alertstate="firing"}}) > bool 0'
    test = {
        "rule_files": [FILE.name],
        "evaluation_interval": "30s",
        "tests": [
            {
                "interval": "30s",
                "input_series": _series(calm, condition),
                "promql_expr_test": [
                    {"expr": firing, "eval_time": f"{CALM_MINUTES - 1}m", "exp_samples": []},
                    {
                        "expr": firing,
                        "eval_time": f"{CALM_MINUTES + FIRES_MINUTES}m",
                        "exp_samples": [{"labels": "{}", "value": 1}],
                    },
                ],
            }
        ],
    }
    (folder / "fires.yaml").write_text(yaml.safe_dump(test))
    promtool("test", "rules", "fires.yaml", directory=folder)


def _series(calm: Sequence[Page], condition: Sequence[Page]) -> list[dict[str, str]]:
    found = []
    for number, pages in enumerate(zip(calm, condition, strict=True)):
        before, after = map(_samples, pages)
        for series in sorted(before.keys() | after.keys()):
            values = f"{_run(before.get(series), CALM_MINUTES)} {_run(after.get(series), CONDITION_MINUTES)}"
            found.append({"series": series.replace("{", f'{{instance="agent-{number}",', 1), "values": values})
    return found


def _run(value: float | None, minutes: int) -> str:
    """So many equal samples; stale markers if there is none."""
    steps = minutes * STEPS_PER_MINUTE
    return f"stale _x{steps - 2}" if value is None else f"{value}x{steps - 1}"


def _samples(page: Page) -> dict[str, float]:
    found = {}
    for family in text_string_to_metric_families(page or ""):
        if family.name.startswith("headrace"):
            for sample in family.samples:
                labels = ",".join(f'{name}="{value}"' for name, value in sorted(sample.labels.items()))
                found[f"{sample.name}{{{labels}}}"] = sample.value
    return found
