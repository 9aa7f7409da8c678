"""Says by Prometheus' own engine whether an alert fires, from pages of /metrics that real processes showed.

Place: test_real_alerts.py and test_real_warnings.py make the conditions. Each page is repeated as some minutes of
scrapes, so that the rule's `for` passes without waiting for it.
Invariant: the rules are those that operators deploy. An alert must not fire on the page before the condition.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import yaml
from prometheus_client.parser import text_string_to_metric_families

from tests.deploy.test_rules import FILE, promtool

CALM_MINUTES = 20
FIRES_MINUTES = 7
"""Longer than any critical rule's `for`, shorter than the range of its increase()."""
REST_MINUTES = 13
"""The condition lasts longer than the look at the alert."""
STEP_SECONDS = 30
Page = str | None
"""The text of /metrics of one process; None if it does not answer."""


def assert_fires(
    alert: str,
    calm: Sequence[Page],
    condition: Sequence[Page],
    folder: Path,
    *,
    calm_minutes: int = CALM_MINUTES,
    fires_minutes: int = FIRES_MINUTES,
    step_seconds: int = STEP_SECONDS,
) -> None:
    """`calm` and `condition`: one page for each process, in the same order. Fails unless the alert is silent first,
    and fires once the condition has lasted `fires_minutes`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(FILE, folder)

    def steps(minutes: int) -> int:
        return minutes * 60 // step_seconds

    firing = f'count(ALERTS{{alertname="{alert}",alertstate="firing"}}) > bool 0'
    test = {
        "rule_files": [FILE.name],
        "evaluation_interval": f"{step_seconds}s",
        "tests": [
            {
                "interval": f"{step_seconds}s",
                "input_series": _series((calm, steps(calm_minutes)), (condition, steps(fires_minutes + REST_MINUTES))),
                "promql_expr_test": [
                    {"expr": firing, "eval_time": f"{calm_minutes - 1}m", "exp_samples": []},
                    {
                        "expr": firing,
                        "eval_time": f"{calm_minutes + fires_minutes}m",
                        "exp_samples": [{"labels": "{}", "value": 1}],
                    },
                ],
            }
        ],
    }
    (folder / "fires.yaml").write_text(yaml.safe_dump(test))
    promtool("test", "rules", "fires.yaml", directory=folder)


def _series(calm: tuple[Sequence[Page], int], condition: tuple[Sequence[Page], int]) -> list[dict[str, str]]:
    """`calm` and `condition`: the pages, and the number of scrapes."""
    found = []
    for number, pages in enumerate(zip(calm[0], condition[0], strict=True)):
        before, after = map(_samples, pages)
        for series in sorted(before.keys() | after.keys()):
            values = f"{_run(before.get(series), calm[1])} {_run(after.get(series), condition[1])}"
            found.append({"series": series.replace("{", f'{{instance="agent-{number}",', 1), "values": values})
    return found


def _run(value: float | None, steps: int) -> str:
    """So many equal samples; stale markers if there is none."""
    return f"stale _x{steps - 2}" if value is None else f"{value}x{steps - 1}"


def _samples(page: Page) -> dict[str, float]:
    found = {}
    for family in text_string_to_metric_families(page or ""):
        if family.name.startswith("headrace"):
            for sample in family.samples:
                labels = ",".join(f'{name}="{value}"' for name, value in sorted(sample.labels.items()))
                found[f"{sample.name}{{{labels}}}"] = sample.value
    return found
