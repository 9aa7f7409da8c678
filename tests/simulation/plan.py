"""What a seed decides before anything runs: sizes, settings, clients, and which faults at which rates.

Each schedule has only some kinds of faults, at rates from rare to constant: a bug that needs two
faults to meet is found sooner than if every schedule had all of them.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import msgspec

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


_EARLY_FLUSHES, _SHORT_MEMORY, _FAILOVERS, _CLEANING = 0x5EED_0001, 0x5EED_0002, 0x5EED_0003, 0x5EED_0004
_SEGMENTS, _CRASHES, _GROWTH, _PARTS = 0x5EED_0005, 0x5EED_0006, 0x5EED_0007, 0x5EED_0008
_MOVES, _INLINE = 0x5EED_0009, 0x5EED_000A
"""Mixed into the seed for what was added later, so that older decisions of a seed stay."""


FIRST_SEED_WITH_FAILOVERS = 1 << 40
"""Schedules of these seeds and above replace the metastore by copies of itself."""
FAILOVERS = (Fault.PROMOTED, Fault.PROMOTED_BEHIND, Fault.SPLIT, Fault.PROMOTED_TWICE, Fault.RESTORED)
CRASH_SHARE = 0.3
"""Share of those schedules those in which a server crashes besides."""
_NOT_WITH_FAILOVERS = (Fault.SWEPT, Fault.CONDEMNED_AT_STEP, Fault.INCARNATION)


_WITH_MOVES = (Fault.SLOW, Fault.RESET_BEFORE, Fault.RESET_AFTER, Fault.REPLY_LOST, Fault.REQUEST_LOST)

_WITH_LISTS = (Fault.FENCED, Fault.TOPIC_DELETED, Fault.EPOCH_RAISED, Fault.REPLAYED, Fault.SHARDS_GROWN)
"""What else may happen where lists are compared: nothing that ends several processes, or takes rows from the feed."""


FIRST_SEED_WITH_CLEANING = 1 << 41
"""Schedules of these seeds and above have a compacted topic (keyed.py, cleaner.py)."""


FIRST_SEED_WITH_SEGMENTS = 1 << 42
"""Schedules of these seeds and above are of a cluster with keys for merged files (segment_workers.py)."""


FIRST_SEED_WITH_GROWTH = 1 << 43
"""In schedules of these seeds and above the commit shards are doubled a few times; in every other one the metastore is
replaced, too."""


FIRST_SEED_WITH_PARTS = 1 << 44
"""In schedules of these seeds and above there are more agents, and most follow only a part of the feed. In every other
one the metastore is replaced; in half of those little else happens, and what is listed as lost is compared with what
agents that follow all would list."""


FIRST_SEED_WITH_MOVES = 1 << 45
"""In schedules of these seeds and above leaders move, and producers follow them for minutes, over connections that stay
open; in each fourth one the metastore is replaced, too."""


FIRST_SEED_WITH_INLINE = 1 << 46
"""In schedules of these seeds and above some topics have low.latency.enable: small files are inline (mover.py). Some of
them have failovers, a compacted topic, or agents that follow parts of the feed, too."""


class InlineTerms(NamedTuple):
    """How many slots there are, how long one keeps dead files, and how long it is not looked at then."""

    slots: int
    grace_ms: int
    look_ms: int


class InlinePlan(NamedTuple):
    """`topics`: those with low.latency.enable."""

    topics: frozenset[str]
    terms: InlineTerms


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


def make_plan(seed: int) -> Plan:
    """The plan of the seed, always the same."""
    if seed >= FIRST_SEED_WITH_INLINE:
        return _with_inline(_INLINE_AMONG[seed % len(_INLINE_AMONG)](_plan(seed)))
    if seed >= FIRST_SEED_WITH_MOVES:
        return _with_moves(_with_failovers(_plan(seed)) if seed % 4 == 3 else _plan(seed))
    if seed >= FIRST_SEED_WITH_PARTS:
        return _with_parts(_with_failovers(_plan(seed)) if seed % 2 else _plan(seed))
    if seed >= FIRST_SEED_WITH_GROWTH:
        return _with_growth(_with_failovers(_plan(seed)) if seed % 2 else _plan(seed))
    if seed >= FIRST_SEED_WITH_SEGMENTS:
        return _with_segments(_plan(seed))
    if seed >= FIRST_SEED_WITH_CLEANING:
        return _with_cleaning(_plan(seed))
    return _with_failovers(_plan(seed)) if seed >= FIRST_SEED_WITH_FAILOVERS else _plan(seed)


def _with_failovers(plan: Plan) -> Plan:
    """Nothing is deleted that a copy may name, as it is not in the file.delete.delay.ms of a cluster."""
    rng = random.Random(plan.seed ^ _FAILOVERS)
    count, seconds = rng.choice((1, 1, 2)), plan.seconds + 1.0
    times = sorted(rng.uniform(0.3, seconds) for _ in range(count))
    kinds = rng.choices(FAILOVERS, k=count)
    is_calm = rng.random() < 0.5
    blows: dict[Fault, int] = {fault: times for fault, times in plan.blows.items() if fault not in _NOT_WITH_FAILOVERS}
    blows[Fault.TOPIC_DELETED] = rng.randint(0, 4)
    if is_calm:
        blows.pop(Fault.FROZEN, None)
    return replace(
        plan,
        seconds=seconds,
        patient_producers=1,
        java_producers=1,
        consumers=0,
        askers=0,
        batches=2 * plan.batches,
        rates={} if is_calm else {f: rate for f, rate in plan.rates.items() if f not in _NOT_WITH_FAILOVERS},
        blows=blows,
        failovers=[
            Failover(kind, at, 0.0 if kind is Fault.PROMOTED else rng.uniform(0.02, 0.6))
            for kind, at in zip(kinds, times, strict=True)
        ],
        crashes=_crashes(random.Random(plan.seed ^ _CRASHES), seconds),
    )


def _crashes(rng: random.Random, seconds: float) -> list[Crash]:
    if rng.random() >= CRASH_SHARE:
        return []
    return [Crash(rng.uniform(0.6, seconds), rng.uniform(0.2, 0.8), rng.uniform(0.02, 0.3))]


def _with_growth(plan: Plan) -> Plan:
    rng = random.Random(plan.seed ^ _GROWTH)
    return replace(plan, blows={**plan.blows, Fault.SHARDS_GROWN: rng.randint(1, 4)})


def _with_parts(plan: Plan) -> Plan:
    """Shards are more than partitions, so that each agent has some without a reason."""
    rng = random.Random(plan.seed ^ _PARTS)
    agents, shards = 4, rng.choice((4, 8))
    policy = FollowPolicy(
        followers=2,
        again_s=rng.choice((0.1, 0.5, 2.0)),
        read_s=rng.choice((0.05, 0.2, 1.0)),
        wait_s=rng.choice((0.01, 0.1)),
        commit_s=rng.choice((0.01, 0.2)),
        handover_s=rng.choice((0.3, 1.0)),
        drop_every_s=0.02,
    )
    full = rng.choice((0, 0, 1, 2))
    blows = dict(plan.blows)
    if rng.random() < 0.3:
        blows[Fault.SHARDS_GROWN] = 1
    plan = replace(
        plan,
        agents=agents,
        racks=rng.choice(((None,) * 4, ("a",) * 4, ("a", "b", "a", "b"))),
        shards=shards,
        blows=blows,
        follows=[None if node_id <= full else policy for node_id in range(1, agents + 1)],
    )
    if not plan.failovers or plan.seed % 4 != 3:
        return plan
    kept = {fault: times for fault, times in blows.items() if fault in _WITH_LISTS}
    kept |= {Fault.KILLED: 1} if rng.random() < 0.5 else {}
    return replace(plan, rates={}, crashes=(), blows=kept, compares_lists=True)


def _with_moves(plan: Plan) -> Plan:
    """Producers alone, with requests that are often slow, so that neighbours meet at two agents."""
    rng = random.Random(plan.seed ^ _MOVES)
    seconds, before = rng.uniform(120.0, 600.0), plan.seconds
    rates = {fault: rate for fault, rate in plan.rates.items() if fault in _WITH_MOVES} if rng.random() < 0.5 else {}
    return replace(
        plan,
        agents=rng.choice((2, 3)),
        seconds=seconds,
        send_interval=0.05,
        patient_producers=1,
        java_producers=rng.choice((1, 2)),
        careful_producers=0,
        pipelined_producers=0,
        forgetful_producers=0,
        consumers=0,
        askers=0,
        batches=rng.randint(20, 40),
        rates={**rates, Fault.SLOW_CLIENT: 0.3},
        blows={fault: rng.randint(0, 1) for fault in (Fault.KILLED, Fault.RESTARTED, Fault.FENCED)},
        failovers=[failover._replace(at=failover.at * seconds / before) for failover in plan.failovers],
        crashes=(),
        moves=True,
    )


def _with_cleaning(plan: Plan) -> Plan:
    """Few other clients: files have other partitions too. Delete horizons are times of the database's clock."""
    rng = random.Random(plan.seed ^ _CLEANING)
    blows: dict[Fault, int] = {fault: times for fault, times in plan.blows.items() if fault is not Fault.DATABASE_JUMP}
    blows[Fault.MERGED] = rng.randint(4, 12)
    return replace(
        plan,
        seconds=plan.seconds + 1.5,
        patient_producers=1,
        java_producers=0,
        careful_producers=0,
        pipelined_producers=1,
        forgetful_producers=0,
        batches=plan.batches // 2,
        consumers=0,
        askers=0,
        blows=blows,
        rates={} if rng.random() < 0.3 else plan.rates,
        keyed_producers=rng.choice((1, 2)),
        keyed_readers=rng.choice((1, 2)),
    )


