"""Renders the chart as `helm template` does, for the tests; each distinct call once per test process.

Place: under the tests of the chart. They are skipped where helm is not installed (`make deploy-tools`).
"""

from __future__ import annotations

import functools
import subprocess
from pathlib import Path
from typing import Any

import yaml

from tests.tools.helm_wheel import HELM

REPOSITORY = Path(__file__).parents[2]
CHART = REPOSITORY / "deploy" / "helm" / "headrace"
VALUES = Path(__file__).parent / "values"
NAMES = sorted(path.stem for path in VALUES.glob("*.yaml"))
NEWEST, WITHOUT_LABELS = "1.36.0", "1.34.0"
"""Kubernetes versions: one that copies the zones of nodes to pods, and one that does not."""

Object = dict[str, Any]


def helm(*arguments: str) -> subprocess.CompletedProcess[str]:
    """A run of helm with the chart; the caller looks at its exit status."""
    return subprocess.run([HELM, *arguments], cwd=REPOSITORY, capture_output=True, text=True, check=False, timeout=300)


@functools.cache
def rendered(name: str, version: str = NEWEST, *settings: str) -> str:
    """The manifests of one of the values files, with further `--set` values."""
    sets = [part for setting in settings for part in ("--set", setting)]
    command = ("template", "hr", str(CHART), "-n", "streams", "--kube-version", version)
    done = helm(*command, "-f", str(VALUES / f"{name}.yaml"), *sets)
    assert done.returncode == 0, done.stderr
    return done.stdout


def objects(name: str, version: str = NEWEST, *settings: str) -> list[Object]:
    """The same, parsed."""
    return [found for found in yaml.safe_load_all(rendered(name, version, *settings)) if found]


def one(found: list[Object], kind: str, ending: str = "") -> Object:
    """The one object of this kind with this end of its name."""
    (result,) = [item for item in found if item["kind"] == kind and item["metadata"]["name"].endswith(ending)]
    return result


def pods(found: list[Object]) -> dict[str, Object]:
    """Every pod's spec by its object's kind and name."""
    specs = {}
    for item in found:
        key = f"{item['kind']}/{item['metadata']['name']}"
        if item["kind"] == "Pod":
            specs[key] = item["spec"]
        elif item["kind"] in ("Deployment", "Job"):
            specs[key] = item["spec"]["template"]["spec"]
        elif item["kind"] == "CronJob":
            specs[key] = item["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    return specs


def environment(container: Object) -> dict[str, str]:
    """Variables with a value in the manifest."""
    return {entry["name"]: entry["value"] for entry in container["env"] if "value" in entry}
