"""Check when active parts end and partitions are cleaned, with a clock that the test controls."""

from __future__ import annotations

import random

import pytest

from headrace.compactor.cleaning.policy import (
    JOB_BYTES,
    JOB_PARTITIONS,
    UNCLEANABLE_RETRY_MS,
    CleaningRule,
    CleaningTask,
    active_part,
    cleaning_rule,
    in_jobs,
    overdue_ms,
    task,
    write_bound,
)
from headrace.config.topic_configs import TOPIC_CONFIGS
from headrace.metastore.api.cleaning import CleaningState, RollTarget

NOW_MS = 1_000_000


def state(**over: int | None) -> CleaningState:
    """A partition with an empty active part, all clean."""
    plain = CleaningState(7, 100, 100, 0, None, False, 100, 100, 0, 0, None, None, None)
    return plain._replace(**over)


def test_a_rule_is_what_the_configs_say() -> None:
    configs = {name: definition.default for name, definition in TOPIC_CONFIGS.items()}
    assert cleaning_rule(lambda name: configs[name]) is None
    for policy in ("compact", "compact,delete", "delete, compact"):
        assert cleaning_rule(lambda name, policy=policy: {**configs, "cleanup.policy": policy}[name]) == CleaningRule()


@pytest.mark.requirement("L4")
@pytest.mark.parametrize(
    ("rule", "active_bytes", "age_ms", "rolls"),
    [
        (CleaningRule(segment_ms=500), 10, 499, False),
        (CleaningRule(segment_ms=500), 10, 500, True),
        (CleaningRule(max_lag_ms=300), 10, 300, True),
        (CleaningRule(segment_bytes=10), 9, 0, False),
        (CleaningRule(segment_bytes=10), 10, 0, True),
    ],
)
def test_an_active_part_ends_by_age_or_size(rule: CleaningRule, active_bytes: int, age_ms: int, rolls: bool) -> None:
    found = state(high_watermark=110, active_bytes=active_bytes, active_since_ms=NOW_MS - age_ms)
    assert active_part(rule, NOW_MS, found) == RollTarget(7, NOW_MS - age_ms, rolls)
    if not rolls:
        assert active_part(rule, NOW_MS, found._replace(is_noted=True)) is None
    assert active_part(rule, NOW_MS, state(active_bytes=active_bytes)) is None, "it is empty"


@pytest.mark.requirement("L5")
@pytest.mark.parametrize(
    ("rule", "found", "is_due"),
    [
        (CleaningRule(), state(), False),
        (CleaningRule(dirty_ratio=0), state(), False),
        (CleaningRule(dirty_ratio=0.5), state(dirty_bytes=50, clean_bytes=50), False),
        (CleaningRule(dirty_ratio=0.5), state(dirty_bytes=51, clean_bytes=50), True),
        (CleaningRule(dirty_ratio=0), state(dirty_bytes=1, clean_bytes=50), True),
        (CleaningRule(max_lag_ms=10), state(dirty_bytes=1, clean_bytes=50, dirty_since_ms=NOW_MS - 10), False),
        (CleaningRule(max_lag_ms=10), state(dirty_bytes=1, clean_bytes=50, dirty_since_ms=NOW_MS - 11), True),
        (CleaningRule(), state(horizon_ms=NOW_MS + 1), False),
        (CleaningRule(), state(horizon_ms=NOW_MS), True),
        (CleaningRule(), state(horizon_ms=NOW_MS, uncleanable_ms=NOW_MS - UNCLEANABLE_RETRY_MS + 1), False),
        (CleaningRule(), state(horizon_ms=NOW_MS, uncleanable_ms=NOW_MS - UNCLEANABLE_RETRY_MS), True),
    ],
)
def test_what_makes_a_pass_due(rule: CleaningRule, found: CleaningState, is_due: bool) -> None:
    expected = CleaningTask(7, 100, rule.delete_retention_ms) if is_due else None
    assert task(rule, NOW_MS, found) == expected


@pytest.mark.requirement("L8")
def test_a_delay_counts_from_the_lag() -> None:
    assert overdue_ms(CleaningRule(max_lag_ms=10), NOW_MS, state(dirty_since_ms=NOW_MS - 25)) == 15
    assert overdue_ms(CleaningRule(), NOW_MS, state(dirty_since_ms=0)) == 0


@pytest.mark.requirement("L5")
@pytest.mark.parametrize("ratio", [0.1, 0.5, 0.9])
def test_what_passes_write_is_bounded_by_the_dirty_ratio(ratio: float) -> None:
    """The worst case: no record is ever superseded, and yet every pass rewrites everything."""
    rule, rng = CleaningRule(dirty_ratio=ratio), random.Random(1)
    clean = dirty = arrived = written = 0
    for _ in range(5_000):
        size = rng.randint(1, 1_000)
        dirty, arrived = dirty + size, arrived + size
        if task(rule, NOW_MS, state(dirty_bytes=dirty, clean_bytes=clean)):
            written += clean + dirty
            clean, dirty = clean + dirty, 0
    assert 0 < written <= arrived * write_bound(rule)


def test_a_job_takes_many_small_partitions_or_one_large() -> None:
    tasks = [(CleaningTask(key, 1, 1), 10) for key in range(450)]
    assert [len(job.tasks) for job in in_jobs(tasks)] == [JOB_PARTITIONS, JOB_PARTITIONS, 50]
    large = [(CleaningTask(key, 1, 1), JOB_BYTES - 1) for key in range(3)]
    assert [len(job.tasks) for job in in_jobs(large)] == [1, 1, 1]
