"""The sdist holds what its tests need: they are collected and run in the unpacked sdist, without the repository."""

from __future__ import annotations

import re
import sys
import tarfile
from pathlib import Path

import pytest

from tests.package.distribution import SDIST, build, environ_without_repository, run, tracked

GRAFTED = ("tests/", "load/", "docs/", "deploy/", "examples/", "requirements/")
THAT_READ_FILES = (
    *("tests/golden", "tests/config", "tests/deploy", "tests/kubernetes", "tests/load", "tests/storage/records"),
    *("tests/metastore/test_frozen_migrations.py", "tests/cli/test_cli_main.py", "tests/protocol"),
    *("tests/house", "tests/simulation/test_determinism.py"),
)
"""Vectors, golden files, the chart, pages of docs/, other processes: what a missing file would break."""


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("sdist")
    with tarfile.open(build(SDIST, place)) as files:
        files.extractall(place / "unpacked", filter="data")
    (folder,) = (place / "unpacked").iterdir()
    return folder


def _pytest(folder: Path, *words: str) -> str:
    environ = environ_without_repository() | {"PYTHONPATH": f"{folder / 'src'}:{folder}"}
    command = [sys.executable, "-m", "pytest", "-o", "addopts=", "-p", "no:cacheprovider", "-q", *words]
    return run(command, cwd=folder, environ=environ)


@pytest.mark.slow
def test_it_holds_every_file_of_the_tests(unpacked: Path) -> None:
    wanted = {name for name in tracked() if name.startswith(GRAFTED)}
    assert len(wanted) > 800
    assert not {name for name in wanted if not (unpacked / name).is_file()}


@pytest.mark.slow
def test_its_tests_run_without_the_repository(unpacked: Path) -> None:
    collected = re.findall(r"^(\d+) tests collected", _pytest(unpacked, "--collect-only"), re.M)
    assert int(collected[0]) > 3000
    printed = _pytest(unpacked, "-m", "not slow", *THAT_READ_FILES)
    assert re.search(r"^\d+ passed", printed, re.M)
