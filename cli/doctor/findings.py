"""What the doctor says of one thing: ok, unknown, warn or bad, what was found, and what to do.

Place: made by the judges of this package (postgres.py, bucket.py, host.py, cluster.py), printed by command.py.
Invariant: a finding that is not ok says what to do. No finding has a secret: addresses are shown without passwords.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Level(enum.Enum):
    """How much a finding matters."""

    OK = "ok"
    UNKNOWN = "unknown"
    """It had no answer in time, or cannot be seen from here or with these rights: it may be in order or not."""
    WARN = "warn"
    """It works, and something will hurt: later, under load or in a failure."""
    BAD = "bad"
    """It does not work, or acknowledged records may be lost."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report. `to_do` is empty for OK only."""

    area: str
    check: str
    level: Level
    found: str
    to_do: str = ""

    def __post_init__(self) -> None:
        if (self.level is Level.OK) == bool(self.to_do):
            raise ValueError(f"a finding says what to do unless it is ok: {self}")


@dataclass(frozen=True, slots=True)
class Area:
    """Makes the findings of one area."""

    name: str

    def ok(self, check: str, found: str) -> Finding:
        """Nothing to do."""
        return Finding(self.name, check, Level.OK, found)

    def unknown(self, check: str, why: str, to_do: str) -> Finding:
        """It was not seen."""
        return Finding(self.name, check, Level.UNKNOWN, f"not known: {why}", to_do)

    def warn(self, check: str, found: str, to_do: str) -> Finding:
        """Something will hurt."""
        return Finding(self.name, check, Level.WARN, found, to_do)

    def bad(self, check: str, found: str, to_do: str) -> Finding:
        """Something does not work, or records may be lost."""
        return Finding(self.name, check, Level.BAD, found, to_do)
