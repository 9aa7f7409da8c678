"""The image file: hadolint accepts it, bases are pinned, and what it copies is what an agent needs."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.deploy.rendering import REPOSITORY
from tests.tools.deploy import HADOLINT

FILE = REPOSITORY / "deploy" / "Containerfile"
TEXT = FILE.read_text(encoding="utf-8")


@pytest.mark.needs("hadolint")
def test_hadolint_finds_nothing() -> None:
    done = subprocess.run([HADOLINT, "--no-color", str(FILE)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, ""), done.stdout


@pytest.mark.parametrize("name", ["BASE", "SPARK_BASE"])
def test_a_base_is_a_build_argument_pinned_by_digest(name: str) -> None:
    assert re.search(rf"^ARG {name}=\S+@sha256:[0-9a-f]{{64}}$", TEXT, re.M)
    assert set(re.findall(r"^FROM (\S+)", TEXT, re.M)) == {"${BASE}", "${SPARK_BASE}"}


def test_the_targets_run_as_users_with_numbers_and_without_a_shell() -> None:
    """Kubernetes checks runAsNonRoot by number; a shell in front would keep SIGTERM."""
    targets = re.split(r"^FROM .* AS (\w+)$", TEXT, flags=re.M)[1:]
    by_name = dict(zip(targets[::2], targets[1::2], strict=True))
    assert list(by_name) == ["packages", "spark", "agent"], "the last one is the default"
    assert re.findall(r"^USER (\S+)", by_name["agent"], re.M) == ["10001:10001"]
    assert re.findall(r"^USER (\S+)", by_name["spark"], re.M)[-1] == "185"
    assert re.search(r'^ENTRYPOINT \["headrace"\]$', by_name["agent"], re.M)
    assert "STOPSIGNAL SIGTERM" in by_name["agent"]


def test_the_version_of_chart_and_image_is_the_packages() -> None:
    (version,) = re.findall(r'^version = "(.*)"$', Path(REPOSITORY / "pyproject.toml").read_text("utf-8"), re.M)
    chart = (REPOSITORY / "deploy" / "helm" / "headrace" / "Chart.yaml").read_text(encoding="utf-8")
    assert re.findall(r"^(?:version|appVersion): (.*)$", chart, re.M) == [version, version]
    assert re.findall(r"^ARG VERSION=(.*)$", TEXT, re.M) == [version, version]
    assert f"headrace:{version}}}" in (REPOSITORY / "deploy" / "compose.yaml").read_text(encoding="utf-8")
