"""Whether a reader saw each record of a partition once and in order.

Place: used by consume_driver.py for each record. Pure.
Invariant: a producer numbers its records from 0 without gaps, so every gap is a loss, every repetition a duplicate,
and a number below its predecessor that was not read yet is out of order.
"""

from __future__ import annotations


class ReadOrder:
    """One partition's records, as they are read."""

    def __init__(self) -> None:
        self._next = 0
        self._missing: set[int] = set()
        self.read = 0
        self.duplicates = 0
        self.disordered = 0

    def see(self, number: int) -> None:
        """The next record has this number."""
        self.read += 1
        if number == self._next:
            self._next += 1
        elif number > self._next:
            self._missing.update(range(self._next, number))
            self._next = number + 1
        elif number in self._missing:
            self._missing.remove(number)
            self.disordered += 1
        else:
            self.duplicates += 1

    def missing(self) -> int:
        """Numbers below the highest one that were not read."""
        return len(self._missing)
