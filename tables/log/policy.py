"""What a table appends next: its offsets next to the log's. Pure.

Place: between the state of the table (state.py) and its execution (worker.py).
Invariant: a step begins each partition exactly where the table ends, or names the gap to where the log begins. A table
that has offsets which the log lacks gets nothing: the log's next records would have offsets that the table has.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from headrace.scan.plan import WantedOffsets
from headrace.tables.state import OffsetGap, TablePosition


class LogBounds(NamedTuple):
    """A partition's log: its start, its end for readers of committed records, and its high watermark.

    `kept`: up to where the log has what it had under the leader epoch of the table's position; None if that epoch is
    not known, or nothing was asked.
    """

    start: int
    stable_end: int
    high_watermark: int
    kept: int | None = None


class Ahead(NamedTuple):
    """The table has [log_end, table_offset) of a partition, and the log does not."""

    partition: int
    table_offset: int
    log_end: int

    def __str__(self) -> str:
        return f"partition={self.partition} offsets={self.log_end}-{self.table_offset - 1}"


@dataclass(frozen=True, slots=True)
class AppendStep:
    """What is to be appended, by partition; what is missing; what is wrong."""

    wanted: dict[int, WantedOffsets]
    gaps: tuple[OffsetGap, ...]
    ahead: tuple[Ahead, ...]

    @property
    def offsets(self) -> int:
        return sum(end - start for start, end in self.wanted.values())


def next_step(positions: Mapping[int, TablePosition], log: Mapping[int, LogBounds]) -> AppendStep:
    """The step for a table with these positions. A partition without one is new: it is read from offset 0 on."""
    wanted, gaps, ahead = {}, [], []
    for partition, each in sorted(log.items()):
        offset = positions.get(partition, TablePosition(0)).offset
        log_end = each.high_watermark if each.kept is None else min(each.kept, each.high_watermark)
        if offset > log_end:
            ahead.append(Ahead(partition, offset, log_end))
            continue
        begin = max(offset, each.start)
        if begin > offset:
            gaps.append(OffsetGap(partition, offset, begin))
        if begin < each.stable_end:
            wanted[partition] = WantedOffsets(begin, each.stable_end)
    if ahead:
        return AppendStep({}, (), tuple(ahead))
    return AppendStep(wanted, tuple(gaps), ())


def after(
    positions: Mapping[int, TablePosition], step: AppendStep, reached: Mapping[int, TablePosition]
) -> tuple[dict[int, TablePosition], tuple[OffsetGap, ...]]:
    """The positions and the gaps of a commit that appends up to `reached`.

    A gap counts once its partition moves beyond it, and also if nothing is left to append there.
    """
    moved = dict(positions)
    for gap in step.gaps:
        moved[gap.partition] = TablePosition(gap.end)
    moved |= reached
    return moved, step.gaps
