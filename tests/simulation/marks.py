"""A number that changes over virtual time, kept for the checker: a high watermark, a log start."""

from __future__ import annotations

from bisect import bisect_left, bisect_right


class Marks:
    """0 to begin with."""

    def __init__(self) -> None:
        self._times = [0.0]
        self._values = [0]

    def copy(self) -> Marks:
        """Another one with the same past."""
        other = Marks()
        other._times, other._values = list(self._times), list(self._values)
        return other

    def becomes(self, time: float, value: int) -> None:
        """From `time` on it is `value`; times never go back."""
        self._times.append(time)
        self._values.append(value)

    def at(self, time: float) -> int:
        """Its value at that time, with what changed in that very instant."""
        return self._values[bisect_right(self._times, time) - 1]

    def during(self, start: float, end: float) -> set[int]:
        """Every value that it had from `start` to `end`."""
        return {self.at(start), *self._values[bisect_left(self._times, start) : bisect_right(self._times, end)]}
