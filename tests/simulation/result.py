"""What a schedule ends with."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from tests.simulation.faults import Fault
from tests.simulation.problems import Problem


@dataclass(frozen=True, slots=True)
class Result:
    """`digest` represents the whole history: equal digests, equal histories."""

    seed: int
    problems: list[Problem]
    digest: str
    faults: Counter[Fault]
    attempts_per_batch: list[int]
    """How often each was sent: by its producer, and again by the network."""
    polls: int
    epoch_bumps: int
    """Number of epoch bumps of producers as librdkafka."""
    neighbour_answers: int
    """Number of answers between agents, for the zone cache."""
    losses_listed: int
    """Number of lost commits that are listed, where lists are compared."""
    steps: int
    virtual_seconds: float
