"""Schedules that something was added to: the seeds of each suite, its deliberate bugs, and what it must do.

A failure names its seed and the command that replays it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tests.planted import PlantedBugs
from tests.simulation import bugs_cleaning, bugs_growth, bugs_inline, bugs_lives, bugs_moves, bugs_parts, bugs_segments
from tests.simulation.bug import Bug, bugs_of
from tests.simulation.faults import Fault
from tests.simulation.plan import Plan
from tests.simulation.seeds import (
    FAILOVERS,
    FIRST_SEED_WITH_CLEANING,
    FIRST_SEED_WITH_FAILOVERS,
    FIRST_SEED_WITH_GROWTH,
    FIRST_SEED_WITH_INLINE,
    FIRST_SEED_WITH_INLINE_TOO,
    FIRST_SEED_WITH_MOVES,
    FIRST_SEED_WITH_PARTS,
    FIRST_SEED_WITH_SEGMENTS,
)


@dataclass(frozen=True, slots=True)
class Suite:
    """`everyday`: how many schedules run each time, `per_test` at once; `slow`: how many more run in the slow tests.

    `adds`: whether a plan has what the suite is about. `did`: whether so many schedules did enough of it.
    """

    name: str
    first: int
    everyday: int
    requirements: Sequence[str]
    bugs: Sequence[Bug]
    adds: Callable[[Plan], object]
    did: Callable[[Counter[str], int], object]
    per_test: int
    slow: int = 1_000
    most: int = 10_000
    """Seeds that a search for a bug tries."""

    @property
    def planted(self) -> PlantedBugs:
        return PlantedBugs(f"simulation of {self.name}", first=self.first, most=self.most)


CLEANING = Suite(
    "cleaning",
    FIRST_SEED_WITH_CLEANING,
    everyday=12,
    per_test=12,
    requirements=("L2", "L3", "L4", "L6"),
    bugs=bugs_of(bugs_cleaning),
    adds=lambda plan: plan.keyed_producers,
    did=lambda counts, schedules: counts[Fault.CLEANED.value] > 3 * schedules,
)
"""A topic is cleaned by key, while its workers are killed, paused and superseded.

The last value of each key stays readable, offsets and order stay, a reader from any offset reaches the end, and delete
markers stay for delete.retention.ms. The horizon of an unfinished pass counts in 4 of 2,300 schedules.
"""

FAILING_OVER = Suite(
    "failovers",
    FIRST_SEED_WITH_FAILOVERS,
    everyday=12,
    per_test=12,
    slow=1_500,
    requirements=("W1", "W3", "W7"),
    bugs=bugs_of(bugs_lives),
    adds=lambda plan: plan.failovers,
    did=lambda counts, schedules: all(counts[kind.value] for kind in (*FAILOVERS, Fault.CRASHED)),
)
"""The metastore forgets its last commits, is followed by a standby that is behind, or exists twice.

What is acknowledged in the present life is in the log, nothing is there twice, no producer id and no offset of a leader
epoch is handed out twice; every agent serves the present log.
"""

GROWTH = Suite(
    "growth",
    FIRST_SEED_WITH_GROWTH,
    everyday=14,
    per_test=14,
    requirements=("W1", "W5"),
    bugs=bugs_of(bugs_growth),
    adds=lambda plan: Fault.SHARDS_GROWN in plan.blows,
    did=lambda counts, schedules: counts[Fault.SHARDS_GROWN.value] > schedules,
)
"""The commit shards are doubled while agents commit and clients read; half of the schedules have failovers.

Polls are late, cut short or lost, agents are stopped in between, a standby may lack the growth. Readers see all that
was acknowledged, in order.
"""

INLINE = Suite(
    "inline files",
    FIRST_SEED_WITH_INLINE,
    everyday=4,
    per_test=4,
    most=3_000,
    requirements=("X13", "W1", "W4", "W7"),
    bugs=bugs_of(bugs_inline),
    adds=lambda plan: plan.inline,
    did=lambda counts, schedules: (
        counts[Fault.KEPT_INLINE.value] > 10 * schedules
        and counts[Fault.SLOT_EMPTIED.value] >= schedules / 2
        and counts[Fault.BUCKET_SILENT.value]
    ),
)
"""Small files of some topics are in the metastore until they are moved; a part of the schedules has failovers, a
compacted topic, or agents that follow parts of the feed; in others the bucket does not answer an agent at times.

What is acknowledged is readable wherever it is, nothing is stored twice, and once all is moved the metastore holds
nothing.
"""

INLINE_TOO = Suite(
    "other suites with inline files",
    FIRST_SEED_WITH_INLINE_TOO,
    everyday=0,
    per_test=1,
    requirements=("X13",),
    bugs=(),
    adds=lambda plan: plan.inline and Fault.SHARDS_GROWN in plan.blows,
    did=lambda counts, schedules: True,
)
"""Growth, moves, and failovers of agents that follow parts of the feed, with inline files on top. The seeds of those
suites stay as they are; these are others, and only the nightly run has them.
"""

MOVES = Suite(
    "moves",
    FIRST_SEED_WITH_MOVES,
    everyday=4,
    per_test=4,
    requirements=("W7",),
    bugs=bugs_of(bugs_moves),
    adds=lambda plan: plan.moves,
    did=lambda counts, schedules: counts[Fault.LEADER_MOVED.value] > schedules,
)
"""For minutes, leaders move, mostly there and back, and producers keep a connection to each agent.

No agent calls a batch out of order while an earlier one may be on its way through another agent, and what is
remembered ends in time.
"""

PARTS = Suite(
    "parts of the feed",
    FIRST_SEED_WITH_PARTS,
    everyday=12,
    per_test=12,
    requirements=("W1", "W5", "X4"),
    bugs=bugs_of(bugs_parts),
    adds=lambda plan: plan.follows,
    did=lambda counts, schedules: counts["losses listed"],
)
"""Most agents follow only a part of the feed, others all of it; half of the schedules have failovers.

Readers see all that was acknowledged, in order; what a failover lost is listed as completely as if all agents followed
everything.
"""

SEGMENTS = Suite(
    "segments",
    FIRST_SEED_WITH_SEGMENTS,
    everyday=14,
    per_test=7,
    most=3_000,
    requirements=("R6", "R11"),
    bugs=bugs_of(bugs_segments),
    adds=lambda plan: plan.has_segments,
    did=lambda counts, schedules: counts[Fault.WORKED.value] > 20 * schedules,
)
"""A cluster has keys for merged files, while workers, janitor and cleanup are killed and superseded.

Every object in the bucket is one that an extent names, no key is left in between, and the records of both logs follow
the states: judged after every call, and at the end (check_segments.py).
"""

SUITES = (CLEANING, FAILING_OVER, GROWTH, INLINE, INLINE_TOO, MOVES, PARTS, SEGMENTS)
