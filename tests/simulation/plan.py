"""What a seed decides before anything runs: sizes, settings, clients, and which faults at which rates.

Each schedule has only some kinds of faults, at rates from rare to constant: a bug that needs two
faults to meet is found sooner than if every schedule had all of them.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from headrace.agent.fetch.index.shard_interest import FollowPolicy
from headrace.config.settings import Settings
from tests.simulation.faults import Fault

RATES: Mapping[Fault, tuple[float, ...]] = {
    Fault.REQUEST_LOST: (0.02, 0.1, 0.3),
    Fault.REPLY_LOST: (0.02, 0.1, 0.3),
    Fault.CUT: (0.02, 0.1, 0.2),
    Fault.LATE: (0.05, 0.15, 0.3),
    Fault.SLOW: (0.02, 0.1, 0.2),
    Fault.THROTTLED: (0.02, 0.1),
    Fault.TRUNCATED: (0.05, 0.2),
    Fault.ALTERED: (0.1, 0.3),
    Fault.STALE_LIST: (0.5,),
    Fault.PARTIAL_PAGE: (0.3, 0.8),
    Fault.LAGGING_FEED: (0.05, 0.3),
    Fault.KILLED_AT_STEP: (0.003, 0.02),
    Fault.FROZEN_AT_STEP: (0.003, 0.02),
    Fault.POISONED: (0.03, 0.15),
    Fault.CONDEMNED_AT_STEP: (0.05, 0.2),
    Fault.FENCED_IN_DOUBT: (0.1, 0.3),
    Fault.UNREGISTERED_IN_DOUBT: (0.1, 0.3),
    Fault.RESET_BEFORE: (0.02, 0.1),
    Fault.RESET_AFTER: (0.02, 0.1),
    Fault.SLOW_CLIENT: (0.05, 0.2),
    Fault.HALF_OPEN: (0.5,),
    Fault.NEIGHBOUR_CUT: (0.1, 0.2),
    Fault.NEIGHBOUR_SILENT: (0.2, 0.3),
    Fault.NEIGHBOUR_SLOW: (0.1, 0.2),
    Fault.NEIGHBOUR_ALTERED: (0.1, 0.3),
    Fault.KEPT_SHORT: (0.05, 0.2),
}
"""Faults that are drawn per opportunity, and how often they may strike."""

BLOWS: Mapping[Fault, int] = {
    Fault.KILLED: 2,
    Fault.RESTARTED: 2,
    Fault.FROZEN: 2,
    Fault.FENCED: 2,
    Fault.WALL_JUMP: 2,
    Fault.DATABASE_JUMP: 1,
    Fault.REPLAYED: 8,
    Fault.FEED_FORGOTTEN: 2,
    Fault.LOG_START_MOVED: 3,
    Fault.INCARNATION: 1,
    Fault.SWEPT: 5,
    Fault.EPOCH_RAISED: 2,
    Fault.TOPIC_DELETED: 2,
    Fault.MERGED: 8,
}
"""Faults at random moments, and how often at most."""


_EARLY_FLUSHES, _SHORT_MEMORY = 0x5EED_0001, 0x5EED_0002
"""Mixed into the seed for what was added later, so that older decisions of a seed stay (seeds.py has the others)."""


class InlineTerms(NamedTuple):
    """How many slots there are, how long one keeps dead files, and how long it is not looked at then."""

    slots: int
    grace_ms: int
    look_ms: int


class InlinePlan(NamedTuple):
    """`topics`: those with low.latency.enable. `unreachable`: share of an agent's looks at the slots at which the
    bucket does not answer it.
    """

    topics: frozenset[str]
    terms: InlineTerms
    unreachable: float


class Failover(NamedTuple):
    """`at`: seconds; `lag`: how much older than that is the copy."""

    kind: Fault
    at: float
    lag: float


class Crash(NamedTuple):
    """`at`: seconds; `writing`: how long a large statement has run by then; `down`: until it serves again."""

    at: float
    writing: float
    down: float


@dataclass(frozen=True, slots=True)
class Plan:
    """One schedule. `seconds`: how long things go wrong; `send_interval`: mean seconds between a producer's batches."""

    seed: int
    agents: int
    racks: tuple[str | None, ...]
    """Racks of the agents, by node id: who shares a zone shares files."""
    shards: int
    seconds: float
    send_interval: float
    patient_producers: int
    java_producers: int
    careful_producers: int
    pipelined_producers: int
    forgetful_producers: int
    batches: int
    consumers: int
    askers: int
    settings: Settings
    memory_is_short: bool
    """Whether requests of clients wait for memory at times."""
    rates: Mapping[Fault, float]
    blows: Mapping[Fault, int]
    failovers: Sequence[Failover] = ()
    crashes: Sequence[Crash] = ()
    keyed_producers: int = 0
    keyed_readers: int = 0
    has_segments: bool = False
    follows: Sequence[FollowPolicy | None] = ()
    """By node id, if agents follow only parts of the feed; None: all of it."""
    moves: bool = False
    """Whether clients are sent to leaders, which move."""
    compares_lists: bool = False
    """Whether all that full following would list as lost must be listed."""
    inline: InlinePlan | None = None
    """None without inline files."""

    @property
    def low_latency(self) -> frozenset[str] | None:
        """Topics with low.latency.enable; None in a cluster that cannot have them."""
        return None if self.inline is None else self.inline.topics

    @property
    def is_prompt(self) -> bool:
        """Whether every process learns of a new life within its check: nothing delays or stops a check."""
        return not self.rates and Fault.FROZEN not in self.blows


