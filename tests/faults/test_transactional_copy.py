"""A topic is copied exactly once by librdkafka and Java, while copiers, agents and Postgres are killed and replaced.

Fault model: tests/transactional_copy: agents are killed and stopped past their lease, replies are lost, copiers are
killed, stopped and replaced while they are stopped, Postgres is killed and its synchronous standby is promoted. What a
promotion that loses commits takes with it must be listed, and is copied again.
"""

from __future__ import annotations

import asyncio

import pytest

from tests.transactional_copy.__main__ import print_copy
from tests.transactional_copy.run import DRILLS, CopyOutcome, CopyPlan, copy_under_faults
from tests.transactional_copy.verdict import KnownOutcome

pytestmark = [
    pytest.mark.slow,
]


def run(plan: CopyPlan) -> CopyOutcome:
    outcome = asyncio.run(copy_under_faults(plan))
    print_copy(outcome)
    assert outcome.offences == []
    assert outcome.injected.keys() >= set(plan.drills)
    for report in outcome.copiers:
        assert report.count(KnownOutcome.COMMITTED) > 0, report.name
    return outcome


@pytest.mark.requirement("X1")
@pytest.mark.needs("kafka-clients")
def test_nothing_is_lost_doubled_or_shown_too_early() -> None:
    outcome = run(CopyPlan(seed=30, seconds=25))
    assert outcome.output.lost_and_listed == outcome.input.lost_and_listed == 0
    assert outcome.committed == outcome.source == len(outcome.written.acknowledged)
    assert outcome.injected.keys() >= {*DRILLS, "kill", "pause", "kill copier", "zombie"}


@pytest.mark.requirement("X1", "X4")
def test_what_a_promotion_loses_is_listed_and_copied_again() -> None:
    outcome = run(CopyPlan(seed=23, seconds=15, kinds=(), drills=("promote_async",), with_java=False))
    assert outcome.source == outcome.committed
