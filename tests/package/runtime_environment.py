"""The environment of a user: Headrace and the packages of requirements/runtime.lock.

Place: under test_instructions.py. Links to the packages of this environment: nothing is downloaded.
"""

from __future__ import annotations

import sys
from importlib.metadata import distribution
from pathlib import Path

from tests.package.distribution import ROOT, Environment, run
from tests.package.release_tool import advisories


def runtime_environment(built: Path, place: Path) -> Environment:
    """An environment that has Headrace, the packages of requirements/runtime.lock as links, and nothing else."""
    run([sys.executable, "-m", "venv", "--without-pip", str(place)])
    python = place / "bin" / "python"
    run([sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps", str(built)])
    (packages,) = place.glob("lib/python*/site-packages")
    for used in advisories.pins(ROOT / "requirements" / "runtime.lock"):
        installed = distribution(used.package)
        for name in {file.parts[0] for file in installed.files or () if file.parts[0] != ".."}:
            target = Path(str(installed.locate_file(name)))
            if target.exists() and not (packages / name).exists():
                (packages / name).symlink_to(target)
    return Environment(place)
