"""One release has one version, whichever file names it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.package.distribution import ROOT
from tests.package.release_tool import release

FILES = (
    *("CHANGELOG.md", "pyproject.toml", "deploy/helm/headrace/Chart.yaml"),
    *("deploy/Containerfile", "deploy/compose.yaml"),
)


def test_every_file_names_the_same_version() -> None:
    assert len(set(release.versions().values())) == 1, release.versions()


@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("CHANGELOG.md", "## "),
        ("deploy/helm/headrace/Chart.yaml", "version: "),
        ("pyproject.toml", "version = "),
        ("deploy/Containerfile", "ARG VERSION="),
    ],
)
def test_a_file_that_was_forgotten_is_noticed(file: str, line: str, tmp_path: Path) -> None:
    for name in FILES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    own = release.versions()["pyproject.toml"]
    text = (tmp_path / file).read_text(encoding="utf-8")
    for quote in ("", '"'):
        text = text.replace(f"\n{line}{quote}{own}{quote}", f"\n{line}{quote}9.9.9{quote}", 1)
    (tmp_path / file).write_text(text, encoding="utf-8")
    assert len(set(release.versions(tmp_path).values())) == 2
