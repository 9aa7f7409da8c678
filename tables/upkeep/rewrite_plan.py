"""Plans which files of a table become one. Pure.

    files of one partition -> tiers of similar size -> groups of neighbours -> each group becomes one file

Place: between the table's metadata (live_files.py) and the rewrite (rewriting.py).
Invariant: a group has files of one partition, in the order in which they were added, and at most `target_bytes`. Each
file of a group is below three quarters of that, and a group has at least two of them: so repeated plans come to an
end. While a partition gets files, a group has `files_min` files of one tier: a row is rewritten about once per tier,
however often a plan is made. Once it gets none, what is left becomes as few files as fit.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any, NamedTuple

TIERS_MAX = 8
"""Files below `target_bytes` / TIER_FACTOR ** 3 are all of the lowest tier."""
TIER_FACTOR = 8
_LOWEST_PART = TIER_FACTOR**3


class SmallFile(NamedTuple):
    """A data file. `place`: the values of its partition; `sequence`: rises with each commit."""

    path: str
    place: tuple[Any, ...]
    size_bytes: int
    sequence: int
    is_recent: bool
    """Its partition may still get files."""


class RewriteLimits(NamedTuple):
    """`target_bytes`: the size of a file that is large enough. `files_min`: fewer files of a tier wait for more."""

    target_bytes: int
    files_min: int

    @property
    def small_bytes(self) -> int:
        """A file of this size stays."""
        return self.target_bytes * 3 // 4


def plan_rewrites(files: Iterable[SmallFile], limits: RewriteLimits) -> list[list[SmallFile]]:
    """Return the groups; those of the oldest files first."""
    small = [each for each in files if each.size_bytes < limits.small_bytes]
    small.sort(key=lambda each: (repr(each.place), each.sequence, each.path))
    groups: list[list[SmallFile]] = []
    for _, found in groupby(small, key=lambda each: each.place):
        neighbours = list(found)
        if any(each.is_recent for each in neighbours):
            groups += _of_growing(neighbours, limits)
        else:
            groups += [group for group in _packed(neighbours, limits.target_bytes) if len(group) > 1]
    return sorted(groups, key=lambda group: (group[0].sequence, group[0].path))


def _of_growing(files: Sequence[SmallFile], limits: RewriteLimits) -> list[list[SmallFile]]:
    tiers: dict[int, list[SmallFile]] = {}
    for each in files:
        tiers.setdefault(tier_of(each.size_bytes, limits.target_bytes), []).append(each)
    return [
        group
        for _, same in sorted(tiers.items())
        for group in _packed(same, limits.target_bytes)
        if len(group) > 1 and (len(group) >= limits.files_min or _bytes_of(group) >= limits.small_bytes)
    ]


def tier_of(size_bytes: int, target_bytes: int) -> int:
    """Return how often TIER_FACTOR files of the lowest tier's size had to become one for this size."""
    bound, tier = max(1, target_bytes // _LOWEST_PART), 0
    while size_bytes >= bound and tier < TIERS_MAX:
        bound, tier = bound * TIER_FACTOR, tier + 1
    return tier


def _packed(files: Sequence[SmallFile], target_bytes: int) -> list[list[SmallFile]]:
    """Group neighbouring files; a group has at most `target_bytes`, or one file that is larger."""
    groups: list[list[SmallFile]] = []
    size = 0
    for each in files:
        if not groups or size + each.size_bytes > target_bytes:
            groups.append([])
            size = 0
        groups[-1].append(each)
        size += each.size_bytes
    return groups


def _bytes_of(group: Sequence[SmallFile]) -> int:
    return sum(each.size_bytes for each in group)
