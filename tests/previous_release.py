"""A checkout of the previous release, to run its agents and commands.

Invariant: it runs with this release's virtual environment; a test skips where the repository lacks its commit.
"""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.tools.installing import TOOLS

ROOT = Path(__file__).resolve().parents[1]
COMMIT = "9b39dcb04b9c0bf89ae16507d668b48aedca4425"
"""The oldest release that may run at the same time as this one; older ones are upgraded to it first."""


def unpacked() -> Path:
    """Return the folder with the previous release's files; skips without its commit.

    It is kept with the tools: compiling its modules again takes longer than the tests that run them.
    """
    place = TOOLS / "previous-release" / COMMIT
    if place.exists():
        return place
    archive = subprocess.run(["git", "archive", COMMIT], cwd=ROOT, capture_output=True, check=False)
    if archive.returncode:
        pytest.skip(f"needs the commit of the previous release ({archive.stderr.decode().strip()})")
    place.parent.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(prefix=COMMIT, dir=place.parent))
    made.chmod(0o755)
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as files:
        files.extractall(made, filter="fully_trusted")
    try:
        made.rename(place)
    except OSError:
        if not place.exists():  # else another process was first
            raise
    return place


def environment(checkout: Path) -> Mapping[str, str]:
    """Makes Python import Headrace from the checkout."""
    return dict(os.environ) | {"PYTHONPATH": f"{checkout}/src:{checkout}"}


def command(checkout: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run the checkout's `headrace` command."""
    return subprocess.run(
        [sys.executable, "-m", "headrace.cli.main", *words],
        cwd=checkout,
        env=environment(checkout),
        capture_output=True,
        text=True,
        check=False,
    )
