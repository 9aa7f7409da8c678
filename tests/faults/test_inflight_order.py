"""Batches in flight through several agents, with time-outs longer than the linger: no reorder, no livelock.

Fault model: agents stopped past their lease (leaders move between requests), replies swallowed, links
half open and slow; see tests/torture/proxy.py. Clients time a request out after 2 s, forty lingers, and
in the second test give records up after 4 s, so that they continue under another epoch. Only Java's can: its
epoch moves when nothing is in flight. librdkafka sends what it does not know the outcome of once more
under the new epoch, and kafkajs gives the sequence numbers of a batch that it gave up to the next one:
no broker can tell these from new records (docs/understand/TORTURE.md).
"""

from __future__ import annotations

import asyncio

import pytest

from tests.torture.report import print_outcome
from tests.torture.run import TorturePlan, torture
from tests.torture.writers import installed

KINDS = ("pause", "mute", "half_open", "delay")
GIVE_UP_MS = 4_000
SEEDS_THAT_PAUSE = (6, 7, 8)
"""One after the other, until a client gave up: leaders may have moved before."""


@pytest.mark.slow
@pytest.mark.requirement("W4", "W7")
def test_retries_through_other_agents_keep_the_order() -> None:
    outcome = asyncio.run(
        torture(TorturePlan(seed=4, seconds=10, kinds=KINDS, clients=("confluent", "aiokafka", "java")))
    )
    print_outcome(outcome)
    assert outcome.offences == []
    assert all(len(report.acknowledged) == report.sent for report in outcome.reports)
    assert sum(report.retries for report in outcome.reports) > 0, "no fault made a client repeat itself"


@pytest.mark.slow  # it takes what it needs until a client gave up
@pytest.mark.requirement("W7")
def test_clients_that_give_up_and_start_over_neither_double_nor_stall() -> None:
    if reason := installed()[1].get("java"):
        pytest.skip(reason)
    for seed in SEEDS_THAT_PAUSE:
        plan = TorturePlan(
            seed=seed, seconds=12, kinds=("pause", "half_open"), clients=["java"], delivery_ms=GIVE_UP_MS
        )
        outcome = asyncio.run(torture(plan))
        print_outcome(outcome)
        assert outcome.offences == []
        assert all(len(r.acknowledged) + len(r.failed) == r.sent for r in outcome.reports), "a retry never ended"
        if outcome.highest_epoch > 0:
            return
    raise AssertionError("no client started over")
