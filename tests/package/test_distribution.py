"""An installed Headrace runs without its repository, and next to a user's own modules of the same names."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.package.distribution import (
    DATA,
    KINDS,
    WHEEL,
    Environment,
    beside_this_environment,
    build,
    data_files,
    empty_environment,
    interpreter,
    project,
)

PYTHONS = ("3.11", "3.12", "3.13")
INSTALLED = """\
import importlib.metadata, json, headrace
distribution = importlib.metadata.distribution("headrace")
print(json.dumps({
    "files": [str(file) for file in distribution.files],
    "metadata_version": distribution.version,
    "version": headrace.__version__,
    "place": headrace.__file__,
}))
"""
USERS_OWN = "raise SystemExit('the module of a user was imported')\n"


@pytest.mark.slow
def test_an_installed_wheel_runs_next_to_a_users_modules(tmp_path: Path) -> None:
    wheel = build(WHEEL, tmp_path)
    _check(beside_this_environment(wheel, tmp_path / "venv"), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("version", PYTHONS)
def test_wheel_and_sdist_install_into_empty_environments(version: str, kind: str, tmp_path: Path) -> None:
    python = interpreter(version)
    _check(empty_environment(build(kind, tmp_path), tmp_path / "venv", python), tmp_path)


def _check(environment: Environment, tmp_path: Path) -> None:
    folder = tmp_path / "a user's folder"
    folder.mkdir()
    packages = "agent cli compactor config jobs metastore migrations protocol scan spark storage tables"
    for name in packages.split():
        (folder / f"{name}.py").write_text(USERS_OWN)
    _check_files(environment, folder)
    version = environment.run("headrace", "version", cwd=folder)
    assert version == environment.run("headrace", "--version", cwd=folder)
    with environment.dev(folder) as (bootstrap, _, _):
        environment.run("headrace", "topics", "create", "greetings", "-b", bootstrap, cwd=folder)
        environment.run("headrace", "records", "produce", "greetings", "-b", bootstrap, cwd=folder, stdin="hello\n")
        read = environment.run("headrace", "records", "consume", "greetings", "-b", bootstrap, cwd=folder)
    assert read == "hello\n"


def _check_files(environment: Environment, folder: Path) -> None:
    found = json.loads(environment.run("python", "-c", INSTALLED, cwd=folder))
    assert Path(found["place"]).is_relative_to(environment.place), "the repository's own was imported"
    assert found["version"] == found["metadata_version"]
    folders = {Path(name).parts[0] for name in found["files"]}
    scripts = [f"../../../bin/{name}" for name in sorted(project()["scripts"])]
    assert folders == {"headrace", f"headrace-{found['version']}.dist-info", ".."}
    assert sorted(name for name in found["files"] if name.startswith("..")) == scripts
    assert "headrace/py.typed" in found["files"]
    assert {name for name in found["files"] if name.endswith(DATA)} == data_files()
    assert f"headrace {found['version']} (Python " in environment.run("headrace", "--version", cwd=folder)
