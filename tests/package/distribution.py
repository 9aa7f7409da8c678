"""Wheel and sdist of the working tree, virtual environments to install them into, and commands run in these.

Place: under test_distribution.py.
Invariant: the repository is copied before it is built, so nothing is written into it, and no environment sees it:
PYTHONPATH is not passed on, and commands run in a temporary folder.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.tools.installing import TOOLS

ROOT = Path(__file__).resolve().parents[2]
SECONDS_MAX = 600
WHEEL, SDIST = "wheel", "sdist"
KINDS = (WHEEL, SDIST)
DATA = (".sql", ".toml")
PACKAGES = ("cli", "metastore", "migrations")
"""The packages with such files."""


class DevPlaces(NamedTuple):
    """What the ready line of `headrace dev` names."""

    bootstrap: str
    metastore: str
    bucket: str


@dataclass(frozen=True)
class Environment:
    """A virtual environment with the distribution in it."""

    place: Path

    def run(self, *words: str, cwd: Path, stdin: str = "") -> str:
        """Run an executable of the environment; its standard output. Fails the test on another status than 0."""
        command = [str(self.place / "bin" / words[0]), *words[1:]]
        return run(command, cwd=cwd, environ=environ_without_repository(), stdin=stdin)

    @contextlib.contextmanager
    def dev(self, cwd: Path, *further: str) -> Iterator[DevPlaces]:
        """`headrace dev` with further flags, ready."""
        flags = ["--port", "0", "--http-port", "0", "--log-level", "warning", *further]
        process = subprocess.Popen(
            [str(self.place / "bin" / "headrace"), "dev", *flags],
            cwd=cwd,
            env=environ_without_repository(),
            stdout=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            text=True,
        )
        assert process.stdout is not None
        try:
            lines = []
            for line in process.stdout:
                lines.append(line)
                if ready := re.match(r"ready bootstrap=(\S+) metastore=(\S+) bucket=(\S+)", line):
                    yield DevPlaces(*ready.groups())
                    return
            pytest.fail(f"headrace dev ended before it was ready: {lines}")
        finally:
            process.terminate()
            process.wait(SECONDS_MAX)
            process.stdout.close()


def data_files() -> set[str]:
    """Every .sql and .toml file of the packages, as the distribution should name it. Those of deploy/ are for
    administrators."""
    return {f"headrace/{name}" for name in tracked() if name.endswith(DATA) and name.split("/")[0] in PACKAGES}


def build(kind: str, directory: Path) -> Path:
    """Build the wheel or the sdist of the working tree with the build backend itself. Skips without setuptools."""
    tree = directory / "tree"
    for name in tracked():
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, tree / name, follow_symlinks=False)
    backend = _build_backend()
    call = f"from setuptools import build_meta; print(build_meta.build_{kind}({str(directory)!r}))"
    printed = run(
        [sys.executable, "-c", call], cwd=tree, environ={**environ_without_repository(), "PYTHONPATH": str(backend)}
    )
    return directory / printed.split()[-1]


def beside_this_environment(built: Path, place: Path) -> Environment:
    """An environment of the running interpreter: only Headrace is installed, its dependencies are this one's."""
    run([sys.executable, "-m", "venv", "--without-pip", str(place)])
    python = place / "bin" / "python"
    run([sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps", str(built)])
    (packages,) = place.glob("lib/python*/site-packages")
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return Environment(place)


def empty_environment(built: Path, place: Path, python: Path) -> Environment:
    """An empty environment of any interpreter, then Headrace and what `headrace dev` needs from the index."""
    run([str(python), "-m", "venv", str(place)])
    run([str(place / "bin" / "pip"), "install", "--quiet", f"headrace[embedded] @ {built.as_uri()}"])
    return Environment(place)


def interpreter(version: str) -> Path:
    """A Python of that version, on PATH or under ~/.pyenv. Skips where there is none."""
    on_path = shutil.which(f"python{version}")
    candidates = [Path(on_path)] if on_path else []
    candidates += sorted((Path.home() / ".pyenv" / "versions").glob(f"{version}.*/bin/python"))
    for candidate in candidates:
        asked = subprocess.run(
            [candidate, "-c", "import sys, venv, ensurepip; print('%d.%d' % sys.version_info[:2])"],
            capture_output=True,
            text=True,
            check=False,
        )
        if asked.stdout.strip() == version:
            return candidate
    pytest.skip(f"needs python{version}")


def _build_backend() -> Path:
    """Return a folder with the build requirements of pyproject.toml, which is kept with the tools."""
    wanted = _pyproject()["build-system"]["requires"]
    place = TOOLS / "build-backend" / hashlib.sha256(repr((wanted, sys.version)).encode()).hexdigest()[:16]
    if place.exists():
        return place
    place.parent.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(prefix=place.name, dir=place.parent))
    installed = subprocess.run(
        [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(made), *wanted],
        capture_output=True,
        text=True,
        check=False,
    )
    if installed.returncode:
        shutil.rmtree(made)
        pytest.skip(f"needs a package index ({installed.stderr.strip().splitlines()[-1:]})")
    try:
        made.rename(place)
    except OSError:
        if not place.exists():  # else another process was first
            raise
    return place


def project() -> dict[str, Any]:
    """Return the table `project` of pyproject.toml."""
    found: dict[str, Any] = _pyproject()["project"]
    return found


def _pyproject() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def tracked() -> list[str]:
    """The repository's files and links."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    return [name for name in run(command, cwd=ROOT).splitlines() if os.path.lexists(ROOT / name)]


def environ_without_repository() -> dict[str, str]:
    """This process's environment without what would show the repository to a child."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


def run(command: list[str], cwd: Path | None = None, environ: Mapping[str, str] | None = None, stdin: str = "") -> str:
    """Its standard output. Fails the test on another status than 0."""
    ended = subprocess.run(
        command, cwd=cwd, env=environ, input=stdin, capture_output=True, text=True, check=False, timeout=SECONDS_MAX
    )
    assert ended.returncode == 0, f"{command}: {ended.stderr}{ended.stdout[-4000:]}"
    return ended.stdout
