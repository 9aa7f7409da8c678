"""The one place where commands write text to the terminal, or wherever their output goes.

Place: under every command. `write` is for lines, PlainConsole (plain_console.py) for tables and colours; long
commands show a progress bar on stderr, only if it is a terminal.
Invariant: what others chose (names of groups, topics, clients, users; errors with such names) has no control
characters when it is written, so it cannot move the cursor, set the title or fill the clipboard. Programs get the
same text as people. Only `headrace records consume` writes bytes of records as they are, and never to a terminal. A
test walks the sources: nothing else writes.
"""

from __future__ import annotations

import sys
from typing import TextIO

from headrace.storage.client_text import visible


def write(text: object = "", *, end: str = "\n", flush: bool = False) -> None:
    """Write a text of one or more lines to standard output."""
    _write(sys.stdout, text, end, flush=flush)


def write_error(text: object, *, end: str = "\n") -> None:
    """Write it to standard error."""
    _write(sys.stderr, text, end, flush=True)


def _write(stream: TextIO, text: object, end: str, *, flush: bool) -> None:
    print(visible(str(text)), end=end, file=stream, flush=flush)


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
