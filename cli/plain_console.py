"""Rich's console, for texts that others chose.

Place: where commands draw tables, colours and screens; output.py has the rule.
Invariant: a text is never markup, and only Rich's styles write control characters.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

from rich.console import Console
from rich.segment import Segment
from rich.text import Text

from headrace.storage.client_text import one_line, visible

PIPE_WIDTH = 1_000_000
"""Width if the output is not a terminal: lines are never wrapped for a program."""


class PlainConsole(Console):
    """Writes to standard output, or to standard error with `stderr`."""

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, highlight=False, emoji=False, **options)

    def _render_buffer(self, buffer: Iterable[Segment]) -> str:
        return super()._render_buffer(
            segment if segment.control else segment._replace(text=visible(segment.text)) for segment in buffer
        )


def table_console() -> PlainConsole:
    """Return the console for a table: as wide as the terminal, or without an end for a program."""
    return PlainConsole(width=None if sys.stdout.isatty() else PIPE_WIDTH)


def cell(text: str, style: str = "") -> Text:
    """Return one line of text for a table or a screen, with any characters in it."""
    return Text(one_line(text), style=style)
