"""A progress bar on stderr for long commands.

Place: under `headrace audit` and `records`. Invariant: it writes only if stderr is a terminal.
"""

from __future__ import annotations

import sys

WIDTH = 30


class ProgressBar:
    """Called with (what is being done, number done, total; 0: unknown)."""

    def __init__(self, *, beside_output: bool = False) -> None:
        """`beside_output`: do not show the bar if the output itself goes to a terminal."""
        self._shown = sys.stderr.isatty() and not (beside_output and sys.stdout.isatty())
        self._what = ""

    def __call__(self, what: str, done: int, total: int) -> None:
        """Redraw the bar."""
        if not self._shown:
            return
        if what != self._what and self._what:
            sys.stderr.write("\n")
        self._what = what
        filled = WIDTH * done // total if total else 0
        of = f"/{total}" if total else ""
        sys.stderr.write(f"\r{what:>8} [{'#' * filled:<{WIDTH}}] {done}{of}")
        sys.stderr.flush()

    def close(self) -> None:
        """End the line."""
        if self._what:
            sys.stderr.write("\n")
