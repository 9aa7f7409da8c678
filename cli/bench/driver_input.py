"""The driver's side of standard input: wait for `go`, hear `until N` later.

Place: in a driver process; drivers.py writes the other end.
Invariant: a driver ends when the bench does: end of input ends the process.
"""

from __future__ import annotations

import os
import sys
import threading


class DriverInput:
    """Reads lines on a thread; `until` is set from outside while the driver works."""

    def __init__(self, until: int | None = None) -> None:
        self.until = until

    def ready(self) -> None:
        """Say so, and return when the bench says `go`."""
        print("ready", flush=True)
        if sys.stdin.readline().strip() != "go":
            raise SystemExit("the bench ended")
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        for line in sys.stdin:
            self.until = int(line.removeprefix("until "))
        os._exit(1)
