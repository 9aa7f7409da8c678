"""A progress bar on stderr, for commands that people wait for.

Place: under `headrace audit` and `records`. Invariant: nothing is written unless stderr is a terminal.
If the process dies here nothing is lost: no state.
"""

from __future__ import annotations

import sys

WIDTH = 30


class ProgressBar:
    """Called with (what is gone through, how many are done, how many there are; 0: nobody knows)."""

    def __init__(self, *, beside_output: bool = False) -> None:
        """`beside_output`: not shown where the output itself goes to a terminal."""
        self._shown = sys.stderr.isatty() and not (beside_output and sys.stdout.isatty())
        self._what = ""

    def __call__(self, what: str, done: int, total: int) -> None:
        """Draw it anew."""
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
        """Leave the line."""
        if self._what:
            sys.stderr.write("\n")
