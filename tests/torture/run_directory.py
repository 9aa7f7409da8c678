"""The directory of a run's logs and data: it goes with a clean run and stays after another.

Place: `make torture` and `make torture-transactions`.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path


class RunDirectory:
    """A new directory, or the empty one that the user named, which always stays."""

    def __init__(self, named: Path | None) -> None:
        self._is_named = named is not None
        self.path = Path(tempfile.mkdtemp(prefix="headrace-torture-")) if named is None else named.resolve()

    def end(self, *, is_clean: bool) -> None:
        """Remove it, or say where it is."""
        if not is_clean:
            print(f"logs and data: {self.path}")
        elif not self._is_named:
            shutil.rmtree(self.path, ignore_errors=True)
