"""Which acknowledged records no process could list: their agent was killed before it had told the bucket of its loss.

Place: between the run and the checker. A record in a small file is in Postgres and in the memory of the agent that
committed it. If Postgres loses the commit and that agent is killed before it has written down what it knows, nothing
is left of it (docs/understand/LOW_LATENCY.md, what may be lost).
Invariant: a record counts only if it was acknowledged after the surviving copy of Postgres had stopped to learn, and
an agent was killed after that, until RECORDING_S after the drill. All other missing records must be listed. Times are
of one monotonic clock, in seconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from tests.torture.checker import Name

RECORDING_S = 20.0
"""An agent learns within seconds that its server is no longer the metastore, and repeats what the bucket refuses."""
HEARD_LATE_S = 1.0
"""An answer passes a client and a pipe before its time is taken."""


class Loss(NamedTuple):
    """A drill that lost commits: from when on the surviving copy had none of them, and when agents had it."""

    begun: float
    ended: float


def unlistable(heard: Mapping[Name, float], losses: Sequence[Loss], kills: Sequence[float]) -> set[Name]:
    """`heard`: when each record was acknowledged. `kills`: when an agent was killed."""
    found = set[Name]()
    for loss in losses:
        near = [kill for kill in kills if loss.begun <= kill <= loss.ended + RECORDING_S]
        if near:
            until = min(max(near), loss.ended) + HEARD_LATE_S
            found |= {name for name, at in heard.items() if loss.begun <= at <= until}
    return found