def _with_segments(plan: Plan) -> Plan:
    """Few clients. Without another incarnation, which ends all deletions, and without bits altered on the way: a merge
    reads what is damaged a second time, and copies it if that is damaged too.
    """
    rng = random.Random(plan.seed ^ _SEGMENTS)
    blows: dict[Fault, int] = {
        fault: times for fault, times in plan.blows.items() if fault not in (Fault.INCARNATION, Fault.MERGED)
    }
    blows |= {Fault.LOG_START_MOVED: rng.randint(0, 4), Fault.TOPIC_DELETED: rng.randint(0, 2)}
    blows |= {Fault.DATABASE_JUMP: rng.randint(0, 3)}
    is_calm = rng.random() < 0.2
    return replace(
        plan,
        seconds=plan.seconds + 1.0,
        patient_producers=1,
        java_producers=0,
        careful_producers=0,
        pipelined_producers=1,
        forgetful_producers=0,
        consumers=0,
        askers=0,
        blows=blows,
        rates={} if is_calm else {fault: rate for fault, rate in plan.rates.items() if fault is not Fault.ALTERED},
        has_segments=True,
    )


_INLINE_AMONG: Sequence[Callable[[Plan], Plan]] = (
    *(lambda plan: plan, _with_failovers, _with_segments, _with_cleaning),
    *(lambda plan: plan, _with_failovers, lambda plan: plan, _with_parts),
)
"""What else a plan has, by the last bits of its seed."""


