"""Applications in Python, each in a separate venv, because their dependencies differ from ours and from each other's.

Place: under the list of tools; requirements/<name>.lock pins the application and all that it needs.
Invariant: a venv that was not completed is made again.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from tests.tools.installing import TOOLS, run

LOCKS = Path(__file__).parents[2] / "requirements"


def python_of(name: str) -> Path:
    """The interpreter that has the packages of the application."""
    return TOOLS / name / "bin" / "python"


def is_installed(name: str) -> bool:
    """Return whether the installation came to its end."""
    return _mark(name).exists()


def install(name: str) -> None:
    """A new venv with the pinned packages."""
    shutil.rmtree(TOOLS / name, ignore_errors=True)
    run(sys.executable, "-m", "venv", str(TOOLS / name))
    run(str(python_of(name)), "-m", "pip", "install", "--quiet", "--no-deps", "-r", str(LOCKS / f"{name}.lock"))
    _mark(name).touch()


def _mark(name: str) -> Path:
    return TOOLS / name / ".installed"
