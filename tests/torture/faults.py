"""Decide which fault strikes when: a pure function of the seed.

Invariant: equal seed, length and kinds give the equal schedule; a target suffers one fault at a time.
What the schedule cannot repeat is how the operating system interleaves the processes.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import NamedTuple

AGENT_NAMES = ("agent-0", "agent-1", "agent-2")
LINK_FAULTS = ("reset", "delay", "mute", "half_open", "cut")
AGENT_FAULTS = ("kill", "pause")
METASTORE_FAULTS = ("restart",)
BUCKET_FAULTS = ("slow_down", "alter")
KINDS = (*LINK_FAULTS, *AGENT_FAULTS, *METASTORE_FAULTS)
"""Kinds of a short run; a long one has BUCKET_FAULTS and the drills of tests/torture/drills.py too."""
EVERYWHERE = (*AGENT_NAMES, "postgres", "s3")
BEHIND_AGENTS = ("postgres", "s3")
STEADY_KINDS = (*LINK_FAULTS, *METASTORE_FAULTS, *BUCKET_FAULTS)
"""Steady kinds of a run in which leaders stay: no agent is killed or paused, and only what is behind the agents is
struck.
"""
GAP_MEAN_S = 0.9
SETTLE_S = 3.0
"""A target is left alone this long after a process fault, so that it gets back to work."""


_TARGETS: Mapping[str, Sequence[str]] = {
    **dict.fromkeys(METASTORE_FAULTS, ("postgres",)),
    **dict.fromkeys(BUCKET_FAULTS, ("s3",)),
    **dict.fromkeys(AGENT_FAULTS, AGENT_NAMES),
}
"""Targets of the faults that do not strike everywhere."""


class Fault(NamedTuple):
    """`target`: agent-0 ..., postgres or s3; a link fault strikes the proxy in front of it."""

    at_s: float
    kind: str
    target: str
    seconds: float


def schedule(
    seed: int,
    seconds: float,
    kinds: Sequence[str] = KINDS,
    targets: Sequence[str] = EVERYWHERE,
    gap_s: float = GAP_MEAN_S,
) -> list[Fault]:
    """Faults in order of time; the last one ends before `seconds` are over, if it is a window. `targets`: of faults
    that can strike everywhere. `gap_s`: between two of them, in the mean."""
    rng = random.Random(seed)
    free_at = dict.fromkeys(EVERYWHERE, 0.0)
    faults = []
    at_s = 1.0
    while kinds and at_s < seconds - 1.0:
        kind = rng.choice(kinds)
        target = rng.choice(_TARGETS.get(kind, targets))
        length_s = 0.0 if kind == "reset" else rng.uniform(0.2, 1.5) if kind in LINK_FAULTS else rng.uniform(0.5, 5.0)
        length_s = min(length_s, seconds - at_s)
        if free_at[target] <= at_s:
            faults.append(Fault(round(at_s, 3), kind, target, round(length_s, 3)))
            free_at[target] = at_s + length_s + (0.0 if kind in (*LINK_FAULTS, *BUCKET_FAULTS) else SETTLE_S)
        at_s += rng.expovariate(1 / gap_s)
    return faults
