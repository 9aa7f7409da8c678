"""A checkout of the previous release, to run its agents and commands.

Invariant: it runs with this release's virtual environment; a test skips where the repository lacks its commit.
"""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tarfile
from collections.abc import Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
COMMIT = "9b39dcb04b9c0bf89ae16507d668b48aedca4425"
"""The oldest release that may run at the same time as this one; older ones are upgraded to it first."""


def unpack(place: Path) -> Path:
    """The previous release's files below `place`; skips without its commit."""
    archive = subprocess.run(["git", "archive", COMMIT], cwd=ROOT, capture_output=True, check=False)
    if archive.returncode:
        pytest.skip(f"needs the commit of the previous release ({archive.stderr.decode().strip()})")
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as files:
        files.extractall(place, filter="fully_trusted")
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