def _with_inline(plan: Plan) -> Plan:
    """Slots and limits are small, so that slots turn and fill up, and files go into the bucket at times."""
    rng = random.Random(plan.seed ^ _INLINE)
    topics = rng.choice((("stable",), ("stable", "stamped"), ("stable", "mortal"), ("stamped", "mortal")))
    settings = msgspec.structs.replace(
        plan.settings,
        low_latency_file_max_bytes=rng.choice((90, 110, 250, 250, 65_536)),
        low_latency_max_bytes_per_second=rng.choice((800, 10_000_000, 10_000_000)),
        low_latency_held_max_bytes=rng.choice((2_000, 6_000, 100_000)),
        low_latency_move_ms=rng.choice((30, 30, 200, 1_000)),
    )
    return replace(
        plan,
        seconds=plan.seconds + 0.4,
        pipelined_producers=1,
        consumers=min(plan.consumers, 1),
        askers=0,
        settings=settings,
        rates={} if rng.random() < 0.1 else plan.rates,
        inline=InlinePlan(
            frozenset({*topics, "keyed"}),
            InlineTerms(rng.choice((2, 3, 6, 16)), rng.choice((0, 50, 500)), rng.choice((0, 100))),
        ),
    )


def _plan(seed: int) -> Plan:
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
