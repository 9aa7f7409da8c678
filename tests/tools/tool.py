"""A program or library of others that tests or loads need.

Place: tests/tools/__init__.py and tests/tools/deploy.py list them.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Tool:
    """`needs`: programs that must be on PATH to install and to run it. `install` None: a person installs it."""

    name: str
    what: str
    needs: tuple[str, ...]
    is_installed: Callable[[], bool]
    install: Callable[[], None] | None
    enable: str
    """The command that makes it available."""
    is_nightly: bool = False
    """Only slow tests need it: `make test` does not install it."""

    @property
    def missing_programs(self) -> list[str]:
        return [program for program in self.needs if shutil.which(program) is None]

    @property
    def is_present(self) -> bool:
        return not self.missing_programs and self.is_installed()

    def why_missing(self) -> str | None:
        """The reason by which a test that needs it is skipped; None if it is there."""
        return None if self.is_present else f"needs {self.name}"
