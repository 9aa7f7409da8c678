"""Runs one suite: its checkout, its environment, a fresh cluster, its command, its JUnit report.

Place: between __main__.py and the suites of catalog.py.
Invariant: each suite gets a separate cluster, which ends with it; the checkout is never changed.
If this process crashes, its agents may be left; .compat/ may be deleted at any time.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

from tests.compat.suites.catalog import PLUGINS, PROTOCOLS, Suite
from tests.compat.suites.secure_agents import secure_agents

SETTINGS: dict[str, object] = {
    "linger.ms": 25,
    "node.id": 0,
    "group.initial.rebalance.delay.ms": 0,
    "num.partitions": 4,
}
"""What Kafka's own test clusters use too, so that the suites do not wait."""


class CompatError(Exception):
    """A suite cannot be run here; the message says why."""


class Outcome(NamedTuple):
    """One test of a suite. `verdict`: passed, failed or skipped."""

    test: str
    verdict: str
    reason: str


def bring(suite: Suite, sources: Path) -> Path:
    """The suite's checkout: the one in `sources`, else a fresh clone."""
    checkout = sources / suite.repository.rsplit("/", 1)[1]
    if not checkout.is_dir():
        command = ["git", "clone", "--quiet", "--depth", "1", "--branch", suite.tag, suite.repository, str(checkout)]
        if subprocess.run(command, check=False).returncode != 0:
            raise CompatError(f"no checkout of {suite.name}: bring it yourself with `{' '.join(command)}`")
    return checkout


def prepare(suite: Suite, checkout: Path, work: Path) -> Path:
    """A copy of what runs, with its dependencies installed; the directory to run in."""
    run_in = work / suite.name
    shutil.rmtree(run_in, ignore_errors=True)
    run_in.mkdir(parents=True)
    for name in suite.copied:
        source = checkout / name
        if source.is_dir():
            shutil.copytree(source, run_in / name)
        elif source.exists():
            shutil.copy(source, run_in / name)
    for name in suite.scripts:
        (run_in / "scripts").mkdir(exist_ok=True)
        shutil.copy(PLUGINS / name, run_in / "scripts")
    if suite.requirements:
        _install_python(suite, work / f"{checkout.name}.venv")
    else:
        _install_node(run_in)
    return run_in


def run(suite: Suite, run_in: Path, work: Path, only: str | None) -> list[Outcome]:
    """Every test's outcome; the suite's own output goes to `work`/NAME.log."""
    junit = (work / f"{suite.name}.xml").absolute()
    junit.unlink(missing_ok=True)
    python = work / f"{suite.repository.rsplit('/', 1)[1]}.venv" / "bin" / "python"
    with _cluster(suite) as filled, (work / f"{suite.name}.log").open("w") as log:
        fill = {"python": str(python.absolute()), "junit": str(junit), "work": str(junit.parent), **filled}
        command = [part.format(**fill) for part in suite.command]
        if only is not None:
            command += ["-k" if suite.requirements else "-t", only]
        environment = {name: value.format(**fill) for name, value in suite.environment.items()}
        subprocess.run(
            command, cwd=run_in, env={**_environment(), **environment}, stdin=subprocess.DEVNULL,
            stdout=log, stderr=subprocess.STDOUT, timeout=suite.seconds_max, check=False,
        )  # fmt: skip
    if not junit.exists():
        raise CompatError(f"{suite.name} ended without a report; see {work / suite.name}.log")
    return read_report(junit)


def read_report(junit: Path) -> list[Outcome]:
    """The outcomes of a JUnit file, in its order."""
    return [_outcome(case) for case in ElementTree.parse(junit).iter("testcase")]


def _outcome(case: ElementTree.Element) -> Outcome:
    test = f"{case.get('classname', '')}::{case.get('name', '')}"
    for child in case:
        if child.tag in ("failure", "error"):
            text = child.get("message") or child.text or ""
            return Outcome(test, "failed", next(iter(text.strip().splitlines()), ""))
        if child.tag == "skipped":
            return Outcome(test, "skipped", child.get("message") or "")
    return Outcome(test, "passed", "")


@contextmanager
def _cluster(suite: Suite) -> Iterator[dict[str, str]]:
    """Return what of the suite's command and environment names the running cluster."""
    settings = {**SETTINGS, **suite.settings}
    with (
        tempfile.TemporaryDirectory(prefix="headrace-compat-") as directory,
        secure_agents(suite, settings, Path(directory)) as agents,
    ):
        addresses = {name.lower(): agents.bootstrap(name) for name in PROTOCOLS}
        yield addresses | {"bootstrap": agents.bootstrap(), "certificates": str(agents.certificates)}


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}


def _install_python(suite: Suite, venv: Path) -> None:
    if not venv.exists():
        _checked([sys.executable, "-m", "venv", str(venv)])
    _checked([str(venv / "bin" / "pip"), "install", "--quiet", "--disable-pip-version-check", *suite.requirements])


def _install_node(run_in: Path) -> None:
    if shutil.which("npm") is None:
        raise CompatError("npm is needed for this suite and is not here")
    _checked(["npm", "install", "--silent", "--no-fund", "--no-audit", "--ignore-scripts"], cwd=run_in)


def _checked(command: list[str], cwd: Path | None = None) -> None:
    if subprocess.run(command, cwd=cwd, check=False).returncode != 0:
        raise CompatError(f"failed: {' '.join(command)}")
