"""How the process that opens values ended, and at which row: a number in a file that both processes have in memory.

Place: written by child.py before each row, read by process.py once the process has ended.
Invariant: the number is that of the row that is being opened, CONVERTING while many values become columns, or IDLE.
"""

from __future__ import annotations

import struct

PROGRESS = struct.Struct("q")
CONVERTING, IDLE = -1, -2
OUT_OF_MEMORY = 75
"""Exit status."""


class EndedError(Exception):
    """The process ended while it had this row open. `is_certain`: because of it; False: perhaps because of others."""

    def __init__(self, row: int, reason: str, *, is_certain: bool) -> None:
        super().__init__(reason)
        self.row, self.reason, self.is_certain = row, reason, is_certain
