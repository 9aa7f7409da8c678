"""Is memory flat? Pure: samples in, figures out.

Words: a *quarter* is one of four equal parts of the run. The first is the warm-up: caches fill, and merges of each
level run for the first time. The level of a quarter is the mean of its resident sizes, its peak the highest.
Invariant: an agent is flat if neither level nor peak of any later quarter exceeds that of the second by more than
GROWTH_MAX.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

GROWTH_MAX = 0.05


class Quarter(NamedTuple):
    """Resident bytes of one part of the run."""

    level: float
    peak: float
    least: float


class FlatVerdict(NamedTuple):
    """What the run showed. Growth: 0.05 is 5 percent above the second quarter."""

    quarters: tuple[Quarter, ...]
    level_growth: float
    peak_growth: float

    @property
    def is_flat(self) -> bool:
        return max(self.level_growth, self.peak_growth) <= GROWTH_MAX


def judge(resident: Sequence[float]) -> FlatVerdict:
    """Judge resident sizes that were sampled at equal intervals; at least four."""
    bounds = [len(resident) * n // 4 for n in range(5)]
    parts = [resident[first:end] for first, end in pairwise(bounds)]
    quarters = tuple(Quarter(sum(part) / len(part), max(part), min(part)) for part in parts)
    second, later = quarters[1], quarters[2:]
    return FlatVerdict(
        quarters,
        max(quarter.level for quarter in later) / second.level - 1,
        max(quarter.peak for quarter in later) / second.peak - 1,
    )


def after_merges(merges: Sequence[float], resident: Sequence[float]) -> list[tuple[int, float]]:
    """Return the least resident size while the count of merges stayed the same: (count, bytes). It rises step by step
    if each merge leaves something."""
    least: dict[int, float] = {}
    for count, size in zip(merges, resident, strict=True):
        least[int(count)] = min(size, least.get(int(count), size))
    return sorted(least.items())
