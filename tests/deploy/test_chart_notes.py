"""What `helm install` prints: the next steps, with names and addresses of this release."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import yaml

from tests.deploy.rendering import CHART, NEWEST, VALUES, helm

pytestmark = pytest.mark.needs("helm")


def notes(place: Path, name: str, *settings: str) -> str:
    """NOTES.txt as text. `helm template` does not print it, so it is rendered as a value in a copy of the chart."""
    copy = place / "headrace"
    shutil.copytree(CHART, copy)
    text = (copy / "templates" / "NOTES.txt").read_text(encoding="utf-8")
    (copy / "templates" / "_notes.tpl").write_text(f'{{{{- define "notes" -}}}}{text}{{{{- end -}}}}')
    (copy / "templates" / "notes.yaml").write_text('notes: |\n{{ include "notes" . | indent 2 }}\n')
    sets = [part for setting in settings for part in ("--set", setting)]
    command = ("template", "hr", str(copy), "-n", "streams", "--kube-version", NEWEST, "-s", "templates/notes.yaml")
    done = helm(*command, "-f", str(VALUES / f"{name}.yaml"), *sets)
    assert done.returncode == 0, done.stderr
    return str(yaml.safe_load(done.stdout)["notes"])


@pytest.mark.parametrize(
    ("name", "settings", "expected"),
    [
        ("minimal", (), "inside the cluster:  hr-headrace.streams.svc:9092"),
        ("minimal", ("cluster.id=",), "deployment/hr-headrace-agent -- headrace storage info"),
        ("minimal", ("compactor.replicas=0",), "WARNING: compactor.replicas is 0"),
        ("load-balancer", (), "outside:             kafka.example:9092"),
        ("node-port", (), "the address of any node with an agent, port 30092"),
        ("minimal", ("spark.enabled=true",), "configs set compaction.spark.min.bytes"),
    ],
)
def test_the_notes_say_what_to_do_next(name: str, settings: tuple[str, ...], expected: str, tmp_path: Path) -> None:
    text = notes(tmp_path, name, *settings)
    assert expected in text
    assert "kubectl rollout status deployment/" in text
    assert "helm test hr -n streams" in text


def test_the_notes_count_the_connections_to_postgres(tmp_path: Path) -> None:
    """Three agents, one more during an upgrade, and a compactor, with 8 and 4 connections each."""
    assert "up to 60 connections" in notes(tmp_path, "minimal")