def drawn_plan(seed: int) -> Plan:
    """What every schedule has that the seed decides; seeds.py adds what some have."""
    rng = random.Random(seed)
    share = rng.choice((0.15, 0.3, 0.4, 0.5))
    patient = rng.choice((0, 1))
    return Plan(
        seed=seed,
        agents=rng.choice((2, 2, 3)),
        racks=rng.choice(((None,) * 3, ("a",) * 3, ("a",) * 3, ("a", "b", "a"))),
        shards=rng.choice((1, 2, 4)),
        seconds=rng.uniform(0.8, 2.0),
        send_interval=rng.choice((0.02, 0.05, 0.1)),
        patient_producers=patient,
        java_producers=rng.choice((1 - patient, 1)),
        careful_producers=rng.choice((0, 1)),
        pipelined_producers=rng.choice((1, 1, 2)),
        forgetful_producers=rng.choice((0, 0, 1)),
        batches=rng.randint(6, 16),
        consumers=rng.choice((1, 1, 2)),
        askers=1,
        settings=_settings(rng, random.Random(seed ^ _EARLY_FLUSHES)),
        memory_is_short=random.Random(seed ^ _SHORT_MEMORY).random() < 0.3,
        rates={fault: rng.choice(rates) for fault, rates in RATES.items() if rng.random() < share},
        blows={fault: rng.randint(1, most) for fault, most in BLOWS.items() if rng.random() < share + 0.1},
    )


def _settings(rng: random.Random, early: random.Random) -> Settings:
    return Settings(
        linger_idle_ms=early.choice((3, 3, 15)),
        flush_early_per_second=early.choice((0, 5, 10, None)),
        flush_early_burst=early.choice((1, 5, 20)),
        flush_early_free_bytes=early.choice((400, 4_000_000)),
        flush_early_saving_ms=early.choice((0, 3_600_000)),
        flush_early_per_second_max=early.choice((1, 50)),
        linger_ms=rng.choice((25, 60, 100)),
        flush_bytes=rng.choice((250, 800, 1_000_000, 1_000_000)),
        upload_parallelism=rng.choice((1, 2, 8)),
        store_retries=rng.choice((0, 0, 1, 3)),
        store_hedge_percent=rng.choice((0, 0, 100)),
        feed_poll_interval_ms=rng.choice((40, 150, 500)),
        ingest_merge_max_bytes=rng.choice((0, 500, 65_536, 65_536)),
        cache_bytes=rng.choice((0, 1_500, 1_000_000)),
        fetch_max_bytes=rng.choice((600, 1_000_000)),
        zone_cache_timeout_ms=rng.choice((0, 40, 300, 300)),
    )
