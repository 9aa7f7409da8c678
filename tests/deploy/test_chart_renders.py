"""The chart's manifests: frozen for four values files, valid for Kubernetes, and accepted by kube-score.

Golden files are written by `HEADRACE_TEST_WRITE_GOLDEN=1 pytest tests/deploy/test_chart_renders.py`.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.deploy import chart_pages
from tests.deploy.rendering import CHART, NAMES, NEWEST, VALUES, WITHOUT_LABELS, helm, objects, rendered
from tests.tools.deploy import KUBE_SCORE

GOLDEN = Path(__file__).parent / "golden"
IGNORED_SCORES = {
    "container-resources": "it asks for CPU limits; throttling delays acknowledgements",
    "container-image-pull-policy": "it asks for Always; images are named by version or digest",
    "pod-networkpolicy": "it asks for egress rules; the addresses of Postgres and the bucket are not in the chart",
    "service-type": "it refuses NodePort, which the user chose",
    "deployment-has-host-podantiaffinity": "topology spread constraints do this",
    "deployment-replicas": "one compactor is enough, and one process of tables: another node starts it again",
    "deployment-has-poddisruptionbudget": "compactors and tables may stop at any time; agents have a budget",
    "container-security-context-user-group-id": "the account of Spark's own image has a low number",
}


def test_readme_and_schema_are_what_the_values_say() -> None:
    assert (CHART / "README.md").read_text(encoding="utf-8") == chart_pages.readme(), "run `make docs`"
    assert (CHART / "values.schema.json").read_text(encoding="utf-8") == chart_pages.schema(), "run `make docs`"


def test_every_value_has_a_meaning() -> None:
    assert not [value.name for value in chart_pages.values() if not value.meaning]
    names = {value.name for value in chart_pages.values()}
    assert not [name for name in chart_pages.NARROWER if name not in names], "the schema narrows what does not exist"


@pytest.mark.needs("helm")
@pytest.mark.parametrize("name", NAMES)
def test_helm_finds_nothing_to_complain_about(name: str) -> None:
    done = helm("lint", "--strict", str(CHART), "-f", str(VALUES / f"{name}.yaml"), "--kube-version", NEWEST)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.needs("helm")
@pytest.mark.parametrize("name", NAMES)
def test_the_manifests_are_the_frozen_ones(name: str) -> None:
    frozen = GOLDEN / f"{name}.yaml"
    if "HEADRACE_TEST_WRITE_GOLDEN" in os.environ:
        frozen.parent.mkdir(exist_ok=True)
        frozen.write_text(rendered(name), encoding="utf-8")
    assert rendered(name) == frozen.read_text(encoding="utf-8"), "look at the difference, then write golden files"


@pytest.mark.needs("helm")
@pytest.mark.parametrize("version", [NEWEST, pytest.param(WITHOUT_LABELS, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", NAMES)
def test_the_manifests_fit_kubernetes_schemas(name: str, version: str) -> None:
    kubernetes_validate = pytest.importorskip("kubernetes_validate")
    found = [item for item in objects(name, version) if "monitoring.coreos.com" not in item["apiVersion"]]
    assert len(found) > 8
    for item in found:
        kubernetes_validate.validate(item, version.rpartition(".")[0], strict=True)


@pytest.mark.needs("helm")
@pytest.mark.parametrize("name", NAMES)
def test_the_checksums_roll_pods_when_their_settings_change(name: str) -> None:
    def checksums(*settings: str) -> list[str]:
        found = objects(name, NEWEST, *settings)
        deployments = [item for item in found if item["kind"] == "Deployment"]
        deployments = [item for item in deployments if not item["metadata"]["name"].endswith("-console")]
        return [item["spec"]["template"]["metadata"]["annotations"]["checksum/config"] for item in deployments]

    assert len(checksums()) == (3 if name == "full" else 2), "the full one keeps tables"
    assert not set(checksums()) & set(checksums(r"settings.log\.level=debug"))


@pytest.mark.needs("helm")
@pytest.mark.needs("kube-score")
@pytest.mark.parametrize("name", NAMES)
def test_kube_score_finds_nothing_critical(name: str) -> None:
    manifests = [item for item in objects(name) if "monitoring.coreos.com" not in item["apiVersion"]]
    ignored = [part for test in IGNORED_SCORES for part in ("--ignore-test", test)]
    done = subprocess.run(
        [KUBE_SCORE, "score", "--kubernetes-version", "v1.36", "--output-format", "ci", *ignored, "-"],
        input=yaml.safe_dump_all(manifests),
        capture_output=True,
        text=True,
        check=False,
    )
    assert "[OK]" in done.stdout
    assert not [line for line in done.stdout.splitlines() if line.startswith(("[CRITICAL]", "[WARNING]"))], done.stdout
