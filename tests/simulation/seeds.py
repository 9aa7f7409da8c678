"""What the seeds of a suite add to a schedule: failovers, compaction, growth, moves, small files in Postgres.

A suite has a range of seeds, from its first one; what it adds is drawn from the seed and the suite's number.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace

import msgspec

from headrace.agent.fetch.index.shard_interest import FollowPolicy
from tests.simulation.faults import Fault
from tests.simulation.plan import Crash, Failover, InlinePlan, InlineTerms, Plan, drawn_plan

_FAILOVERS, _CLEANING = 0x5EED_0003, 0x5EED_0004
_SEGMENTS, _CRASHES, _GROWTH, _PARTS = 0x5EED_0005, 0x5EED_0006, 0x5EED_0007, 0x5EED_0008
_MOVES, _INLINE, _UNREACHABLE = 0x5EED_0009, 0x5EED_000A, 0x5EED_000B
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


FIRST_SEED_WITH_INLINE_TOO = 1 << 47
"""Schedules of these seeds and above are of the other suites, with inline files too. Only the nightly run has them."""


def make_plan(seed: int) -> Plan:
    """The plan of the seed, always the same."""
    if seed >= FIRST_SEED_WITH_INLINE_TOO:
        return _with_inline(_OTHERS_WITH_INLINE[seed % len(_OTHERS_WITH_INLINE)](drawn_plan(seed)))
    if seed >= FIRST_SEED_WITH_INLINE:
        return _with_inline(_INLINE_AMONG[seed % len(_INLINE_AMONG)](drawn_plan(seed)))
    if seed >= FIRST_SEED_WITH_MOVES:
        return _with_moves(_with_failovers(drawn_plan(seed)) if seed % 4 == 3 else drawn_plan(seed))
    if seed >= FIRST_SEED_WITH_PARTS:
        return _with_parts(_with_failovers(drawn_plan(seed)) if seed % 2 else drawn_plan(seed))
    if seed >= FIRST_SEED_WITH_GROWTH:
        return _with_growth(_with_failovers(drawn_plan(seed)) if seed % 2 else drawn_plan(seed))
    if seed >= FIRST_SEED_WITH_SEGMENTS:
        return _with_segments(drawn_plan(seed))
    if seed >= FIRST_SEED_WITH_CLEANING:
        return _with_cleaning(drawn_plan(seed))
    return _with_failovers(drawn_plan(seed)) if seed >= FIRST_SEED_WITH_FAILOVERS else drawn_plan(seed)


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


_OTHERS_WITH_INLINE: Sequence[Callable[[Plan], Plan]] = (
    _with_growth,
    lambda plan: _with_growth(_with_failovers(plan)),
    _with_moves,
    lambda plan: _with_moves(_with_failovers(plan)),
    lambda plan: _with_parts(_with_failovers(plan)),
    lambda plan: plan,
    lambda plan: _with_segments(_with_growth(plan)),
    lambda plan: _with_cleaning(_with_growth(plan)),
)
"""The same where inline files come on top."""


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
        pipelined_producers=0 if plan.moves else 1,
        consumers=min(plan.consumers, 1),
        askers=0,
        settings=settings,
        rates={} if rng.random() < 0.1 else plan.rates,
        inline=InlinePlan(
            frozenset({*topics, "keyed"}),
            InlineTerms(rng.choice((2, 3, 6, 16)), rng.choice((0, 50, 500)), rng.choice((0, 100))),
            random.Random(plan.seed ^ _UNREACHABLE).choice((0.0, 0.0, 0.0, 0.1, 0.4)),
        ),
    )
